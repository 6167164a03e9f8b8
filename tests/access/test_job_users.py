"""Jobs run as who submitted them: under an engine of root as real other users of the machine, and their attacks."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import select
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hived.access import Person
from hived.cli.up import open_jobs
from hived.engine.states import JobState
from hived.engines.local import engine as engine_module
from hived.engines.local import terminal
from hived.engines.local.engine import Engine, Keeping
from hived.engines.local.job_users import JobUsers
from hived.engines.local.model import Job
from hived.engines.local.tasks import supervised
from hived.errors import ForbiddenError
from hived.server.local_service import LocalService
from hived.server.schema import Submission
from hived.spec.compiled import AccessSpec, ClusterSpec

from ..engines.living import STAYS, Lives, ended, state
from ..engines.real import PATIENCE_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

#: two users that every machine has
ANN, BOB = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
#: which they may run; that of the tests may be in a folder that they cannot pass
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""
needs_python = pytest.mark.skipif(not PYTHON, reason="there is no Python that others may run")


def person(user: pwd.struct_passwd) -> Person:
    """A user, who may do everything."""
    return Person(user.pw_name, owns=True, uid=user.pw_uid)


@pytest.fixture
def lives(open_folder: Path) -> Iterator[Lives]:
    made = Lives(open_folder / "state")
    made.folder.mkdir()
    open_jobs(made.folder, None, False)
    yield made
    made.end()


async def submit(engine: Engine, user: pwd.struct_passwd, script: str, **more: Any) -> Job:
    """A job of a user, a shell script."""
    asked = {"vc": "vision", "command": ["sh", "-c", script], "cwd": "/", "name": "job", "environment": {"OWN": "1"}}
    shown = await LocalService(engine).submit(Submission.model_validate(asked | more), person(user))
    return engine.find(shown.id)


async def run(engine: Engine, user: pwd.struct_passwd, script: str, **more: Any) -> str:
    """What a job of a user prints, to its end."""
    job = await submit(engine, user, script, **more)
    await ended(engine, job)
    return output(engine, job)


def output(engine: Engine, job: Job) -> str:
    return LocalService(engine).log(str(job.id), 0, None, 0, 65_536).text


async def prints(engine: Engine, job: Job, word: str) -> None:
    while word not in output(engine, job):
        await asyncio.sleep(0.05)


def test_user_groups_home_and_environment(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_ENGINE", "s3cret")
    script = "id -u; id -g; id -G; umask; ulimit -n; env; touch $HIVED_JOB_DIR/mine && echo made"

    async def story(engine: Engine) -> None:
        text = await run(engine, ANN, script)
        uid, gid, groups, umask, files, *variables, made = text.splitlines()
        assert (int(uid), int(gid)) == (ANN.pw_uid, ANN.pw_gid)
        assert set(map(int, groups.split())) == set(os.getgrouplist(ANN.pw_name, ANN.pw_gid))
        assert (umask, made) == ("0022", "made")
        assert int(files) <= 1024
        found = dict(line.partition("=")[::2] for line in variables)
        assert (found["HOME"], found["USER"], found["OWN"]) == (ANN.pw_dir, ANN.pw_name, "1")
        assert "SECRET_OF_THE_ENGINE" not in found
        own = lives.folder / "jobs" / "1" / "own"
        assert (own / "shared" / "mine").stat().st_uid == ANN.pw_uid
        assert own.stat().st_mode & 0o777 == 0o700
        assert (own / "1" / "0" / "output").stat().st_mode & 0o777 == 0o600

    lives.live(story)


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_umask_of_who_submits(lives: Lives, umask: int) -> None:
    """It was 022 for everybody: what somebody kept to themselves was for all to read."""

    async def story(engine: Engine) -> None:
        assert await run(engine, ANN, "umask", umask=umask) == f"{umask:04o}\n"

    lives.live(story)


#: what a job of another user tries, and gets nothing of
ATTACKS = {
    "reads the output of another's job": "cat {jobs}/1/own/1/0/output",
    "reads the environment in its work": "cat {jobs}/1/1/0/task.json",
    "reads the environment of its processes": "cat /proc/{pid}/environ",
    "lists its folder": "ls {jobs}/1/own",
    "reads the database": "cat {state}/hived.db",
    "reads the token": "cat {state}/token",
    "reads the engine's file of its own work": "cat {jobs}/2/1/0/task.json",
    "kills its own supervisor": "kill -9 $PPID",
    "kills the other's job": "kill -9 {pid}",
    "kills the engine": "kill -9 {engine}",
    "writes how it ended": "echo x > {jobs}/2/1/0/exit",
    "forges a claim": "rm -f {jobs}/2/1/0/claim; echo x > {jobs}/2/1/0/claim",
    "makes a job's folder": "mkdir {jobs}/3",
    "takes its folder away": "mv {jobs}/2/own {jobs}/2/gone",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_attacks(lives: Lives, attack: str) -> None:
    async def story(engine: Engine) -> None:
        (lives.folder / "token").write_text("s3cret")
        (lives.folder / "token").chmod(0o600)
        victim = await submit(engine, ANN, "echo s3cret; exec sleep 600", environment={"PASSWORD": "s3cret"})
        await prints(engine, victim, "s3cret")
        pid = children(engine.task(victim, 0).pid)[0]
        known = {"jobs": lives.folder / "jobs", "state": lives.folder, "pid": pid, "engine": os.getpid()}
        text = await run(engine, BOB, attack.format(**known) + " 2>&1; echo code $?")
        assert "s3cret" not in text
        assert "code " in text
        assert not text.endswith("code 0\n")
        assert victim.state is JobState.RUNNING
        engine.cancel(str(victim.id))
        await ended(engine, victim)

    lives.live(story)


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


LINKS = [
    "cd $HIVED_JOB_DIR/.. && mv 1 gone && ln -s {jobs}/1/own/1 1",
    "cd $HIVED_JOB_DIR/../1/0 && rm output && ln -s {jobs}/1/own/1/0/output output",
    "cd $HIVED_JOB_DIR/../1/0 && rm output && ln -s /etc/shadow output",
    "cd $HIVED_JOB_DIR/../1/0 && rm output && mkfifo output",
    "cd $HIVED_JOB_DIR/.. && rm -r 1 && ln -s /etc 1",
]


def test_links_lead_the_engine_nowhere(lives: Lives) -> None:
    """Who owns the folder of the output can put a link to another user's there: root would have read that for them."""

    async def story(engine: Engine) -> None:
        assert await run(engine, ANN, "echo s3cret") == "s3cret\n"
        for script in LINKS:
            job = await submit(engine, BOB, script.format(jobs=lives.folder / "jobs"))
            await ended(engine, job)
            assert (output(engine, job), job.exit_code) == ("", 0), script

    lives.live(story)


def test_daemons_end_with_their_job(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        job = await submit(
            engine, BOB, "setsid sleep 4321 & setsid sleep 4321 & echo here; exec sleep 600", grace_s=1.0
        )
        await prints(engine, job, "here")
        engine.cancel(str(job.id))
        await ended(engine, job)
        assert "4321" not in " ".join(commands(BOB.pw_uid))

    lives.live(story)


def commands(uid: int) -> list[str]:
    """Of all processes of a user."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == uid:
                found.append(process.joinpath("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_taken_over_after_a_kill(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        await prints(engine, await submit(engine, ANN, "echo here; sleep 600; echo there"), "here")

    async def second(engine: Engine) -> None:
        job = engine.find("1")
        assert job.state is JobState.RUNNING
        task = engine.task(job, 0)
        (child,) = children(task.pid)
        assert Path(f"/proc/{child}").stat().st_uid == ANN.pw_uid
        fd = os.pidfd_open(child)
        os.kill(task.pid, signal.SIGKILL)
        await ended(engine, job)
        assert "supervisor was killed" in job.reason
        assert select.select([fd], [], [], PATIENCE_S)[0]  # the kernel has ended the task with it
        os.close(fd)

    lives.live(first, killed=True)
    lives.live(second)


def test_a_folder_that_the_user_may_not_enter(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        job = await submit(engine, BOB, "echo never", cwd="/root")
        await ended(engine, job)
        assert job.state is JobState.FAILED
        assert "/root: Permission denied" in job.reason

    lives.live(story)


def test_a_state_folder_that_users_cannot_pass(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        lives.folder.chmod(0o700)
        with pytest.raises(ForbiddenError, match=rf"cannot run here: {lives.folder} is shut .*--state /var/lib/hived"):
            await submit(engine, BOB, "true")
        lives.folder.chmod(0o711)

    lives.live(story)


def test_engine_of_another_user_refuses(lives: Lives) -> None:
    """It cannot become them: their jobs would have run as its user, with all that is that user's."""

    async def story(engine: Engine) -> None:
        engine.job_users = JobUsers(BOB.pw_uid)
        with pytest.raises(ForbiddenError, match=rf"jobs of {ANN.pw_name} are not run here: they would run as nobody"):
            await submit(engine, ANN, "true")
        engine.job_users = JobUsers(BOB.pw_uid, shared=True)
        job = await submit(engine, ANN, "true")
        assert (job.spec.user, job.spec.uid) == (ANN.pw_name, BOB.pw_uid)
        await ended(engine, job)

    lives.live(story)


def test_engine_that_is_root_no_more(lives: Lives) -> None:
    """A job of before waits: it is not run as somebody else."""

    async def story(engine: Engine) -> None:
        engine.drain(None, None, False, False)
        job = await submit(engine, ANN, f"id -u > {shlex.quote(str(lives.folder))}/who")
        engine.job_users = JobUsers(BOB.pw_uid)
        engine.drain(None, None, True, False)
        await ended(engine, job)
        assert f"it is a job of {ANN.pw_name}, and the engine runs as nobody" in job.reason
        assert not (lives.folder / "who").exists()

    lives.live(story)


def test_no_user_of_this_machine(lives: Lives) -> None:
    """Who has a token, and is a member, and no user here: whose would their processes be?"""
    vcs = tuple(replace(vc, access=AccessSpec(("*",))) for vc in lives.spec.virtual_clusters)
    lives.spec = replace(lives.spec, virtual_clusters=vcs)

    async def story(engine: Engine) -> None:
        asked = Submission.model_validate({"vc": "vision", "command": ["true"], "cwd": "/"})
        with pytest.raises(ForbiddenError, match=r"mallory is no user of this machine.*useradd mallory"):
            await LocalService(engine).submit(asked, Person("mallory", token="3f"))
        job = await LocalService(engine).submit(asked, Person(ANN.pw_name, token="3f"))
        assert engine.find(job.id).spec.uid == ANN.pw_uid
        await ended(engine, engine.find(job.id))
        await state(engine, engine.find(job.id), JobState.SUCCEEDED)

    lives.live(story)


# -- found by somebody who read the source


def test_a_pipe_in_the_place_of_the_output_of_the_next_attempt(lives: Lives) -> None:
    """Its supervisor waited for a reader, and heard neither cancel nor the time limit: its GPUs were nobody else's."""

    async def story(engine: Engine) -> None:
        script = "cd $HIVED_JOB_DIR/..; mkdir -p 2/0; mkfifo 2/0/output; exit 1"
        job = await submit(engine, BOB, script, retries=1, backoff_s=0.0)
        await ended(engine, job)
        assert job.attempt == 2
        assert "could not be started" in job.reason

    lives.live(story)


def test_stopped_before_it_has_become_its_program(lives: Lives) -> None:
    """A process of the user can stop the one that is, or is about to be, their task: it is ended all the same."""

    async def story(engine: Engine) -> None:
        # others of this user may run beside it: only what is started here
        named = f"*$s.py{lives.folder}*|sleep600{os.getpid()}"
        each = f"read -r of < $p/cmdline; case $of in {named}) kill -STOP ${{p#/proc/}} && echo stopped;; esac"
        stops = f"while :; do for p in /proc/[0-9]*; do {each}; done; done"
        for _ in range(3):
            watcher = await submit(engine, BOB, f"s=supervisor; echo here; {stops} 2> /dev/null")
            await prints(engine, watcher, "here")
            job = await submit(engine, BOB, f"exec sleep 600{os.getpid()}", grace_s=0.2)
            await prints(engine, watcher, "stopped")
            for one in (job, watcher):
                engine.cancel(str(one.id))
                await ended(engine, one)

    lives.live(story)


def test_a_program_that_calls_itself_a_supervisor(lives: Lives) -> None:
    """It was taken for the supervisor of another user's job that had ended, and kept the engine from starting."""

    async def story(engine: Engine) -> None:
        job = await submit(engine, ANN, STAYS)
        await prints(engine, job, "here")  # its supervisor has claimed it
        folder = engine.task(job, 0).folder
        forged = f"exec sh -c 'sleep 600 & echo here; wait' /x/engines/local/supervisor.py {folder}"
        forger = await submit(engine, BOB, forged)
        await prints(engine, forger, "here")
        main = children(engine.task(forger, 0).pid)[0]
        assert folder == Path(Path(f"/proc/{main}/cmdline").read_text().split("\0")[-2])
        assert supervised(main) is None
        assert supervised(engine.task(job, 0).pid) == folder
        for one in (job, forger):
            engine.cancel(str(one.id))
            await ended(engine, one)

    lives.live(story)


def test_folders_that_are_links_are_not_followed(lives: Lives) -> None:
    """Not even to a file of one's own: it may be on a file system of one's own, where a look takes for ever."""

    async def story(engine: Engine) -> None:
        script = "cd $HIVED_JOB_DIR/..; mv 1/0 elsewhere; ln -s ../elsewhere 1/0; echo seen; cat 1/0/output >&2"
        job = await submit(engine, BOB, script)
        await ended(engine, job)
        assert output(engine, job) == ""

    lives.live(story)


def test_no_token_makes_anybody_root(lives: Lives) -> None:
    """An operator who is not root made themselves a token for root, and root a member."""
    vcs = tuple(replace(vc, access=AccessSpec(("*",))) for vc in lives.spec.virtual_clusters)
    lives.spec = replace(lives.spec, virtual_clusters=vcs)

    async def story(engine: Engine) -> None:
        asked = Submission.model_validate({"vc": "vision", "command": ["true"]})
        with pytest.raises(ForbiddenError, match="jobs of root are submitted by root itself"):
            await LocalService(engine).submit(asked, Person("root", token="3f"))

    lives.live(story)


@pytest.mark.parametrize(
    ("group", "mode", "of"), [("", 0o700, None), ("bin", 0o750, "bin"), ("nosuch", 0o700, None), ("bin\0", 0o700, None)]
)
def test_files_that_a_group_may_read(lives: Lives, group: str, mode: int, of: str | None) -> None:
    """As the virtual cluster chooses; a group that there is not reads nothing."""

    async def story(engine: Engine) -> None:
        job = await submit(engine, ANN, "echo here; umask 027; mkdir $HIVED_JOB_DIR/a; echo x > $HIVED_JOB_DIR/a/file")
        await ended(engine, job)
        assert job.state is JobState.SUCCEEDED, job.reason
        own = lives.folder / "jobs" / "1" / "own"
        gid = ANN.pw_gid if of is None else grp.getgrnam(of).gr_gid
        for path in (own, own / "shared", own / "1", own / "1" / "0"):
            assert (path.stat().st_mode & 0o777, path.stat().st_gid, path.stat().st_uid) == (mode, gid, ANN.pw_uid)
        assert (own / "1" / "0" / "output").stat().st_mode & 0o777 == (0o600 if of is None else 0o640)
        assert (own / "shared" / "a" / "file").stat().st_gid == gid

    vcs = tuple(replace(vc, access=AccessSpec(("*",), file_group=group)) for vc in lives.spec.virtual_clusters)
    lives.spec = replace(lives.spec, virtual_clusters=vcs)
    lives.live(story)


def test_files_that_a_group_may_read_no_longer(lives: Lives) -> None:
    """The group read on what it had been allowed to, of jobs that run and that have ended; by a restart too."""

    def allowed(*groups: str) -> ClusterSpec:
        vcs = zip(lives.spec.virtual_clusters, (*groups, "", ""), strict=False)
        return replace(
            lives.spec,
            virtual_clusters=tuple(replace(vc, access=AccessSpec(("*",), file_group=group)) for vc, group in vcs),
        )

    def modes() -> list[tuple[int, int]]:
        found = [(lives.folder / "jobs" / str(number) / "own").stat() for number in (1, 2)]
        return [(one.st_mode & 0o7777, one.st_gid) for one in found]

    bin_, ann = grp.getgrnam("bin").gr_gid, ANN.pw_gid

    async def become(found: list[tuple[int, int]]) -> None:
        while modes() != found:
            await asyncio.sleep(0.02)

    async def first(engine: Engine) -> None:
        jobs = [await submit(engine, ANN, "sleep 0.1", vc=vc) for vc in ("vision", "speech")]
        await ended(engine, *jobs)
        assert modes() == [(0o2750, bin_)] * 2
        waits = await submit(engine, ANN, "true", hold=True)
        service = LocalService(engine)
        assert "- the group bin may read what it prints, in its folder" in service.explain("1").text
        assert (
            "- the group bin may read what it will print (fileGroup of vision)" in service.explain(str(waits.id)).text
        )
        engine.reconfigure(allowed("", "bin"))
        await become([(0o700, ann), (0o2750, bin_)])
        for job in ("1", waits.key):
            assert "may read" not in service.explain(job).text

    async def second(engine: Engine) -> None:
        await become([(0o700, ann)] * 2)

    plain, lives.spec = lives.spec, allowed("bin", "bin")
    lives.live(first, killed=True)
    lives.spec = plain
    lives.live(second)


@needs_python
def test_a_shell_of_whose_terminal_is_gone(lives: Lives) -> None:
    """Who listens at the path of a former terminal, which everybody can read, was let type as the job's user."""
    folder = Path("/tmp") / f"hived-test-{os.getpid()}"
    folder.mkdir()
    shutil.chown(folder, BOB.pw_uid)
    path = str(folder / "s")
    listening = socket.socket(socket.AF_UNIX)

    async def story(engine: Engine) -> None:
        program = shutil.copy(terminal.__file__, folder)  # where it can be read
        command = [PYTHON, "-I", "-S", program, f"{ANN.pw_uid}:{path}", "sh", "-c", "echo opened"]
        job = await submit(engine, ANN, "", command=command)
        await ended(engine, job)
        assert "somebody else listens there by now" in output(engine, job)
        assert job.exit_code == 1

    # SO_PEERCRED is of who called listen
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(BOB.pw_uid, BOB.pw_uid, BOB.pw_uid)
        listening.bind(path)
        os.chmod(path, 0o777)  # noqa: PTH101
        listening.listen(1)
        os.write(writer, b"!")
        signal.pause()
    try:
        assert os.read(reader, 1) == b"!"
        lives.live(story)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
        listening.close()
        shutil.rmtree(folder)


OTHERS_FILE = """
import os, sys, time
file = os.open(sys.argv[1], os.O_PATH)
os.dup2(file, 1)
time.sleep(4)
"""


@needs_python
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_no_file_of_others_is_cut(lives: Lives, open_folder: Path, kind: str) -> None:
    """A task puts what it may not open in the place of its output: root had punched holes into it."""
    victim = open_folder / "victim"
    content = b"x" * (3 << 20)
    if kind == "file":
        victim.write_bytes(content)
        victim.chmod(0o600)
    else:
        os.mkfifo(victim, 0o600)

    async def story(engine: Engine) -> None:
        job = await submit(engine, ANN, "", command=[PYTHON, "-c", OTHERS_FILE, str(victim)])
        await ended(engine, job)
        assert job.exit_code == 0

    if kind == "pipe":
        opened = os.open(victim, os.O_RDONLY | os.O_NONBLOCK)
        lives.live(story, keeping=Keeping(output=1 << 20))
        with select.epoll() as polled:
            polled.register(opened, select.EPOLLIN)
            assert polled.poll(0) == [], "nobody has opened it to write, and closed it"
        os.close(opened)
    else:
        lives.live(story, keeping=Keeping(output=1 << 20))
        assert victim.read_bytes() == content


@needs_python
def test_folders_nested_deep_are_deleted(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """They had ended all deletion for good, and made the engine end with an error."""
    monkeypatch.setattr(engine_module, "DELETE_EVERY_S", 0.05)
    script = "import os\nos.chdir(os.environ['HIVED_JOB_DIR'])\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"

    async def story(engine: Engine) -> None:
        job = await submit(engine, ANN, "", command=[PYTHON, "-c", script])
        await ended(engine, job)
        assert job.exit_code == 0
        while (lives.folder / "jobs" / "1").exists():
            await asyncio.sleep(0.05)

    lives.live(story, keeping=Keeping(files_s=0.0))
