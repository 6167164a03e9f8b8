"""What programs, options and states of Slurm's are called here: for who types them by habit."""

from __future__ import annotations

#: programs
PROGRAMS = {
    "sbatch": "submit",
    "srun": "submit --follow, or with a terminal hived shell",
    "salloc": "shell",
    "squeue": "ps",
    "sstat": "ps",
    "scancel": "cancel",
    "sinfo": "devices, and hived vc ls",
    "sacct": "history",
    "sreport": "usage",
    "sshare": "usage, and hived explain",
    "sprio": "explain",
    "sattach": "logs -f",
    "scontrol": "explain, hold, release, requeue, edit or drain",
    "sacctmgr": "in the spec: members, maxJobs, maxGpus, maxPriority of a virtual cluster; hived vc show",
    "seff": "explain --details",
    "sdiag": "events",
    "requeuehold": "requeue --hold",
    "suspend": "hold, or of a training job hived train suspend",
    "resume": "release; of a drained device hived drain --undo; of a training job hived train resume",
    "show": "explain --details, hived devices or hived vc show",
    "update": "edit, hived priority or hived drain",
}
#: what verbs are called elsewhere
ELSEWHERE = {
    "kill": "cancel",
    "stop": "cancel, or hived hold; of the engine hived up --stop",
    "down": "up --stop",
    "shutdown": "up --stop",
    "delete": "cancel",
    "list": "ps",
    "status": "ps, or of one job hived explain",
    "queue": "ps",
    "info": "explain --details, or hived devices",
    "run": "submit --follow",
    "add": "submit",
    "help": "--help",
    "restart": "requeue",
    "nodes": "devices",
    "describe": "explain --details",
}
_NO_CPUS = "GPUs are what is shared out, and hived up --fence memory,cpu gives a job their share of both"
_GPUS = "--gpus N, for each task"
#: options, of the verbs that take none of that name
_OPTIONS = {
    "--account": "--vc",
    "--comment": "--name",
    "--deadline": "--time-limit",
    "--exclude": "none: hived drain keeps jobs off a node",
    "--format": "-o json",
    "--immediate": "hived plan, which says whether it would start now",
    "--job": "hived explain --details JOB",
    "--jobs": "hived explain --details JOB",
    "--mail-type": "none: hived wait JOB; mail ...",
    "--mail-user": "none: hived wait JOB; mail ...",
    "--name": "a name is an argument: hived explain NAME; of all under one name: hived cancel --name",
    "--nodelist": "none: cells are placed by affinity",
    "--priority": "hived priority JOB N",
    "--signal": "hived submit --signal, or --checkpoint-signal",
    "--start": "hived explain JOB",
    "--begin": "hived submit --hold, and hived release then",
    "--chdir": "--cwd",
    "--constraint": "none: a virtual cluster has its kinds of GPUs",
    "--cpus-per-gpu": _NO_CPUS,
    "--cpus-per-task": _NO_CPUS,
    "--dependency": "--after JOB, --after JOB:ok",
    "--error": "hived logs",
    "--exclusive": "always: a job has its GPUs alone, unless the policy of its virtual cluster shares them",
    "--export": "--env K=V; the environment goes along",
    "--gpus-per-node": _GPUS,
    "--gpus-per-task": _GPUS,
    "--gres": _GPUS,
    "--job-name": "--name",
    "--me": "--user $USER",
    "--mem": _NO_CPUS,
    "--mem-per-gpu": _NO_CPUS,
    "--nice": "--priority N",
    "--ntasks": "--nodes N: so many tasks that start together",
    "--ntasks-per-node": "--nodes N: so many tasks that start together",
    "--parsable": "--quiet",
    "--partition": "--vc",
    "--pty": "hived shell",
    "--qos": "--priority N, or --opportunistic",
    "--requeue": "always; --retries N for one that fails",
    "--starttime": "--since",
    "--endtime": "--until",
    "--states": "--status",
    "--test-only": "hived plan",
    "--time": "--time-limit",
    "--wait": "--follow, or hived wait",
    "--wrap": "-- sh -c '...'",
    "-A": "--vc",
    "-D": "--cwd",
    "-G": "--gpus N, for each task",
    "-H": "--hold",
    "-M": "--context",
    "-W": "--follow, or hived wait",
    "-X": "always: a line for each job",
    "-a": "--array INDEXES",
    "-j": "hived explain --details JOB",
    "-l": "hived explain --details JOB",
    "-n": "--nodes N: so many tasks that start together",
    "-w": "none: cells are placed by affinity",
    "-x": "none: hived drain keeps jobs off a node",
    "-J": "--name",
    "-c": _NO_CPUS,
    "-d": "--after JOB, --after JOB:ok",
    "-t": "--time-limit",
}
_STATUS = {"-t": "--status", "--states": "--status"}
_VC = {"-p": "--vc", "-r": "--vc", "-q": "none: a job has a priority, and may be opportunistic"}
_ON_A_NODE = "hived devices NODE, which says whose jobs are there"
_IS_DONE = "hived cancel asks where jobs are chosen by what they have in common; --yes: it does not"
_SAME = "always: of what is listed, all users' unless --user says whose"
_BY_ID = "hived explain --details JOB"
_BAD = "--bad: those that take no jobs, and why"
#: what they mean to the program that a verb is there for
_OPTIONS_OF = {
    "ps": _STATUS | _VC | {  # squeue
        "--iterate": "--watch", "-i": "--watch", "--name": "hived explain NAME", "--nodelist": _ON_A_NODE,
        "-w": _ON_A_NODE, "--long": "always", "-l": "always", "--sort": "none: those with GPUs are first",
        "-S": "none: those with GPUs are first",
    },
    "cancel": _STATUS | _VC | {  # scancel
        "-n": "--name", "--jobname": "--name", "--nodelist": _ON_A_NODE, "-w": _ON_A_NODE, "--interactive": _IS_DONE,
        "-i": _IS_DONE, "--signal": "SIGTERM, after the grace of the job SIGKILL; --now is SIGKILL at once",
    },
    "history": _STATUS | _VC | {  # sacct
        "-s": "--status", "--allusers": _SAME, "-a": _SAME, "--nodelist": "none: hived explain JOB says where one ran",
        "-N": "none: hived explain JOB says where one ran", "--parsable": "-o json", "--parsable2": "-o json",
        "-p": "--vc; as JSON: -o json", "-P": "-o json", "-l": "always", "--long": "always",
    },
    "devices": {  # sinfo
        "--Node": "always", "-N": "always", "--long": "always", "-l": "always", "--nodes": "hived devices NODE",
        "-n": "hived devices NODE", "--partition": "hived vc show VC", "-p": "hived vc show VC",
        "--list-reasons": _BAD, "-R": _BAD, "--states": _BAD, "-t": _BAD, "--dead": _BAD, "-d": _BAD,
        "--summarize": "hived vc ls", "-s": "hived vc ls", "--iterate": "hived top", "-i": "hived top",
    },
}  # fmt: skip
#: states of jobs
STATES = {
    "pending": "queued, held or reserved",
    "pd": "queued, held or reserved",
    "r": "running",
    "completing": "stopping",
    "cg": "stopping",
    "completed": "succeeded",
    "cd": "succeeded",
    "f": "failed",
    "timeout": "failed",
    "to": "failed",
    "out_of_memory": "failed",
    "oom": "failed",
    "ca": "cancelled",
    "s": "suspended",
    "requeued": "queued",
}


def is_state(text: str) -> bool:
    """Whether this is a state of jobs or nodes there."""
    return text.lower() in STATES or text.lower() in ("drain", "drained", "draining", "resume", "idle", "down", "fail")


#: values of options of ours that have another meaning there, by a word of the error
_VALUES = {
    "'--priority' / '-p'": "Slurm's -p is --vc here",
    "'-o' / '--output'": "what a job prints is kept: hived logs JOB; as JSON: -o json",
    "'--gpus' / '-g'": "a number, of the kinds of GPUs that the virtual cluster has",
    "'--array' does not take a value": "hived edit 12 --array %4, in two words",
    "'-n' / '--number'": "so many lines; by name: hived explain NAME, hived history --name TEXT",
}


def value_here(message: str) -> str:
    """What is added to an error of a value that fits an option of Slurm's; "": nothing."""
    return next((f" ({here})" for option, here in _VALUES.items() if option in message), "")


def option_here(name: str, verb: str = "") -> str:
    """What is said of an option that a verb does not have; "": it is none of Slurm's."""
    name = name.partition("=")[0]
    here = _OPTIONS_OF.get(verb, {}).get(name) or _OPTIONS.get(name)
    return f"No such option: {name}. What Slurm calls so is here: {here}" if here else ""


def folder_here(text: str) -> str:
    """What is said of a state that was given as an engine's folder, to a verb that has --status."""
    ours = f"; what Slurm calls so: {here}" if (here := STATES.get(text.lower())) else ""
    return f"--state {text}: names the engine's folder; for jobs in a state: --status{ours}"
