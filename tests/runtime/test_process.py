"""One training process and its commands: nothing is used while it is suspended, nothing of ours ends it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hived_control.commands import NotYetError, RefusedError
from hived_control.errors import ConflictError
from hived_control.folder import started_at
from hived_control.page import Command, State, Wanted
from hived_control.stopping import descendants
from tests.cli.helpers import Hived

from .jobs import PATIENCE_S, Job, command_line, cpu_ticks, environment, started, state_of, until

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


#: it names its state, and so moves; ``steps`` is its loop's
NAMED = """
import hived_runtime
state = hived_runtime.state(model=model, optimizer=optimizer, losses=losses)
for steps in state.range({most}):"""


def named(most: int = 500) -> str:
    """The loop of a script that moves."""
    return NAMED.format(most=most)


def text(**parts: object) -> str:
    """The script, by default of 500 steps."""
    usual = {"prologue": "", "width": 300, "loop": "for step in range(500):", "body": PACE, "epilogue": ""}
    return TRAIN.format(**{**usual, **parts})


def own_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024


def uses_no_cpu(*pids: int) -> bool:
    before = cpu_ticks(*pids)
    time.sleep(0.5)
    return cpu_ticks(*pids) == before


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


# -- suspended --------------------------------------------------------------------------------------------------------


def test_suspended_process_uses_nothing(start: Callable[..., Job]) -> None:
    job = start(
        text(
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
    )
    pid = job.first().pid
    before = own_memory(pid)
    job.job.suspend(PATIENCE_S)
    answer = job.first().answer
    assert (answer.state, answer.tier) == (State.SUSPENDED, "framework")
    processes = [pid, *descendants(pid)]
    assert len(processes) >= 3, "its loader has two workers"
    until(lambda: all(map(is_stopped, processes)))
    state = 60_000 * 206 * 4 * 3  # weights and two moments of AdamW, in bytes
    assert answer.moved_bytes >= state
    assert own_memory(pid) < before - 0.9 * state
    until(lambda: uses_no_cpu(*processes))
    job.job.resume(PATIENCE_S)
    until(lambda: own_memory(pid) > before - 0.1 * state)
    job.assert_same_as_alone()


def test_mini_batches_follow_the_share(start: Callable[..., Job]) -> None:
    job = start(text(loop="while True:", body="pass"), "--share", "10%")
    pid, first = job.first().pid, job.mini_batches()
    ticks, began = cpu_ticks(pid), time.monotonic()
    until(lambda: job.mini_batches() > first + 200)
    used_s = (cpu_ticks(pid) - ticks) / os.sysconf("SC_CLK_TCK")
    assert 0 < used_s < 0.2 * (time.monotonic() - began)


def test_suspended_until_told(start: Callable[..., Job], tmp_path: Path) -> None:
    """Neither a signal of others nor a command that is refused changes anything; if its folder is gone, it goes on."""
    job = start(text(loop=named()))
    pid = job.first().pid
    job.job.suspend(PATIENCE_S)
    steps = job.mini_batches()
    os.kill(pid, signal.SIGCONT)  # it runs now
    until(lambda: is_stopped(pid))
    assert job.mini_batches() == steps
    with pytest.raises(ConflictError, match="is suspended: hived train resume train first"):
        job.job.migrate("cpu", PATIENCE_S)
    assert job.first().answer.state is State.SUSPENDED
    job.job.resume(PATIENCE_S)

    (tmp_path / "moves").mkdir()
    (tmp_path / "moves").chmod(0o777)
    with pytest.raises(RefusedError, match="can be written by others"):
        job.job.migrate(f"{tmp_path}/moves/", PATIENCE_S)
    with pytest.raises(RefusedError, match="the job trains on cpu, and cuda:1 is another kind of device"):
        job.job.migrate("cuda:1", PATIENCE_S)

    job.job.suspend(PATIENCE_S)
    until(lambda: is_stopped(pid))
    shutil.rmtree(job.folder.path)
    os.kill(pid, signal.SIGCONT)
    job.assert_same_as_alone()


def test_leases_end(start: Callable[..., Job]) -> None:
    """Not before their time; what has none holds on."""
    job = start(text(), "--share", "80%")
    began = time.monotonic()
    job.job.limit(share=0.5, lease_s=12.0)
    job.job.suspend(PATIENCE_S)
    job.job.resume(PATIENCE_S)
    until(lambda: job.first().answer.share == 0.5)
    until(lambda: job.first().answer.share == 0.8, "it does not fall back to what it was started with")
    assert time.monotonic() >= began + 12.0

    job.job.limit(share=0.6)
    began = time.monotonic()
    job.job.suspend(PATIENCE_S, lease_s=6.0)
    steps = job.mini_batches()
    until(lambda: job.mini_batches() > steps, "the kernel has not woken it")
    assert time.monotonic() >= began + 6.0
    answer = job.first().answer
    assert (answer.state, answer.share) == (State.RUNNING, 0.6)

    job.job.suspend(PATIENCE_S)  # until it is taken back
    job.job.suspend(PATIENCE_S, lease_s=4.0)
    began = time.monotonic()
    job.job.suspend(PATIENCE_S, lease_s=8.0)
    steps = job.mini_batches()
    until(lambda: job.mini_batches() > steps, "the renewed lease has not ended")
    assert time.monotonic() >= began + 8.0
    job.assert_same_as_alone()


def test_signal_handlers_find_tensors(start: Callable[..., Job]) -> None:
    job = start(
        text(
            prologue=(
                "import signal\n"
                "def saved(number, frame):\n"
                "    torch.save(model.state_dict(), sys.argv[1] + f'.{number}')\n"
                "    if number == signal.SIGINT: raise ValueError('enough')\n"
                "signal.signal(signal.SIGTERM, saved), signal.signal(signal.SIGINT, saved)"
            ),
            loop="while True:",
        )
    )
    pid = job.first().pid
    job.job.suspend(PATIENCE_S)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)  # as supervisors do: the handler runs, and it is suspended again
    until(Path(f"{job.result}.15").exists)
    until(lambda: job.first().answer.state is State.SUSPENDED)
    os.kill(pid, signal.SIGINT)
    job.job.resume(PATIENCE_S)
    assert job.process.wait(PATIENCE_S) != 0
    assert "ValueError: enough" in job.output(), "what a handler raises is the script's"
    for number in (15, 2):
        weights = torch.load(f"{job.result}.{number}")["0.weight"]
        assert weights.shape == (300, 200)
        assert weights.abs().sum() > 0


#: three phases without steps, until the test ends them: with calls of modules, with pause points, with neither
PHASES = """
    if steps in (5, 10, 15):
        Path(f"{sys.argv[1]}.phase-{steps}").touch()
        model.eval()
        with torch.no_grad():
            while not Path(f"{sys.argv[1]}.after-{steps}").exists():
                time.sleep(0.01)
                if steps == 5:
                    model(torch.ones(4, 200))
                elif steps == 10:
                    with hived_runtime.pause_point(): pass
        model.train()
"""


def test_suspended_in_phases_without_steps(start: Callable[..., Job]) -> None:
    job = start(text(prologue="import hived_runtime", loop="for step in range(20):", body=PHASES))

    def phase(steps: int) -> None:
        until(Path(f"{job.result}.phase-{steps}").exists)

    def end_phase(steps: int) -> None:
        Path(f"{job.result}.after-{steps}").touch()

    for steps in (5, 10):
        phase(steps)
        job.job.suspend(PATIENCE_S)
        assert job.mini_batches() == steps
        job.job.resume(PATIENCE_S)
        end_phase(steps)
    phase(15)
    with pytest.raises(NotYetError, match=r"not suspended after 1 s: process \d+: not now, since \d"):
        job.job.suspend(1.0)
    assert job.first().not_now_s > 1
    job.job.resume(PATIENCE_S)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(job.job.suspend, PATIENCE_S)
        until(lambda: job.first().command.wanted is Wanted.SUSPEND)
        job.job.resume(PATIENCE_S)
        with pytest.raises(ConflictError, match="has been given another command meanwhile"):
            waiting.result()
    assert job.first().answer.state is State.RUNNING
    with pytest.raises(NotYetError):
        job.job.suspend(0.1)
    end_phase(15)
    until(lambda: job.first().answer.state is State.SUSPENDED, "the command stays in force")
    job.job.resume(PATIENCE_S)
    job.ended()


# -- what is released ------------------------------------------------------------------------------------------------

#: bytes of a frozen network, of a copy of it that no constructor has made, and of data that is in no tensor
LARGE = 64 << 20
FROZEN = """
import copy, gc, weakref
base = torch.nn.Linear(4096, 4096, bias=False).requires_grad_(False)
ema = copy.deepcopy(base)
{more}
class Gone: pass
gone = Gone()
proxy = weakref.proxy(gone)
del gone
gc.freeze()
"""


@pytest.mark.parametrize("more", ["", "data = bytearray(64 << 20)"], ids=["tensors", "data"])
def test_frozen_objects_are_released(start: Callable[..., Job], hived: Hived, more: str) -> None:
    """Though the collector shows them no more, and a dead proxy is among them. What stays is said."""
    job = start(text(prologue=FROZEN.format(more=more)))
    before = own_memory(job.first().pid)
    shown = hived("train", "suspend", "train")
    answer = job.first().answer
    assert (answer.state, answer.tier) == (State.SUSPENDED, "framework"), answer.note
    assert answer.moved_bytes >= 2 * LARGE
    assert own_memory(job.first().pid) < before - 1.8 * LARGE
    assert ("bytes stay in memory" in shown.out) is bool(more), shown.out
    job.job.resume(PATIENCE_S)
    until(lambda: own_memory(job.first().pid) > before - 0.2 * LARGE)
    job.assert_same_as_alone()


def test_failure_of_a_tier_falls_to_the_next(start: Callable[..., Job]) -> None:
    """Any, with its words; the script goes on as it was."""
    broken = (
        "from hived_runtime.memory import framework\n"
        "def fails(self): raise ReferenceError('weakly-referenced object no longer exists')\n"
        "framework.FrameworkTier._in_use = fails"
    )
    job = start(text(prologue=broken))
    job.job.suspend(PATIENCE_S)
    answer = job.first().answer
    assert (answer.state, answer.tier) == (State.SUSPENDED, "stop")
    assert "ReferenceError: weakly-referenced object no longer exists" in answer.note
    job.job.resume(PATIENCE_S)
    job.finish()


# -- what fails of ours -----------------------------------------------------------------------------------------------


def test_no_room_on_the_host_is_said(start: Callable[..., Job], hived: Hived) -> None:
    job = start(text(), HIVED_SPILL="/nowhere")
    shown = hived("train", "suspend", "train")
    assert "suspended (stop; no memory moved" in shown.out
    assert "no room on the host" in shown.out, "who asks for it is told at once"
    answer = job.first().answer
    assert (answer.tier, answer.moved_bytes) == ("stop", 0)
    assert "no room on the host" in answer.note
    assert "/nowhere" in answer.note
    job.job.resume(PATIENCE_S)
    job.assert_same_as_alone()


def test_defects_of_ours_are_survived(start: Callable[..., Job]) -> None:
    defect = (
        "import hived_runtime\nfrom hived_runtime import starting\n"
        "if starting.running(): starting.running()._attend = None"
    )
    job = start(text(prologue=defect))
    job.job.limit(share=0.5)
    until(lambda: "TypeError: 'NoneType' object is not callable" in job.first().answer.why)
    for file in job.folder.path.iterdir():
        file.unlink()
    job.assert_same_as_alone()


def test_unusable_jobs_folder_is_survived(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    code = "import hived_runtime, light_torch; print('trained')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(tmp_path / "jobs"), capture_output=True, text=True, check=False)
    assert done.stdout == "trained\n"
    assert "this job cannot be managed, and runs as it would alone" in done.stderr


# -- how it is started, and the verbs ---------------------------------------------------------------------------------


def test_job_from_its_start_to_its_end(start: Callable[..., Job], hived: Hived) -> None:
    job = start(text(), "--share", "20%")
    assert job.output().startswith("hived: training job train\n")

    done = hived("train", "suspend", "train")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("train: suspended (framework; ")
    assert " KiB moved in " in done.out

    shown = hived("train", "status", "train").out.splitlines()
    assert shown[0].startswith("train: ")
    assert shown[0].split()[2].endswith("train.py")
    assert shown[1].split()[:4] == ["RANK", "PID", "STATE", "MINI-BATCHES"]
    assert shown[2].split()[2] == "suspended"
    assert "20%" in shown[2]

    assert hived("train", "resume", "train").out == "train: runs\n"
    assert hived("train", "limit", "train", "--memory", "1GiB", "--up-to", "2GiB", "--share", "30%").code == 0
    job.trains(job.mini_batches() + 1)
    (process,) = json.loads(hived("train", "status", "train", "-o", "json").out)["processes"]
    assert (process["state"], process["tier"], process["device"]) == ("running", "framework", "cpu")
    assert (process["memory_limit"], process["share"]) == (1 << 30, 0.3)
    assert process["note"] == "without a GPU there is no device memory to limit"
    assert process["mini_batches"] > 0 < process["mini_batch_s"]

    done = hived("train", "scale", "train", "--workers", "2", "--timeout", "1s")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "job train is not elastic: see hived_runtime.elastic" in done.err
    assert hived("train", "limit", "train", "--share", "100%").code == 0
    job.finish()
    assert hived("train", "resume", "train").code == 4


def test_one_line_in_a_script_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text(prologue="import hived_runtime"))
    jobs = tmp_path / "jobs"
    process = subprocess.Popen([sys.executable, str(file), str(tmp_path / "result.pt")], env=environment(jobs))
    try:
        page = until(lambda: next(jobs.glob("mine-*/*.page"), None))
        assert page.parent.name == f"mine-{process.pid}"
        (tmp_path / "result.pt.hurry").touch()
        assert process.wait(PATIENCE_S) == 0
        assert not page.parent.exists(), "nothing is left of it"
    finally:
        process.kill()


def test_python_without_hived_is_managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may have the runtime
    venv.create(tmp_path / "other", symlinks=True)
    packages = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    python = tmp_path / "other" / "bin" / "python"
    probe = subprocess.run([python, "-c", "import hived_runtime"], capture_output=True, text=True, check=False)
    assert "No module named 'hived_runtime'" in probe.stderr
    file = tmp_path / "train.py"
    file.write_text(text(width=20, epilogue="assert 'hived' not in sys.modules"))
    with started(tmp_path / "jobs", "train", [str(python), str(file), str(tmp_path / "result.pt")]) as job:
        job.trains(3)
        job.job.suspend(PATIENCE_S)
        job.job.resume(PATIENCE_S)
        job.finish()


# -- moves ------------------------------------------------------------------------------------------------------------


def moved(job: Job) -> int:
    """Move the job; the pid of the process that has taken over."""
    before = job.first().pid
    job.job.migrate("cpu", PATIENCE_S)
    return int(until(lambda: next((p.pid for p in job.job.status().processes if p.pid != before), 0)))


def test_waiting_parent_sees_no_move(start: Callable[..., Job]) -> None:
    """Neither one that fails: whoever has started the job sees one process, one output, one exit code."""
    job = start(
        text(
            loop=named(),
            prologue=(
                "print('begins'); print('to stderr', file=sys.stderr)\n"
                "once = Path(sys.argv[1] + '.once')\nif once.exists(): sys.exit('not twice')\nonce.touch()"
            ),
            body=f"print('step', steps, flush=True); {PACE}",
            epilogue="sys.exit(7)",
        )
    )
    first = job.first().pid
    with pytest.raises(
        RefusedError, match="the destination has ended before it came to where the script names its state, with exit"
    ):
        job.job.migrate("cpu", PATIENCE_S)
    Path(f"{job.result}.once").unlink()
    assert moved(job) != first == job.process.pid
    until(lambda: b"waiter.py" in command_line(first))
    job.hurry()
    job.ended(7)
    assert torch.load(job.result, weights_only=False)["steps"] == 500
    lines = job.output().splitlines()
    assert [line for line in lines if line.startswith("step")] == [f"step {number}" for number in range(1, 501)]
    assert lines.count("begins") == lines.count("to stderr") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_signal_reaches_the_moved_job(start: Callable[..., Job], number: signal.Signals) -> None:
    job = start(text(loop=named(1_000_000)))
    there = moved(job)
    job.process.send_signal(number)
    assert job.process.wait(PATIENCE_S) == -number
    until(lambda: started_at(there) is None)


@pytest.mark.parametrize("killed", ["controller", "destination"])
def test_kill_during_a_move(start: Callable[..., Job], killed: str) -> None:
    """At a random moment of the move."""
    job = start(text(loop=named()))
    first = job.process.pid
    code = (
        "import sys; from hived_control.commands import TrainingJob\n"
        "from hived_control.folder import JobFolder\n"
        "from pathlib import Path; TrainingJob(JobFolder(Path(sys.argv[1]))).migrate('cpu', 150)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code, str(job.folder.path)], stderr=subprocess.DEVNULL)
    there = until(lambda: next((p for p in descendants(first) if b"train.py" in command_line(p)), 0))
    time.sleep(random.Random(killed).uniform(0.0, 4.0))
    if killed == "destination" and b"waiter.py" not in command_line(first):
        os.kill(there, signal.SIGKILL)
    else:
        controller.kill()
    controller.wait()
    steps = job.mini_batches()
    until(lambda: job.mini_batches() > steps or not job.runs())
    job.assert_same_as_alone()
    until(lambda: started_at(there) is None)


def test_move_to_another_host(start: Callable[..., Job], tmp_path: Path) -> None:
    """The other host is a second folder of jobs: neither side sees the other's processes."""
    folder = tmp_path / "moves"
    folder.mkdir(mode=0o700)
    job = start(text(loop=named()))
    page = job.folder.pages()[0]
    page.write_command(Command(wanted=Wanted.MOVE, target=f"{folder}/"))
    job.folder.ring(page.pid)
    until((folder / "job.json").exists)
    with started(tmp_path / "jobs-there", "train", [], "--from", str(folder)) as there:
        job.ended()
        assert not job.result.exists(), "it has only left"
        there.assert_same_as_alone()
