"""Many short jobs, and an engine that is killed (SIGKILL) at random moments: is anything lost, or done twice?

Every job is a small shell script that writes a line when it starts and when it ends, and takes a lock (flock) on each
of its devices: the kernel lets go of a lock only when every process that has it is gone. So the files say what really
happened, whatever the engine believes; :meth:`Chaos.check` compares the two.
"""

from __future__ import annotations

import math
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engines.local.environment import MARK
from hived.engines.local.model import Job
from hived.engines.local.store import Store
from hived.engines.local.tasks import Key

from .living import record_faults
from .real import PATIENCE_S

VCS = (("a", 4), ("b", 2), ("c", 2))

#: $1 file for lines, $2 folder of the device locks, $3 seconds, $4 attempts that fail first
SCRIPT = r"""
n=3
for d in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
  eval "exec $n>>\"$2/$d\""
  flock -n $n || echo "held-twice $HIVED_JOB_ID $HIVED_ATTEMPT $HIVED_RANK $d" >> "$1"
  n=$((n+1))
done
echo "start $HIVED_JOB_ID $HIVED_ATTEMPT $HIVED_RANK $$" >> "$1"
sleep "$3"
[ "$HIVED_RETRIES" -lt "$4" ] && { echo "fail $HIVED_JOB_ID $HIVED_ATTEMPT $HIVED_RANK $$" >> "$1"; exit 7; }
trap '' TERM
echo "end $HIVED_JOB_ID $HIVED_ATTEMPT $HIVED_RANK $$" >> "$1"
"""


class Chaos:
    """One run: its folder, and what was counted."""

    def __init__(self, folder: Path, jobs: int, kills: int, seed: int) -> None:
        self.folder, self.jobs, self.kills, self.seed = folder, jobs, kills, seed
        self.state = folder / "state"  #: the engine's folder
        self.lines = folder / "lines"  #: what the jobs write
        self.killed = 0
        self.found: list[str] = []  #: violations, in words
        self.counts: Counter[str] = Counter()
        self._startup = 1.0  #: how long the last start took
        self._unsure: dict[str, object] | None = None  #: a submission that nobody has answered yet

    # -- making it happen -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Submit, kill, start again, until all jobs have ended; then :meth:`check`."""
        generator = random.Random(self.seed)
        (self.folder / "devices").mkdir()
        (self.folder / "job.sh").write_text(SCRIPT)
        self.lines.touch()
        waiting = list(self._submissions(generator))[::-1]
        while True:
            engine = self._start()
            if self._one_life(engine, waiting, generator):
                break
            engine.kill()
            assert engine.wait(PATIENCE_S) == -signal.SIGKILL, (self.folder / "engine.log").read_text()[-2000:]
            self.killed += 1
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(PATIENCE_S) == 143
        self.check()

    def _one_life(
        self, engine: subprocess.Popen[bytes], waiting: list[dict[str, object]], generator: random.Random
    ) -> bool:
        """Until it is time to kill (False), or all is done (True)."""
        started = time.monotonic()
        early = generator.random() < 0.25 and self.killed < self.kills  # while it takes over what the last one left
        last = started + generator.uniform(0.6, 1.05) * self._startup if early else math.inf
        while not self._answers():
            assert engine.poll() is None, (self.folder / "engine.log").read_text()[-2000:]
            if time.monotonic() > last:
                return False
            time.sleep(0.005)
        self._startup = time.monotonic() - started
        if self.killed < self.kills:
            last = time.monotonic() + generator.choice((0.1, 2.0, 8.0)) * generator.random()
        with self._client() as client:
            if self._unsure is not None:  # the engine was killed under this submission: did it count?
                if client.get(f"/v1/jobs/{self._unsure['name']}").status_code == 404:
                    waiting.append(self._unsure)
                self._unsure = None
            while time.monotonic() < last:
                for _ in range(generator.randrange(40)):
                    if not waiting or time.monotonic() > last:
                        break
                    self._unsure = waiting.pop()
                    # in the middle of it, now and then: the answer never comes
                    if self.killed < self.kills and generator.random() < 0.002:
                        threading.Timer(generator.random() * 0.005, engine.kill).start()
                    try:
                        answer = client.post("/v1/jobs", json=self._unsure)
                    except httpx.TransportError:
                        return False
                    assert answer.status_code == 201, answer.text
                    self._unsure = None
                if not waiting and self.killed >= self.kills and self._left(client) == 0:
                    return True
                time.sleep(0.05)
        return False

    def _submissions(self, generator: random.Random) -> Iterator[dict[str, object]]:
        for number in range(self.jobs):
            vc, size = generator.choice(VCS)
            kind = generator.random()
            tasks = 2 if kind > 0.95 else 1
            yield {
                "name": f"j{number}",
                "vc": vc,
                "gpus": generator.choice([n for n in (1, 1, 1, 2, 4) if n * tasks <= size]),
                "tasks": tasks,
                "priority": generator.choice((-1, 0, 0, 0, 0, 0, 3)),
                "command": [
                    "sh", str(self.folder / "job.sh"), str(self.lines), str(self.folder / "devices"),
                    f"{generator.choice((0, 0.01, 0.05, 0.2)):g}", "1" if kind < 0.04 else "0",
                ],
                "cwd": str(self.folder),
                "retries": 1,
                "backoff_s": 0.2,
                "grace_s": 1.0,
            }  # fmt: skip

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "hived", "up", "--devices", "8", "--state", str(self.state), "-q"]
        for name, gpus in VCS:
            command += ["--vc", f"{name}={gpus}"]
        with (self.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.state / "hived.sock"))
        return httpx.Client(transport=transport, base_url="http://hived", timeout=PATIENCE_S)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.state / "hived.sock")) == 0

    def _left(self, client: httpx.Client) -> int:
        counts = client.get("/v1/usage").json()["jobs"]
        return sum(number for state, number in counts.items() if not JobState(state).ended)

    # -- what really happened -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the lines of the jobs with the engine's record; whatever does not agree is in ``found``."""
        starts: Counter[Key] = Counter()
        ends: Counter[Key] = Counter()
        for line in self.lines.read_text().splitlines():
            word, job, attempt, rank, _ = line.split()
            key = (int(job), int(attempt), int(rank))
            if word == "held-twice":
                self.found.append(f"a device is held twice: {line}")
            elif word == "start":
                starts[key] += 1
            elif word == "end":
                ends[key] += 1
        for key, times in (*starts.items(), *ends.items()):
            if times != 1:
                self.found.append(f"task {key} started or ended {times} times")
        with closing(Store(self.state)) as store:
            told = {(event.job, event.data["attempt"]) for event in store.events(0, 1 << 40, None)
                    if event.kind == "stopping"}  # fmt: skip
            jobs, _ = store.jobs(JobFilter(), 1 << 40, None)
            faults, counts = record_faults(store)
            mark = store.value("mark")
        if len(jobs) != self.jobs:
            self.found.append(f"{self.jobs} jobs were submitted, and {len(jobs)} are known")
        if len({found.name.rpartition("-")[0] for found in jobs}) != len(jobs):
            self.found.append("a job was taken in twice")
        by_job: dict[int, list[Key]] = defaultdict(list)
        for key in starts:
            by_job[key[0]].append(key)
        for found in jobs:
            self._check_job(found, by_job[found.id], ends, told)
        self.found += faults
        self.counts += counts
        self._check_processes(f"{MARK}={mark}/".encode())

    def _check_job(self, job: Job, starts: list[Key], ends: Counter[Key], told: set[tuple[int, int]]) -> None:
        self.counts[job.state.value] += 1
        if job.state is not JobState.SUCCEEDED:
            self.found.append(f"{job.name} {job.state.value}: {job.reason}")
            return
        whole = sum(ends[job.id, job.attempt, rank] for rank in range(job.spec.tasks))
        if whole != job.spec.tasks:
            self.found.append(f"{job.name} succeeded, and {whole} of its {job.spec.tasks} tasks came to their end")
        for _, attempt, rank in starts:
            if attempt > job.attempt:
                self.found.append(f"{job.name} started attempt {attempt}, of which nobody knows")
            # else it ended in the moment in which it was told to stop, or another task of its gang failed
            excused = (job.id, attempt) in told or job.retries > 0
            if attempt < job.attempt and ends[job.id, attempt, rank] and not excused:
                self.found.append(f"{job.name} came to its end twice, and nobody had told it to stop")

    def _check_processes(self, mark: bytes) -> None:
        """Of tasks, by their mark, and of supervisors and engines, by the folder in their command lines."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if mark in (process / "environ").read_bytes() or str(self.state).encode() in command:
                    self.found.append(f"a process is left: {command!r}")


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [pytest.param(100, 9, marks=pytest.mark.slow), pytest.param(10_000, 200, marks=pytest.mark.release)],
)
def test_every_job_runs_to_its_end_once(tmp_path: Path, jobs: int, kills: int) -> None:
    """An engine that is killed at random moments loses nothing and does nothing twice."""
    chaos = Chaos(tmp_path, jobs, kills, seed=7)
    chaos.run()
    assert not chaos.found[:20]
    assert chaos.killed == kills
    assert chaos.counts["succeeded"] == jobs
    assert chaos.counts["lives"] > kills // 2, "most engines were killed before they had begun: nothing was tried"
