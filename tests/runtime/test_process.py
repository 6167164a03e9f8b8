"""One training process and its commands: nothing is used while it is suspended, nothing of ours ends it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from hived.control.commands import NotYetError, RefusedError
from hived.control.folder import started_at
from hived.control.page import Command, State, Wanted
from hived.control.stopping import descendants
from hived.errors import ConflictError

from .jobs import Job, alone, differences, environment, until

#: an ordinary script, which takes its time until it is to hurry
TRAIN = """
import light_torch, sys, time, torch
from pacing import pace
from pathlib import Path
hurry = Path(sys.argv[1] + ".hurry")
torch.manual_seed(1)
{prologue}
layers = torch.nn.Linear(200, {width}), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear({width}, 5)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
steps = 0
losses = []
{loop}
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 200)), torch.randint(0, 5, (32,)))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    steps += 1
    {body}
torch.save(dict(model=model.state_dict(), losses=losses, steps=steps), sys.argv[1])
{epilogue}
"""

PACE = "pace(steps, 500, hurry)"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a script made of :data:`TRAIN`: by default 500 steps."""
    jobs: list[Job] = []

    def start(*options: str, variables: dict[str, str] | None = None, **parts: Any) -> Job:
        usual = {"prologue": "", "width": 300, "loop": "for step in range(500):", "body": PACE, "epilogue": ""}
        parts = {**usual, **parts}
        file = tmp_path / "train.py"
        file.write_text(TRAIN.format(**parts))
        command = [sys.executable, str(file), str(tmp_path / "result.pt")]
        job = Job(tmp_path / "jobs", "train", command, *options, **(variables or {}))
        jobs.append(job)
        job.trains(3)
        return job

    yield start
    for job in jobs:
        job.close()


def finish(job: Job) -> None:
    """Train to the end, as fast as it can."""
    job.hurry()
    job.ended()


def result(job: Job) -> Any:
    finish(job)
    return torch.load(job.log.parent / "result.pt", weights_only=False)


def expected(job: Job) -> Any:
    folder = job.log.parent
    return alone(folder / "train.py", folder / "alone.pt")


def assert_same_as_alone(job: Job) -> None:
    assert differences(expected(job), result(job)) == []


def used_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def own_memory(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("RssAnon"))) * 1024


def pid_of(job: Job) -> int:
    return job.job.status().processes[0].pid


# -- suspended --------------------------------------------------------------------------------------------------------


def test_suspended_process_uses_nothing(run: Callable[..., Job]) -> None:
    job = run(
        width=60_000,
        loop="for step in range(12):",
        body="pass",
        prologue=(
            "import threading\n"
            "threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()\n"
            "loader = torch.utils.data.DataLoader(list(range(100_000)), num_workers=2)\n"
            "batches = iter(loader)"
        ),
    )
    before = own_memory(pid_of(job))
    job.job.suspend(60)
    pid = pid_of(job)
    answer = job.job.status().processes[0].answer
    assert (answer.state, answer.tier) == (State.SUSPENDED, "framework")
    processes = [pid, *descendants(pid)]
    assert len(processes) >= 3, "its loader has two workers"
    state = 60_000 * 206 * 4 * 3  # weights and two moments of AdamW, in bytes
    assert answer.moved_bytes >= state
    assert own_memory(pid) < before - 0.9 * state
    time.sleep(0.1)
    ticks = {each: used_ticks(each) for each in processes}
    time.sleep(0.5)
    assert {each: used_ticks(each) for each in processes} == ticks
    assert all(Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T" for each in processes)
    job.job.resume(60)
    until(lambda: own_memory(pid) > before - 0.1 * state)
    assert_same_as_alone(job)


def test_signal_handlers_find_tensors(run: Callable[..., Job]) -> None:
    job = run(
        prologue=(
            "import signal\n"
            "def saved(number, frame):\n"
            "    torch.save(model.state_dict(), sys.argv[1] + f'.{number}')\n"
            "    if number == signal.SIGINT: raise ValueError('enough')\n"
            "signal.signal(signal.SIGTERM, saved), signal.signal(signal.SIGINT, saved)\n"
            "Path(sys.argv[1] + '.ready').touch()"
        ),
        loop="while True:",
    )
    saved = job.log.parent / "result.pt"
    job.job.suspend(60)
    os.kill(pid_of(job), signal.SIGTERM)
    os.kill(pid_of(job), signal.SIGCONT)  # as supervisors do: the handler runs, and it is suspended again
    until(Path(f"{saved}.15").exists)
    until(lambda: job.job.status().processes[0].answer.state is State.SUSPENDED)
    os.kill(pid_of(job), signal.SIGINT)
    job.job.resume(60)
    assert job.process.wait(120) != 0
    assert "ValueError: enough" in job.output(), "what a handler raises is the script's"
    for number in (15, 2):
        weights = torch.load(f"{saved}.{number}")["0.weight"]
        assert weights.shape == (300, 200)
        assert weights.abs().sum() > 0


def test_resume_calls_off_a_suspension(run: Callable[..., Job]) -> None:
    job = run(body="time.sleep(5 if steps == 12 else 0.02)", loop="for step in range(40):")
    until(lambda: job.mini_batches() >= 11)
    time.sleep(0.3)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(job.job.suspend, 60.0)
        time.sleep(0.3)
        job.job.resume(5)
        with pytest.raises(ConflictError, match="has been given another command meanwhile"):
            waiting.result(5)
    assert job.job.status().processes[0].answer.state is State.RUNNING
    assert_same_as_alone(job)


def test_suspended_without_its_folder(run: Callable[..., Job]) -> None:
    job = run()
    job.job.suspend(60)
    pid = pid_of(job)
    shutil.rmtree(job.folder.path)
    os.kill(pid, signal.SIGCONT)
    assert_same_as_alone(job)


def test_foreign_sigcont_stops_again(run: Callable[..., Job]) -> None:
    job = run()
    job.job.suspend(60)
    pid, steps = pid_of(job), job.mini_batches()
    os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert job.mini_batches() == steps
    job.job.resume(60)
    assert_same_as_alone(job)


def test_expired_lease_ends_suspension(run: Callable[..., Job]) -> None:
    job = run("--share", "90%")
    job.job.limit(share=0.5)
    job.job.suspend(60, lease_s=3.0)
    steps = job.mini_batches()
    time.sleep(0.5)
    assert job.job.status().processes[0].answer.state is State.SUSPENDED
    until(lambda: job.mini_batches() > steps, 10, "the kernel has not woken it")
    answer = job.job.status().processes[0].answer
    assert (answer.state, answer.share) == (State.RUNNING, 0.5), "a limit without a lease holds on"
    assert_same_as_alone(job)


def test_renewed_lease_ends_later(run: Callable[..., Job]) -> None:
    job = run()
    job.job.suspend(60)  # until it is taken back
    steps = job.mini_batches()
    job.job.suspend(60, lease_s=1.5)
    job.job.suspend(60, lease_s=6.0)
    time.sleep(2.5)
    assert job.job.status().processes[0].answer.state is State.SUSPENDED
    assert job.mini_batches() == steps
    until(lambda: job.mini_batches() > steps, 10, "the renewed lease has not ended")
    assert_same_as_alone(job)


def test_expired_limits_fall_back(run: Callable[..., Job]) -> None:
    job = run("--share", "80%", loop="while not hurry.exists():", body="pass")
    job.job.limit(share=0.05, lease_s=6.0)
    job.job.suspend(60)
    job.job.resume(60)
    time.sleep(0.2)
    assert job.job.status().processes[0].answer.share == 0.05
    slow = job.mini_batches()
    time.sleep(0.8)
    slow = job.mini_batches() - slow
    until(lambda: job.job.status().processes[0].answer.share == 0.8, 10)
    fast = job.mini_batches()
    time.sleep(0.8)
    fast = job.mini_batches() - fast
    assert fast > 3 * slow, (fast, slow)
    finish(job)


# -- phases without steps ---------------------------------------------------------------------------------------------

LONG_EVALUATION = """
    if steps == 5:
        model.eval()
        with torch.no_grad():
            until = time.monotonic() + 100
            while time.monotonic() < until and not hurry.exists():
                {evaluation}
        model.train()
"""


@pytest.mark.parametrize(
    "evaluation",
    [
        "model(torch.ones(4, 200)); time.sleep(0.02)",
        "\n                with hived.runtime.pause_point(): time.sleep(0.02)",
    ],
    ids=["calls of modules", "pause points"],
)
def test_it_is_suspended_within_an_evaluation(run: Callable[..., Job], evaluation: str) -> None:
    body = LONG_EVALUATION.format(evaluation=evaluation)
    job = run(body=body, loop="for step in range(20):", prologue="import hived.runtime")
    until(lambda: job.mini_batches() >= 4)
    time.sleep(0.5)
    job.job.suspend(60)
    assert job.mini_batches() == 5
    job.job.resume(60)
    finish(job)


def test_phase_without_boundary(run: Callable[..., Job]) -> None:
    job = run(body=LONG_EVALUATION.format(evaluation="time.sleep(0.02)"), loop="for step in range(20):")
    until(lambda: job.mini_batches() == 4)  # the fifth is reported when a boundary follows it
    time.sleep(0.5)
    with pytest.raises(NotYetError, match=r"not suspended after 1 s: process \d+: not now, since \d"):
        job.job.suspend(1.0)
    assert job.job.status().processes[0].not_now_s > 1
    job.hurry()
    until(lambda: job.job.status().processes[0].answer.state is State.SUSPENDED, 10, "the command stays in force")
    job.job.resume(60)
    job.ended()


# -- what fails of ours -----------------------------------------------------------------------------------------------


def test_no_room_on_the_host_is_said(run: Callable[..., Job]) -> None:
    job = run(variables={"HIVED_SPILL": "/nowhere"})
    job.job.suspend(60)
    answer = job.job.status().processes[0].answer
    assert (answer.tier, answer.moved_bytes) == ("stop", 0)
    assert "no room on the host" in answer.note
    assert "/nowhere" in answer.note
    shown = subprocess.run(
        [sys.executable, "-c", "from hived.cli import main; main()", "suspend", "train"],
        env=environment(job.folder.path.parent),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "suspended (stop; no memory moved" in shown.stdout
    assert "no room on the host" in shown.stdout, "who asks for it is told at once"
    job.job.resume(60)
    assert_same_as_alone(job)


def test_defects_of_ours_are_survived(run: Callable[..., Job]) -> None:
    defect = (
        "import hived.runtime\nfrom hived.runtime import starting\n"
        "if starting.running(): starting.running()._attend = None"
    )
    job = run(prologue=defect)
    job.job.limit(share=0.5)
    until(lambda: "TypeError: 'NoneType' object is not callable" in job.job.status().processes[0].answer.why)
    for file in job.folder.path.iterdir():
        file.unlink()
    assert_same_as_alone(job)


def test_unusable_jobs_folder_is_survived(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    code = "import hived.runtime, torch; print('trained')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path / "jobs"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "trained\n"
    assert "this job cannot be managed, and runs as it would alone" in done.stderr


# -- how it is started ------------------------------------------------------------------------------------------------


def test_one_line_in_a_script_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    parts = {"width": 20, "loop": "for step in range(60):", "body": "time.sleep(0.05)", "epilogue": ""}
    file.write_text(TRAIN.format(prologue="import hived.runtime", **parts))
    jobs = tmp_path / "jobs"
    process = subprocess.Popen([sys.executable, str(file), str(tmp_path / "result.pt")], env=environment(jobs))
    try:
        pages = until(lambda: list(jobs.glob("mine-*/*.page")))
        assert pages[0].parent.name == f"mine-{process.pid}"
        assert process.wait(120) == 0
        assert not pages[0].parent.exists(), "nothing is left of it"
    finally:
        process.kill()


def test_python_without_hived_is_managed(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    packages = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    python = tmp_path / "other" / "bin" / "python"
    probe = subprocess.run([python, "-c", "import torch, hived"], capture_output=True, text=True, check=False)
    assert "No module named 'hived'" in probe.stderr
    file = tmp_path / "train.py"
    parts = {"prologue": "", "width": 20, "loop": "for step in range(500):", "body": PACE}
    file.write_text(TRAIN.format(epilogue="assert 'hived.cluster' not in sys.modules", **parts))
    job = Job(tmp_path / "jobs", "train", [str(python), str(file), str(tmp_path / "result.pt")])
    try:
        job.trains(3)
        job.job.suspend(60)
        job.job.resume(60)
        finish(job)
    finally:
        job.close()


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import sys; sys.mine = 'ran'")
    job = Job(
        tmp_path / "jobs",
        "train",
        [sys.executable, "-c", "import sys; print(sys.mine, 'torch' in sys.modules)"],
        PYTHONPATH=str(tmp_path / "mine"),
    )
    job.ended()
    assert "ran False" in job.output(), "and torch is not imported for a script that does not"


# -- moves ------------------------------------------------------------------------------------------------------------


def moved(job: Job) -> int:
    """Move the job; the pid of the process that has taken over."""
    before = pid_of(job)
    job.job.migrate("cpu", 150)
    return int(until(lambda: next((p.pid for p in job.job.status().processes if p.pid != before), 0)))


def test_waiting_parent_sees_no_move(run: Callable[..., Job]) -> None:
    job = run(epilogue="sys.exit(7)")
    first = pid_of(job)
    assert moved(job) != first == job.process.pid
    until(lambda: b"waiter.py" in _command_line(first))
    job.hurry()
    assert job.process.wait(120) == 7
    assert torch.load(job.log.parent / "result.pt", weights_only=False)["steps"] == 500


def test_a_signal_reaches_the_job_where_it_is(run: Callable[..., Job]) -> None:
    job = run(loop="while True:")
    there = moved(job)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(120) == -signal.SIGTERM
    until(lambda: started_at(there) is None)


def test_kill_of_the_starter_ends_the_job(run: Callable[..., Job]) -> None:
    job = run(loop="while True:")
    there = moved(job)
    job.process.kill()
    until(lambda: started_at(there) is None)


def test_output_of_second_beginning_is_hidden(run: Callable[..., Job]) -> None:
    job = run(
        prologue="print('begins'); print('to stderr', file=sys.stderr)",
        body=f"print('step', steps, flush=True); {PACE}",
    )
    moved(job)
    finish(job)
    lines = job.output().splitlines()
    assert [line for line in lines if line.startswith("step")] == [f"step {number}" for number in range(1, 501)]
    assert lines.count("begins") == lines.count("to stderr") == 1


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"loop": "for step in __import__('itertools').count():"}, "an iterator of type count"),
        (
            {
                "prologue": "counter = iter(()); import os; first = 'HIVED_TEST' not in os.environ\n"
                "os.environ['HIVED_TEST'] = '1'",
                "loop": "while steps < 500:",
            },
            "",
        ),
        (
            {
                "loop": "for _ in torch.utils.data.DataLoader(range(10_000), num_workers=1, persistent_workers=True):",
            },
            "persistent workers",
        ),
    ],
    ids=["an iterator without a position", "variables of the environment", "persistent workers"],
)
def test_unmovable_state_refuses_the_move(run: Callable[..., Job], parts: dict[str, str], why: str) -> None:
    job = run(**({"body": f"{PACE}\n    if steps == 500: break"} | parts))
    if why:
        with pytest.raises(RefusedError, match=why):
            job.job.migrate("cpu", 150)
        steps = job.mini_batches()
        until(lambda: job.mini_batches() > steps)
        assert not [pid for pid in descendants(job.process.pid) if b"train.py" in _command_line(pid)][1:]
    else:
        moved(job)
    assert_same_as_alone(job)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_another_kind_of_device_is_refused(run: Callable[..., Job]) -> None:
    job = run()
    with pytest.raises(RefusedError, match="the job trains on cpu, and cuda:1 is another kind of device"):
        job.job.migrate("cuda:1", 60)
    assert_same_as_alone(job)


def test_failing_destination_changes_nothing(run: Callable[..., Job]) -> None:
    job = run(
        prologue=("once = Path(sys.argv[1] + '.once')\nif once.exists(): sys.exit('not twice')\nonce.touch()"),
    )
    with pytest.raises(
        RefusedError, match="the destination has ended before it came to where the script is, with exit"
    ):
        job.job.migrate("cpu", 150)
    Path(str(job.log.parent / "result.pt") + ".once").unlink()
    finish(job)
    assert torch.load(job.log.parent / "result.pt", weights_only=False)["steps"] == 500


@pytest.mark.parametrize("seed", range(2))
def test_kill_during_a_move(run: Callable[..., Job], seed: int) -> None:
    """The destination, or the controller, at a random moment of the move."""
    draws = random.Random(seed)
    job = run()
    first = job.process.pid
    code = (
        "import sys; from hived.control.commands import TrainingJob; from hived.control.folder import JobFolder\n"
        "from pathlib import Path; TrainingJob(JobFolder(Path(sys.argv[1]))).migrate('cpu', 150)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code, str(job.folder.path)], stderr=subprocess.DEVNULL)
    there = until(lambda: next((p for p in descendants(first) if b"train.py" in _command_line(p)), 0))
    time.sleep(draws.uniform(0.0, 5.0))
    if seed % 2 and Path(f"/proc/{first}/cmdline").read_bytes().find(b"waiter.py") < 0:
        os.kill(there, signal.SIGKILL)
    else:
        controller.kill()
    controller.wait()
    steps = job.mini_batches()
    until(lambda: job.mini_batches() > steps or not job.runs())
    assert_same_as_alone(job)
    until(lambda: started_at(there) is None)


def test_move_to_another_host(run: Callable[..., Job], tmp_path: Path) -> None:
    """The other host is a second folder of jobs: neither side sees the other's processes."""
    folder = tmp_path / "moves"
    folder.mkdir(mode=0o700)
    job = run()
    page = job.folder.pages()[0]
    page.write_command(Command(wanted=Wanted.MOVE, target=f"{folder}/"))
    job.folder.ring(page.pid)
    until((folder / "job.json").exists)
    there = Job(tmp_path / "jobs-there", "train", [], "--from", str(folder))
    try:
        assert job.process.wait(120) == 0
        assert not (tmp_path / "result.pt").exists(), "it has only left"
        finish(job)
        there.ended()
    finally:
        there.close()
    assert_same_as_alone(job)


def test_writable_folder_is_refused(run: Callable[..., Job], tmp_path: Path) -> None:
    folder = tmp_path / "moves"
    folder.mkdir()
    folder.chmod(0o777)
    job = run()
    with pytest.raises(RefusedError, match="can be written by others"):
        job.job.migrate(f"{folder}/", 60)
    assert_same_as_alone(job)
