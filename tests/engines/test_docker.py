"""Containers of a real Docker daemon, which starts them for jobs: they end with the job, and have its GPUs alone."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hived.cli.up import open_jobs
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job, JobSpec
from hived.engines.local.strangers import is_of_a_job

from .living import Lives, ended, printed, shell
from .real import PATIENCE_S

pytestmark = [pytest.mark.docker, pytest.mark.smoke]

_BOX = Path("/bin/busybox")
#: runs a container that has no network, which a daemon without a bridge cannot give
RUN = "docker run --network none"
STAY = "sleep 1000"


def _why_not() -> str:
    if os.geteuid() != 0:
        return "only root starts Docker's daemon"
    lacking = [name for name in ("dockerd", "docker", "busybox") if not shutil.which(name)]
    return f"not installed: {', '.join(lacking)} (docker.io, busybox-static)" if lacking else ""


class Docker:
    """A daemon of this test's own, in a folder, with one image: ``box``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, f"unix://{folder}/d.sock"
        self.start()
        with tarfile.open(folder / "box.tar", "w") as tar:
            tar.add(_BOX, "bin/busybox")
            for name in ("sh", "sleep", "echo", "cat", "env"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        self("import", str(folder / "box.tar"), "box")

    def start(self) -> None:
        """Begin, or begin again."""
        folder = self.folder
        options = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"]
        folders = [f"--{name}={folder}/{name}" for name in ("data-root", "exec-root", "pidfile")]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(["dockerd", f"--host={self.host}", *options, *folders], stderr=log)
        last = time.monotonic() + PATIENCE_S
        while self("version", check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > last:
                pytest.skip(f"dockerd does not run here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.05)

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", "--host", self.host, *words], capture_output=True, text=True, check=check)

    def running(self) -> list[str]:
        """Names of the containers that run."""
        return self("ps", "--format", "{{.Names}}").stdout.split()

    def pid(self, name: str) -> int:
        return int(self("inspect", "--format", "{{.State.Pid}}", name).stdout)

    def job(self, script: str, **more: Any) -> JobSpec:
        environment = {"DOCKER_HOST": self.host, "PATH": os.environ["PATH"], "HOME": "/nowhere"}
        return shell("vision", script, environment=environment, **more)

    def remove_all(self) -> None:
        """Remove all containers, also those that run."""
        if found := self("ps", "--all", "--quiet").stdout.split():
            self("rm", "--force", *found)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Docker]:
    if why := _why_not():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="hived-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # other users look for its socket there
        made = Docker(Path(folder))
        yield made
        made.end()


@pytest.fixture
def docker(daemon: Docker) -> Iterator[Docker]:
    yield daemon
    daemon.remove_all()


def _gate(engine: Engine, job: Job) -> int:
    """Pid of what stands between a job and Docker."""
    supervisor = engine.task(job, 0).pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return next(int(pid) for pid in children if "docker_gate" in Path(f"/proc/{pid}/cmdline").read_text())


async def _none_runs(docker: Docker) -> None:
    while docker.running():
        await asyncio.sleep(0.05)


def test_a_container_in_the_background_ends_with_its_job(lives: Lives, docker: Docker) -> None:
    """And is there as a stopped one, with what it has printed; one of somebody else's runs on."""
    docker("run", "--detach", "--network=none", "--name=others", "box", "sleep", "1000")

    async def story(engine: Engine) -> None:
        job = engine.submit(docker.job(f"{RUN} -d --name own box sh -c 'echo mine; {STAY}'; docker ps; echo here"))
        (done,) = await ended(engine, job)
        assert done.state is JobState.SUCCEEDED
        assert " own\n" in await printed(engine, job, "here")
        assert docker.running() == ["others"]
        assert docker("logs", "own").stdout == "mine\n"

    lives.live(story)


def test_one_that_docker_starts_again_and_again(lives: Lives, docker: Docker) -> None:
    async def story(engine: Engine) -> None:
        script = (
            f"{RUN} -d --restart always --name aa box sleep 1000; {RUN} -d --name bb box sleep 1000; docker pause bb"
        )
        await ended(engine, engine.submit(docker.job(script)))
        assert docker.running() == []
        assert docker("inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", "aa").stdout.strip() == "no"

    lives.live(story)


@pytest.mark.parametrize("also", ["", "its gate"])
def test_its_supervisor_is_killed(lives: Lives, docker: Docker, also: str) -> None:
    """What stands between ends the containers, and where that was killed too the engine does."""

    async def story(engine: Engine) -> None:
        script = f"{RUN} -d --restart always box sleep 1000; echo here; exec sleep 1000"
        job = engine.submit(docker.job(script))
        await printed(engine, job, "here")
        if also:
            gate, supervisor = _gate(engine, job), engine.task(job, 0).pid
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(gate, signal.SIGKILL)
            os.kill(supervisor, signal.SIGKILL)
        else:
            os.kill(engine.task(job, 0).pid, signal.SIGKILL)
        await ended(engine, job)
        await _none_runs(docker)

    lives.live(story)


def test_supervisor_and_gate_are_killed_while_no_engine_runs(lives: Lives, docker: Docker) -> None:
    script = f"{RUN} -d box sleep 1000; echo here; exec sleep 1000"
    (job,) = lives.killed_with(docker.job(script))
    engine = lives.engines[-1]
    gate, supervisor = _gate(engine, job), engine.task(job, 0).pid
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(gate, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    assert len(docker.running()) == 1

    async def story(engine: Engine) -> None:
        await ended(engine, job)
        await _none_runs(docker)

    lives.live(story)


@pytest.mark.parametrize("engine_ends", [False, True])
def test_the_daemon_is_away_when_the_job_ends(lives: Lives, docker: Docker, engine_ends: bool) -> None:
    """It starts its containers again when it is back: they are ended then, also by the next engine."""

    async def story(engine: Engine) -> None:
        job = engine.submit(
            docker.job(f"{RUN} -d --restart always --stop-timeout 0 box {STAY}; echo here; exec {STAY}")
        )
        await printed(engine, job, "here")
        docker.end()
        engine.cancel(str(job.id))
        await ended(engine, job)
        if not engine_ends:
            await back(engine)

    async def back(engine: Engine) -> None:
        await asyncio.to_thread(docker.start)
        while docker("ps", "--all", "--format", "{{.State}}").stdout.split() != ["exited"]:
            await asyncio.sleep(0.1)
        while list((engine.folder / "containers").iterdir()):
            await asyncio.sleep(0.1)

    lives.live(story)
    if engine_ends:
        lives.live(back)


def test_one_that_was_stopped_is_not_started_by_the_next_daemon(lives: Lives, docker: Docker) -> None:
    async def story(engine: Engine) -> None:
        script = f"{RUN} -d --restart always --name aa box sleep 1000; docker stop -t 0 aa"
        await ended(engine, engine.submit(docker.job(script)))

    lives.live(story)
    docker.end()
    docker.start()
    assert docker.running() == []
    assert docker("inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", "aa").stdout.strip() == "no"


def test_a_daemon_that_hangs_keeps_no_gpu_of_who_does_not_use_it(lives: Lives, docker: Docker) -> None:
    pid = int((docker.folder / "pidfile").read_text())

    async def story(engine: Engine) -> None:
        job = engine.submit(docker.job("echo here"))
        other = engine.submit(docker.job(f"{RUN} -d box sleep 1000; echo here; exec sleep 1000"))
        await printed(engine, job, "here")
        await printed(engine, other, "here")
        os.kill(pid, signal.SIGSTOP)
        try:
            last = engine.submit(docker.job("true"))
            engine.cancel(str(other.id))
            await ended(engine, job, other, last)
        finally:
            os.kill(pid, signal.SIGCONT)
        await _none_runs(docker)

    lives.live(story)


def test_a_job_that_kills_what_ends_its_containers(lives: Lives, docker: Docker) -> None:
    async def story(engine: Engine) -> None:
        script = f"{RUN} -d box sleep 1000; echo here; pkill -9 -s $(pgrep -nf docker_gate.py); exec sleep 1000"
        job = engine.submit(docker.job(script))
        await printed(engine, job, "here")
        engine.cancel(str(job.id))
        await ended(engine, job)
        assert docker.running() == []

    lives.live(story)


def test_who_runs_in_the_foreground_has_its_grace(lives: Lives, docker: Docker) -> None:
    """Docker's client passes the signal on, so the first process of the container saves its state."""

    async def story(engine: Engine) -> None:
        inside = "trap 'sleep 0.5; echo saved; exit 3' TERM; echo here; while :; do sleep 0.05; done"
        job = engine.submit(docker.job(f'exec {RUN} --rm box sh -c "{inside}"', grace_s=20.0))
        await printed(engine, job, "here")
        engine.cancel(str(job.id))
        await ended(engine, job)
        assert "saved" in await printed(engine, job, "here")
        assert job.endings[0]["code"] == 3
        await _none_runs(docker)

    lives.live(story)


def test_what_is_said_to_a_container_and_what_it_answers(lives: Lives, docker: Docker) -> None:
    """Streams in both directions, of which one ends first; and what has another status."""

    async def story(engine: Engine) -> None:
        script = (
            f"seq 200000 | {RUN} -i --rm box cat | tail -n 1; {RUN} -d --name aa box sleep 1000 > /dev/null;"
            "echo words | docker exec -i aa cat; docker rm -f aa; docker rm aa; echo $?; echo here"
        )
        job = engine.submit(docker.job(script))
        await ended(engine, job)
        assert (await printed(engine, job, "here")).split("\n")[:3] == ["200000", "words", "aa"]

    lives.live(story)


def test_containers_of_others_are_not_started(lives: Lives, docker: Docker) -> None:
    docker("create", "--network=none", "--name=others", "box", "sleep", "1000")

    async def story(engine: Engine) -> None:
        script = (
            f"docker start others; docker start none; docker create --network none --name own box {STAY};"
            "docker start own; docker restart -t 0 own; docker ps --format '{{.Names}} runs'; echo here"
        )
        job = engine.submit(docker.job(script))
        await ended(engine, job)
        said = await printed(engine, job, "here")
        assert "hived: others was not made by this run of this job" in said
        assert "No such container: none" in said
        assert "own runs\n" in said
        assert docker.running() == []

    lives.live(story)


def test_containers_have_the_gpus_of_their_job(lives: Lives, docker: Docker) -> None:
    """Of the others it says that they are not; there is no GPU here, so Docker has no driver for those that are."""

    async def story(engine: Engine) -> None:
        other = "--gpus device=77"
        script = (
            f"{RUN} -e NVIDIA_VISIBLE_DEVICES=all box env; {RUN} {other} box true; {RUN} --gpus 3 box true;"
            f"{RUN} --gpus all box true; echo own $HIVED_DEVICES; echo here"
        )
        job = engine.submit(docker.job(script, gpus=2))
        await ended(engine, job)
        said = await printed(engine, job, "here")
        own = next(line.split()[1] for line in said.split("\n") if line.startswith("own "))
        assert f"NVIDIA_VISIBLE_DEVICES={own}\n" in said
        assert "GPU 77 is not this job's" in said
        assert "3 GPUs are asked for, and this job has 2" in said
        assert "could not select device driver" in said

    lives.live(story)


def test_a_container_on_a_gpu_is_a_jobs_while_that_runs(lives: Lives, docker: Docker) -> None:
    """By what the daemon has given it: who only says so in its environment is a stranger."""
    forged = "HIVED_TASK=of-no-task"
    docker("run", "--detach", "--network=none", "--name=others", "-e", forged, "box", "sleep", "1000")

    async def story(engine: Engine) -> None:
        script = f"{RUN} -d --name own box sh -c '{STAY}; true'; env > $HIVED_JOB_DIR/has; echo here; exec sleep 1000"
        job = engine.submit(docker.job(script))
        await printed(engine, job, "here")

        def ours(name: str) -> bool:
            return is_of_a_job(docker.pid(name), engine.folder, engine._owner)

        inner = docker("top", "own", "-eo", "pid,comm").stdout.split("\n")[-2].split()[0]
        assert (ours("own"), ours("others")) == (True, False)
        assert is_of_a_job(int(inner), engine.folder, engine._owner)
        marked = {"HIVED_TASK": engine.task(job, 0).mark}
        with subprocess.Popen(["sleep", "1000"], env=marked) as stranger:
            assert not is_of_a_job(stranger.pid, engine.folder, engine._owner)
            stranger.kill()
        engine.cancel(str(job.id))
        await ended(engine, job)

    lives.live(story)


def test_who_may_not_use_docker_may_not_here(docker: Docker, open_folder: Path) -> None:
    """A job of another user uses it as that user: by the group of the daemon's socket."""
    from ..access.test_job_users import ANN, run

    lives = Lives(open_folder / "state")
    lives.folder.mkdir()
    open_jobs(lives.folder, None, False)
    socket = Path(docker.host.removeprefix("unix://"))
    try:
        said = {}
        for gid in (0, pwd.getpwuid(ANN.pw_uid).pw_gid):
            os.chown(socket, 0, gid)

            async def story(engine: Engine) -> str:
                sent = {"DOCKER_HOST": docker.host, "PATH": os.environ["PATH"]}
                return await run(engine, ANN, f"{RUN} -d box sleep 1000 && docker ps", environment=sent)

            said[gid] = lives.live(story)
        assert "permission denied" in said.pop(0)
        assert "sleep 1000" in next(iter(said.values()))
        assert docker.running() == []
    finally:
        os.chown(socket, 0, 0)
        lives.end()
