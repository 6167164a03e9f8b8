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
}
_NO_CPUS = "GPUs are what is shared out, and hived up --fence memory,cpu gives a job their share of both"
_GPUS = "--gpus N, for each task"
#: options, of the verbs that take none of that name
_OPTIONS = {
    "--account": "--vc",
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
    "-J": "--name",
    "-c": _NO_CPUS,
    "-d": "--after JOB, --after JOB:ok",
    "-t": "--time-limit, or of hived ps and history --status",
}
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


def option_here(name: str) -> str:
    """What is said of an option that a verb does not have; "": it is none of Slurm's."""
    name = name.partition("=")[0]
    return f"No such option: {name}. What Slurm calls so is here: {_OPTIONS[name]}" if name in _OPTIONS else ""
