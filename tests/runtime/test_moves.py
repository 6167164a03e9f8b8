"""Constructs of scripts that a move once got wrong: the job moves and ends as it does alone, or says why it stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hived_control.commands import RefusedError
from hived_control.stopping import descendants

from .jobs import PATIENCE_S, Job, command_line, differences, until

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
    "epochs": 40,
    "loop": "for x, y in loader:",
    "body": "pass",
}


#: several constructs in each, since every move imports PyTorch anew
SAME: dict[str, dict[str, str]] = {
    # an operand before the call, loaders in a zip, an ordered dict, frozen layers, functions that change
    "zip": {
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
    # a loader written in the loop, another default dtype, hashes of texts
    "loader in the loop": {
        "before": "hashes = set()",
        "loop": "for x, y in DataLoader(data, 16, shuffle=True):",
        "body": (
            "torch.set_default_dtype(torch.float64) if step == 9 else 0; note['x'] = torch.ones(1)\n"
            "        hashes.add(hash('a text') % 50); note['hashes'] = len(hashes)"
        ),
    },
    # a batch sampler with a generator that is another loader's too, another folder, variables of the environment,
    # a counter, a file that is closed
    "batch sampler": {
        "before": (
            "draws = torch.Generator().manual_seed(5)\n"
            "loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=draws), 16, False))\n"
            "other = DataLoader(data, 60, shuffle=True, generator=draws)\n"
            "os.chdir('/')\n"
            "import itertools\n"
            "counter, first = itertools.count(), 'HIVED_TEST' not in os.environ\n"
            "os.environ['HIVED_TEST'] = '1'"
        ),
        "body": (
            "note['seen'] = sum(y.sum().item() for _, y in other) if step % 5 == 0 else next(counter)\n"
            "        with open(sys.argv[1] + '.saved', 'w') as saved: print(step, file=saved)"
        ),
    },
    # a sampler with random numbers of its own, autocast from a step on
    "sampler": {
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
    # workers, a loop of a library
    "workers": {
        "epochs": "30",
        "before": "loader = DataLoader(data, 16, shuffle=True, num_workers=1)\n"
        "sys.path.insert(0, sys.argv[1] + '.site-packages')\nimport trainer",
        "loop": "for x, y in trainer.batches(loader):",
        "body": "trainer.fit(learn, [(x, y)] * (step % 4))",
    },
}


@pytest.mark.parametrize("what", SAME)
def test_moved_job_ends_as_alone(start: Callable[..., Job], tmp_path: Path, what: str) -> None:
    for result in ("result", "alone"):
        (tmp_path / f"{result}.pt.site-packages").mkdir()
        (tmp_path / f"{result}.pt.site-packages" / "trainer.py").write_text(TRAINER)
    job = start(SCRIPT.format(**{**USUAL, **SAME[what]}))
    job.job.limit(1 << 30, 0.7)
    job.job.migrate("cpu", PATIENCE_S)
    (there,) = until(lambda: job.job.status().processes)
    assert (there.command.share, there.command.memory_limit) == (0.7, 1 << 30), "limits go with the job"
    assert there.progress.iterations > 3
    job.assert_same_as_alone()


#: what cannot move, one after the other: each until the test says so. Steps are written to a log that is never closed
OBSTACLES = """
import light_torch, os, subprocess, sys, threading, time, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
torch.manual_seed(3)
data, model = torch.randn(16, 8), torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0

def goes_on(name):
    global steps
    optimizer.zero_grad()
    model(data).sum().backward()
    optimizer.step()
    steps += 1
    time.sleep(0.01)
    Path(f"{sys.argv[1]}.at-{name}").touch()
    return not Path(f"{sys.argv[1]}.after-{name}").exists()

for _ in iter(int, 1):
    if not goes_on("iterator"): break

loader = torch.utils.data.DataLoader(range(1_000_000), num_workers=1, persistent_workers=True)
for _ in loader:
    if not goes_on("workers"): break
del loader

def work():
    with torch.no_grad():
        while not Path(f"{sys.argv[1]}.after-thread").exists(): model(data)

thread = threading.Thread(target=work)
thread.start()
while goes_on("thread"): pass
thread.join()

with ThreadPoolExecutor(1) as pool:
    for _ in pool.map(lambda _: data, range(30_000)):
        if not goes_on("pool"): break

child = subprocess.Popen(["sleep", "999"])
while goes_on("process"): pass
child.kill(), child.wait()

raw = os.open(sys.argv[1] + ".raw", os.O_CREAT | os.O_WRONLY)
while goes_on("descriptor"): pass
os.close(raw)

log = open(sys.argv[1] + ".log", "w")
before = steps
while goes_on("log"): print(steps - before, file=log)
log.close()
torch.save([steps, model.state_dict()], sys.argv[1])
"""
REFUSALS = {
    "iterator": "an iterator of type callable_iterator",
    "workers": "persistent workers",
    "thread": "code of the script runs in another thread too",
    "pool": "the thread 'ThreadPoolExecutor.*' of concurrent.futures.thread, which may hold work of the script",
    "process": "the process .*, which the script has started: sleep 999",
    "descriptor": "result.pt.raw', which the script has open for writing",
    "log": "result.pt.log', which the script has open for writing",
}


def trainers(job: Job) -> list[int]:
    """What its process has started of the same command line."""
    return [pid for pid in descendants(job.process.pid) if b"train.py" in command_line(pid)]


def test_refused_move_says_why(start: Callable[..., Job]) -> None:
    """And the job goes on, without a second process. Memory that another thread may use stays while it is suspended."""
    job = start(OBSTACLES)
    for name, why in REFUSALS.items():
        until(Path(f"{job.result}.at-{name}").exists)
        before = trainers(job)
        with pytest.raises(RefusedError, match=why):
            job.job.migrate("cpu", PATIENCE_S)
        job.trains(job.mini_batches())
        until(lambda: trainers(job) == before)  # noqa: B023  # called at once
        if name == "thread":
            job.job.suspend(PATIENCE_S)
            answer = job.first().answer
            assert answer.tier == "stop"
            assert "another thread of the script may compute" in answer.note
            job.job.resume(PATIENCE_S)
        Path(f"{job.result}.after-{name}").touch()
    job.ended()
    lines = Path(f"{job.result}.log").read_text().splitlines()
    assert lines == [str(step) for step in range(1, len(lines) + 1)]
    assert lines
    steps, weights = torch.load(job.result)
    torch.manual_seed(3)
    data, model = torch.randn(16, 8), torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    assert differences(weights, model.state_dict()) == [], "bit for bit as without the moves"
