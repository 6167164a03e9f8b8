"""Jobs share devices while engines and jobs are killed, and jobs are stopped by others: their own lines say who ran.

The device of a mini-batch is what the engine's record said while it lasted. No line of two jobs may overlap on more
devices than there are, but of guests of those that have them; nobody may be lost, and nothing may be left behind, nor
stand still for ever.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engines.local.environment import MARK, environments
from hived.engines.local.store import Store

from .living import record_faults
from .real import PATIENCE_S

DEVICES, JOBS, STEP_S = 3, 5, 0.02
TRAINER = Path(__file__).with_name("trainer.py")


TURNS, GUESTS = "gandiva:quantum_s=0.4:packs=false", "antman:window_s=0:settle_s=1.5:step_s=0.5"


class Turns:
    """One run, in a folder."""

    def __init__(self, folder: Path, seed: int, policy: str) -> None:
        self.policy = policy
        self.state, self.log = folder / "state", folder / "engine.log"
        self.choose = random.Random(seed)
        self.killed = {"engine": 0, "job": 0, "stopped": 0}

    def start(self) -> None:
        """An engine, once it answers."""
        command = [
            sys.executable, "-m", "hived", "up", "--devices", str(DEVICES), "--vc", f"team={DEVICES}", "--policy",
            self.policy, "--state", str(self.state), "-q",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.engine = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        last = time.monotonic() + PATIENCE_S
        while True:
            assert self.engine.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < last
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.state / "hived.sock")) == 0:
                    break
            time.sleep(0.01)
        transport = httpx.HTTPTransport(uds=str(self.state / "hived.sock"))
        self.client = httpx.Client(transport=transport, base_url="http://hived", timeout=PATIENCE_S)

    def kill_engine(self) -> None:
        """And start another."""
        self.client.close()
        self.engine.kill()
        self.engine.wait(PATIENCE_S)
        self.killed["engine"] += 1
        time.sleep(self.choose.choice((0.0, 0.0, 0.5)))
        self.start()

    def keep_jobs(self) -> None:
        """As many jobs as there are to be."""
        active = self.client.get("/v1/jobs", params={"phase": ["waiting", "holding"], "limit": 100}).json()["jobs"]
        for number in range(JOBS - len(active)):
            command = [sys.executable, str(TRAINER), str(STEP_S)]
            body = {"vc": "team", "command": command, "cwd": "/", "name": "train", "grace_s": 2.0}
            owners = sum(job["priority"] >= 0 for job in active) + number
            if self.policy == GUESTS:
                body |= {"priority": -1} if owners >= DEVICES else {"early": self.choose.random() < 0.5}
            assert self.client.post("/v1/jobs", json=body).status_code == 201

    def pids(self) -> list[int]:
        """Of the training processes that live."""
        with suppress(OSError):
            return [int(page.stem) for page in (self.state / "training").glob("*/*.page")]
        return []

    def happen(self) -> None:
        """Something goes wrong, or somebody interferes."""
        pids = self.pids()
        match self.choose.randrange(8):
            case 0:
                self.kill_engine()
            case 1 if pids:
                self.signal(self.choose.choice(pids), signal.SIGKILL)
                self.killed["job"] += 1
            case 2 | 3 if pids:
                self.signal(pid := self.choose.choice(pids), signal.SIGSTOP)
                time.sleep(self.choose.uniform(0, 0.6))
                self.signal(pid, signal.SIGCONT)
                self.killed["stopped"] += 1
            case 4:
                jobs = self.client.get("/v1/jobs", params={"phase": "holding"}).json()["jobs"]
                if jobs:
                    ref = self.choose.choice(jobs)["id"]
                    self.client.post(f"/v1/jobs/{ref}/suspend", json={"timeout_s": 1.0})
                    self.client.post(f"/v1/jobs/{ref}/resume", json={"timeout_s": 1.0})
            case 5:
                jobs = self.client.get("/v1/jobs", params={"phase": "holding"}).json()["jobs"]
                if jobs:
                    self.client.post(f"/v1/jobs/{self.choose.choice(jobs)['id']}/cancel")
            case _:
                time.sleep(self.choose.uniform(0, 0.8))

    def signal(self, pid: int, number: int) -> None:
        """To a process that may have ended."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def all_go_on(self) -> None:
        """Every job ends more mini-batches: nobody stands still for good."""
        before: dict[str, int] = {}
        last = time.monotonic() + PATIENCE_S
        while True:
            there = self.client.get("/v1/jobs", params={"phase": ["waiting", "holding"], "limit": 100}).json()["jobs"]
            ids = [job["id"] for job in there if job["state"] != "stopping"]  # one may have been killed just now
            for number in ids:
                before.setdefault(number, len(self.lines(number)))
            late = [number for number in ids if len(self.lines(number)) < before[number] + 5]
            if not late:
                return
            assert time.monotonic() < last, f"{late} do not go on: {there}"
            time.sleep(0.1)

    def lines(self, number: str) -> list[float]:
        """When mini-batches of a job ended, of all its attempts."""
        found = []
        for output in (self.state / "jobs" / number).glob("*/0/output"):
            words = [line.split() for line in output.read_text().splitlines()]
            found += [float(of[1]) for of in words if len(of) == 2]
        return found

    def end(self) -> None:
        """All are cancelled, and nothing is left."""
        jobs = self.client.get("/v1/jobs", params={"phase": ["waiting", "holding"], "limit": 100}).json()["jobs"]
        for job in jobs:
            self.client.post(f"/v1/jobs/{job['id']}/cancel")
        last = time.monotonic() + PATIENCE_S
        while self.client.get("/v1/jobs", params={"phase": ["waiting", "holding"]}).json()["total"]:
            assert time.monotonic() < last, self.client.get("/v1/jobs", params={"phase": ["holding"]}).text
            time.sleep(0.1)
        self.client.close()
        self.engine.send_signal(signal.SIGTERM)
        assert self.engine.wait(PATIENCE_S) == 143

    def check(self) -> None:
        """Their own lines, the record, and what is left of processes."""
        with closing(Store(self.state)) as store:
            jobs, _ = store.jobs(JobFilter(), 1 << 40, None)
            mark = store.value("mark")
            assert record_faults(store)[0] == []
        owners = {str(job.id) for job in jobs if job.spec.priority >= 0 and not job.spec.early}
        changes: list[tuple[float, int]] = []
        for folder in (self.state / "jobs").iterdir():
            for at in self.lines(folder.name) if folder.name in owners else ():
                changes += [(at - STEP_S, 1), (at, -1)]
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        assert most == DEVICES, f"{most} jobs ran at once on {DEVICES} devices"
        ended = {job.state for job in jobs}
        assert ended <= {JobState.CANCELLED, JobState.FAILED}, ended
        left = [pid for pid, of in environments() if any(word.startswith(f"{MARK}={mark}/".encode()) for word in of)]
        assert left == []


@pytest.mark.parametrize(
    "kills", [pytest.param(8, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.release)]
)
@pytest.mark.parametrize("policy", [TURNS, GUESTS], ids=["turns", "guests"])
def test_sharing_survives_whatever_is_killed(tmp_path: Path, kills: int, policy: str) -> None:
    """``kills``: with signal 9, of the engine and of jobs, among stops, suspensions and cancellations."""
    turns, number = Turns(tmp_path, 5, policy), 0
    turns.start()
    try:
        while turns.killed["engine"] + turns.killed["job"] < kills:
            turns.keep_jobs()
            turns.happen()
            number += 1
            if number % 20 == 0:
                turns.keep_jobs()
                turns.all_go_on()
        turns.end()
    finally:
        turns.engine.kill()
    turns.check()
    print(f"{number} happenings: {turns.killed}")
    assert all(turns.killed.values()), turns.killed
