"""Constructs of scripts that a move once got wrong: the job moves and ends as it does alone, or says why it stays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hived.control.commands import RefusedError
from hived.control.page import State
from hived.errors import ConflictError

from .jobs import Job, alone, differences, until

SCRIPT = """
import light_torch, collections, os, random, subprocess, sys, threading, time, torch
from pacing import pace
from pathlib import Path
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
torch.manual_seed(3)
random.seed(3)
data = TensorDataset(torch.randn(240, 8), torch.randint(0, 3, (240,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
note, total, step = {{}}, 0.0, 0

def learn(x, y, weight=1.0):
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
    pace(step, 15 * {epochs}, Path(sys.argv[1] + ".hurry"))
    return loss.item()

{before}
for epoch in range({epochs}):
    {loop}
        total += learn(x, y)
        step += 1
        {body}
torch.save(dict(model=model.state_dict(), total=total, step=step, note=note), sys.argv[1])
"""
#: a library: its loops are in frames of its own
TRAINER = """
def batches(loader):
    for batch in loader:
        yield batch

def fit(learn, data):
    for epoch in range(2):
        for index, (x, y) in enumerate(data):
            learn(x, y)
"""
USUAL = {
    "loss": "criterion(model(x), y)",
    "before": "loader = DataLoader(data, 16, shuffle=True)",
    "epochs": 80,
    "loop": "for x, y in loader:",
    "body": "pass",
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs = []

    def start(*options: str, **parts: Any) -> Job:
        file = tmp_path / "train.py"
        file.write_text(SCRIPT.format(**{**USUAL, **parts}))
        for result in ("result", "alone"):
            (tmp_path / f"{result}.pt.site-packages").mkdir()
            (tmp_path / f"{result}.pt.site-packages" / "trainer.py").write_text(TRAINER)
        jobs.append(Job(tmp_path / "jobs", "train", [sys.executable, str(file), str(tmp_path / "result.pt")], *options))
        jobs[0].trains(3)
        return jobs[0]

    yield start
    for job in jobs:
        job.close()


def finish(job: Job) -> None:
    """Train to the end, as fast as it can."""
    job.hurry()
    job.ended()


def assert_same_as_alone(job: Job) -> None:
    folder = job.log.parent
    expected = alone(folder / "train.py", folder / "alone.pt")
    finish(job)
    assert differences(expected, torch.load(folder / "result.pt", weights_only=False)) == []


#: several constructs in each, since every move imports PyTorch anew
SAME: dict[str, dict[str, str]] = {
    "an operand before the call, loaders in a zip, an ordered dict, frozen layers, functions that change": {
        "loss": "(1 + step % 7) * criterion(model(x), y)",
        "before": (
            "first, second = DataLoader(data, 16, shuffle=True), DataLoader(data, 16, shuffle=True)\n"
            "recent = collections.OrderedDict()"
        ),
        "loop": "for (x, _), (_, y) in zip(first, second):",
        "body": (
            "recent[step] = step; recent.move_to_end(step, last=False)\n"
            "        note['last'] = recent.popitem() if step > 9 else 0\n"
            "        model[0].weight.requires_grad_(step < 20)\n"
            "        criterion = torch.nn.functional.cross_entropy if step % 2 else torch.nn.CrossEntropyLoss()"
        ),
    },
    "a loader written in the loop, another default dtype, hashes of texts": {
        "before": "hashes = set()",
        "loop": "for x, y in DataLoader(data, 16, shuffle=True):",
        "body": (
            "torch.set_default_dtype(torch.float64) if step == 9 else 0; note['x'] = torch.ones(1)\n"
            "        hashes.add(hash('a text') % 50); note['hashes'] = len(hashes)"
        ),
    },
    "a batch sampler with a generator that is another loader's too, another folder": {
        "before": (
            "draws = torch.Generator().manual_seed(5)\n"
            "loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=draws), 16, False))\n"
            "other = DataLoader(data, 60, shuffle=True, generator=draws)\n"
            "os.chdir('/')"
        ),
        "body": "note['seen'] = sum(y.sum().item() for _, y in other) if step % 5 == 0 else 0",
    },
    "a sampler with random numbers of its own, autocast from a step on": {
        "loss": "lossy(x, y)",
        "before": (
            "class Own:\n"
            "    def __init__(self): self.draws = random.Random(7)\n"
            "    def __len__(self): return 240\n"
            "    def __iter__(self):\n"
            "        for _ in range(240): yield self.draws.randrange(240)\n"
            "loader = DataLoader(data, 16, sampler=Own())\n"
            "def lossy(x, y):\n"
            "    with torch.autocast('cpu', torch.bfloat16, enabled=step > 20): return criterion(model(x), y)"
        ),
    },
    "workers, a loop of a library": {
        "epochs": "30",
        "before": "loader = DataLoader(data, 16, shuffle=True, num_workers=1)\n"
        "sys.path.insert(0, sys.argv[1] + '.site-packages')\nimport trainer",
        "loop": "for x, y in trainer.batches(loader):",
        "body": "trainer.fit(learn, [(x, y)] * (step % 4))",
    },
}


@pytest.mark.parametrize("what", SAME)
def test_moved_job_ends_as_alone(run: Callable[..., Job], what: str) -> None:
    job = run(**SAME[what])
    job.job.migrate("cpu", 150)
    assert_same_as_alone(job)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"before": "loader = DataLoader(data, 16); log = open(sys.argv[1] + '.log', 'w')",
          "body": "print(step, file=log)"},
         "result.pt.log', which the script has open for writing"),
        ({"before": "loader = DataLoader(data, 16); os.open(sys.argv[1] + '.raw', os.O_CREAT | os.O_WRONLY)"},
         "result.pt.raw', which the script has open for writing"),
        ({"before": "loader = DataLoader(data, 16)\nsubprocess.Popen(['sleep', '99'])"},
         "the process .*, which the script has started: sleep 99"),
        ({"before": "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)",
          "loop": "for x, y in pool.map(lambda _: data[:16], range(15)):"},
         "the thread 'ThreadPoolExecutor.*', which may hold work of the script"),
        ({"before": "loader = DataLoader(data, 16)\n"
          "threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(20_000)], daemon=True).start()"},
         "code of the script runs in another thread too"),
    ],
    ids=["a log that is open for writing", "a descriptor", "a process", "a pool of threads", "a thread"],
)  # fmt: skip
def test_refused_move_says_why(run: Callable[..., Job], parts: dict[str, str], why: str) -> None:
    job = run(**parts)
    with pytest.raises(RefusedError, match=why):
        job.job.migrate("cpu", 150)
    finish(job)
    log = job.log.parent / "result.pt.log"
    if log.exists():
        assert log.read_text() == "".join(f"{step}\n" for step in range(1, 1201))


def test_limits_go_with_the_job(run: Callable[..., Job]) -> None:
    job = run()
    job.job.limit(1 << 30, 0.7)
    job.job.migrate("cpu", 150)
    (there,) = until(lambda: job.job.status().processes)
    assert (there.command.share, there.command.memory_limit) == (0.7, 1 << 30)
    assert there.progress.iterations > 3


def test_suspended_job_does_not_move(run: Callable[..., Job]) -> None:
    job = run()
    job.job.suspend(60)
    with pytest.raises(ConflictError, match="is suspended: hived resume train first"):
        job.job.migrate("cpu", 150)
    assert job.job.status().processes[0].answer.state is State.SUSPENDED
    job.job.resume(60)
    assert_same_as_alone(job)


def test_memory_of_other_threads_stays(run: Callable[..., Job]) -> None:
    job = run(
        before=(
            "loader = DataLoader(data, 16)\n"
            "def other():\n"
            "    with torch.no_grad():\n"
            "        while step < 290: model[0](data[0][0])\n"
            "threading.Thread(target=other).start()"
        ),
        epochs=20,
    )
    for _ in range(3):
        job.job.suspend(60)
        answer = job.job.status().processes[0].answer
        assert answer.tier == "stop"
        assert "another thread of the script may compute" in answer.note
        job.job.resume(60)
    assert_same_as_alone(job)
