"""Jobs that name their state move, and end bit for bit as they do alone; what goes wrong is said."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hived_control.commands import RefusedError
from hived_runtime.moving.channel import read_state, write_state
from hived_runtime.moving.named import MoveError, NamedState

from .jobs import PATIENCE_S, Job, differences, started, until
from .plain import run_plain

SCRIPT = """
import light_torch, itertools, logging, os, random, sys, threading, time, torch
import hived_runtime
from pacing import pace
from pathlib import Path
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
torch.manual_seed(3)
random.seed(3)
data = TensorDataset(torch.randn(240, 8), torch.randint(0, 3, (240,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))
criterion = torch.nn.CrossEntropyLoss()
optimizer = {optimizer}
{before}
state = hived_runtime.state(model=model, optimizer=optimizer, total=0.0, step=0, note={{}}{names})

def learn(x, y):
    loss = criterion(model(x), y)
    loss.backward()
    return loss

for epoch in state.range({epochs}):
    {loop}
        {learn}
        state.step += 1
        {body}
        pace(state.step, 15 * {epochs}, Path(sys.argv[1] + ".hurry"))
torch.save(dict(model=model.state_dict(), total=state.total, step=state.step, note=state.note), sys.argv[1])
"""
USUAL = {
    "optimizer": "torch.optim.Adam(model.parameters())",
    "before": "loader = DataLoader(data, 16, shuffle=True)",
    "names": "",
    "epochs": 40,
    "loop": "for x, y in state.each(loader):",
    "learn": "optimizer.zero_grad(); loss = learn(x, y); optimizer.step(); state.total += loss.item()",
    "body": "pass",
}
#: several constructs in each, since every move imports PyTorch anew
SAME: dict[str, dict[str, str]] = {
    # a log that stays open from the script's beginning, a file that is closed, a counter, a thread of its own
    "logging": {
        "before": (
            "loader = DataLoader(data, 16, shuffle=True)\n"
            "logging.basicConfig(filename=sys.argv[1] + '.log', filemode='w', level=20, format='%(message)s')\n"
            "counter = itertools.count()\n"
            "threading.Thread(target=lambda: [time.sleep(0.1) for _ in counter], daemon=True).start()\n"
            "lines = open(sys.argv[1] + '.lines', 'w')"
        ),
        "body": (
            "logging.info('%d', state.step); print(state.step, file=lines); state.note[state.step % 7] = 1\n"
            "        if state.step == 600: lines.close()"
        ),
    },
    # workers, a batch sampler with a generator of its own, gradients that are accumulated, a scheduler
    "workers": {
        "epochs": "30",
        "before": (
            "draws = torch.Generator().manual_seed(5)\n"
            "sampler = BatchSampler(RandomSampler(data, generator=draws), 16, False)\n"
            "loader = DataLoader(data, batch_sampler=sampler, num_workers=1)\n"
            "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)"
        ),
        "names": ", scheduler=scheduler, draws=draws",
        "learn": (
            "state.total += learn(x, y).item()\n"
            "        if state.step % 3 == 2: optimizer.step(); optimizer.zero_grad(); scheduler.step()"
        ),
    },
    # workers that stay over epochs, numbers of Python and of torch in the loop, a model in evaluation between
    "persistent workers": {
        "epochs": "30",
        "optimizer": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "before": "loader = DataLoader(data, 16, shuffle=True, num_workers=1, persistent_workers=True)",
        "body": (
            "state.note['drawn'] = random.random() + torch.rand(()).item()\n        model.train(state.step % 11 != 5)"
        ),
    },
    # a second-order optimizer, which evaluates the model as often as it likes
    "closure": {
        "optimizer": "torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)",
        "learn": (
            "def closure():\n"
            "            optimizer.zero_grad()\n"
            "            return learn(x, y)\n"
            "        state.total += float(optimizer.step(closure))"
        ),
    },
}


@pytest.mark.parametrize("what", SAME)
def test_moved_job_ends_as_alone(start: Callable[..., Job], what: str) -> None:
    job = start(SCRIPT.format(**{**USUAL, **SAME[what]}))
    job.job.limit(1 << 30, 0.7)
    job.job.migrate("cpu", PATIENCE_S)
    (there,) = until(lambda: job.job.status().processes)
    assert there.abilities.named
    assert (there.command.share, there.command.memory_limit) == (0.7, 1 << 30), "limits go with the job"
    assert there.progress.iterations > 3
    if what == "logging":
        until(lambda: job.mini_batches() > there.progress.iterations + 2)
        job.job.migrate("cpu", PATIENCE_S)  # and again
    job.assert_same_as_alone()
    for name in ("log", "lines") if what == "logging" else ():
        lines = Path(f"{job.result}.{name}").read_text().splitlines()
        assert lines == [str(step) for step in range(1, 601)], "each line once, in its order"


DDP = """
import os, sys, torch, torch.distributed as dist
import hived_runtime
from pacing import pace
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(480, 8), torch.randint(0, 3, (480,)))
layers = torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
torch.manual_seed(3 + dist.get_rank())
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, 16, sampler=sampler)
state = hived_runtime.state(model=model, optimizer=optimizer, step=0)
for epoch in state.range(30):
    sampler.set_epoch(epoch)
    for x, y in state.each(loader):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        state.step += 1
        pace(state.step, 450, Path(sys.argv[1] + ".hurry"))
if dist.get_rank() == 0:
    torch.save(dict(model=model.module.state_dict(), step=state.step), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def test_moved_ranks_end_as_alone(tmp_path: Path) -> None:
    """All at one mini-batch."""
    file = tmp_path / "train.py"
    file.write_text(DDP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def rank_alone(rank: int) -> None:
        run_plain(file, [str(tmp_path / "alone.pt")], tmp_path / f"{rank}.log", RANK=str(rank), **place)

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(rank_alone, range(2)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with started(tmp_path / "jobs", "ddp", [*launcher, str(file), str(tmp_path / "result.pt")]) as job:
        job.trains(3)
        before = {each.pid for each in job.job.status().processes}
        job.job.migrate("cpu", PATIENCE_S)
        until(lambda: len({each.pid for each in job.job.status().processes} - before) == 2)
        expected = torch.load(tmp_path / "alone.pt", weights_only=False)
        assert differences(expected, job.finish()) == []


# -- the state, as data -----------------------------------------------------------------------------------------------


Script = Callable[[Callable[..., NamedState], list[Any]], None]


def handed_over(saved: dict[str, Any]) -> dict[str, Any]:
    """A state, as it is read from its file."""
    descriptor = os.memfd_create("state")
    try:
        write_state(descriptor, saved)
        return read_state(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class Moves:
    """Runs of one function: each takes over from the one before at a point of it."""

    def __init__(self) -> None:
        self.saved: Any = None
        self.at = -1

    def run(self, script: Script, *points: int) -> tuple[list[Any], list[Any]]:
        """What it notes alone, and when it is taken over at these points, each a number of the run that it ends."""
        alone: list[Any] = []
        self._run(script, alone, -1, None)
        moved: list[Any] = []
        for at in points:
            with pytest.raises(StopIteration):
                self._run(script, moved, at, self.saved)
        self._run(script, moved, -1, self.saved)
        return alone, moved

    def _run(self, script: Any, notes: list[Any], at: int, taken: Any) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        points = 0

        lost: list[MoveError] = []

        def name(**named: Any) -> NamedState:
            def reach() -> None:
                nonlocal points
                points += 1
                if points == at:
                    self.saved = handed_over(made.saved())
                    raise StopIteration

            made = NamedState(named, reach)
            if taken is not None:
                made.load(taken, lambda: None, lost.append)
            return made

        try:
            script(name, notes)
        except RuntimeError as error:  # of a generator
            unsaid = isinstance(error, MoveError) and [error] != lost
            assert not unsaid, "said before any more of the script runs"
            raise StopIteration if isinstance(error.__cause__, StopIteration) else error from None


def two_loops(name: Callable[..., NamedState], notes: list[Any]) -> None:
    draws, numbers = random.Random(4), np.random.default_rng(4)
    weight = torch.zeros(3)
    state = name(draws=draws, numbers=numbers, weight=weight, seen=[], step=0)
    loader = DataLoader(TensorDataset(torch.arange(12)), 4, shuffle=True)
    for epoch in state.range(3):
        for (x,) in state.each(loader):
            weight += draws.random() + float(numbers.random()) + torch.rand(())
            state.step += 1
            notes.append((epoch, x.tolist(), weight.tolist(), random.random(), np.random.random(), state.step))
        for word in state.each("ab"):
            state.seen.append(word)
            notes.append((epoch, word, list(state.seen)))


@pytest.mark.parametrize("at", range(1, 19))
def test_taken_over_at_any_point(at: int) -> None:
    """Within the first loop of an epoch, within the second, between them, and at the end."""
    alone, moved = Moves().run(two_loops, at)
    assert moved == alone


def test_loop_that_is_left_and_own_points() -> None:
    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        state = name(left=10, more={})
        while state.left:
            state.left -= 1
            for item in state.each(range(100)):
                if item == 3:
                    break
            notes.append((state.left, random.random()))
            state.more[state.left] = 1
            state.point()
        notes.append(dict(state.more))

    for at in (4, 8, 40):  # every fourth is a point of its own
        alone, moved = Moves().run(script, at)
        assert moved == alone


def test_workers_that_stay_draw_once() -> None:
    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        loader = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, num_workers=1, persistent_workers=True)
        state = name()
        for _ in state.range(3):
            for (x,) in state.each(loader):
                notes.append((x.tolist(), torch.rand(()).item()))

    for at in (1, 3, 4, 6):  # within a pass, after one
        alone, moved = Moves().run(script, at)
        assert moved == alone


def test_gradients_and_modes_go_along() -> None:
    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = name(model=model, optimizer=optimizer)
        for step in state.range(8):
            model(torch.rand(2)).sum().backward()
            model.train(step % 2 == 0)
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            notes.append((model.training, model.weight.tolist(), model.weight.grad is None))

    for at in range(1, 8):
        alone, moved = Moves().run(script, at)
        assert moved == alone


class Ahead:
    """A loader as Accelerate's are: it reads one item ahead, counts its passes, and has an order for each."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.base_dataloader, self.iteration = loader, 0

    def __iter__(self) -> Iterator[Any]:
        items = ((x + self.iteration, torch.rand(())) for x in self.base_dataloader)
        item = next(items)
        for following in items:
            yield item
            item = following
        yield item
        self.iteration += 1

    def state_dict(self) -> Any:
        raise AssertionError("only a loader within that has one has a state")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError(state)


@pytest.mark.parametrize("at", range(1, 9))
def test_loader_that_reads_one_ahead(at: int) -> None:
    """The item that it has read was read before the one that comes next trained."""

    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        loader = Ahead(DataLoader([torch.tensor(n) for n in range(4)], 1, shuffle=True))
        state = name()
        for _ in state.range(2):
            for x, noise in state.each(loader):
                notes.append((x.item(), noise.item(), torch.rand(()).item()))

    alone, moved = Moves().run(script, at, 1)
    assert moved == alone


def test_step_that_accelerate_accumulates() -> None:
    """It is whole where gradients are synchronized: nobody has named what counts its batches."""

    class Optimizer(torch.optim.SGD):  # type: ignore[misc]
        gradient_state = SimpleNamespace(sync_gradients=True)

    reached: list[int] = []
    optimizer = Optimizer([torch.zeros(1, requires_grad=True)], 0.1)
    state = NamedState({"optimizer": optimizer}, lambda: reached.append(item))
    for item in state.each(range(6)):
        optimizer.gradient_state.sync_gradients = item % 3 == 2
    assert reached == [2, 5]


def named(**values: Any) -> NamedState:
    return NamedState(values, lambda: None)


def test_names_are_what_they_were() -> None:
    with pytest.raises(MoveError, match="the script names a here, and a, b there"):
        named(a=1).load(named(a=1, b=2).saved(), lambda: None, lambda _: None)
    with pytest.raises(MoveError, match=r"state.model cannot be taken over: RuntimeError"):
        named(model=torch.nn.Linear(2, 2)).load(
            named(model=torch.nn.Linear(3, 3)).saved(), lambda: None, lambda _: None
        )
    state = named(model=torch.nn.Linear(2, 2), step=0)
    with pytest.raises(AttributeError, match="it has model, step"):
        _ = state.steps
    with pytest.raises(AttributeError, match="was not named at first"):
        state.other = 1
    with pytest.raises(AttributeError, match="is an object that is named once"):
        state.model = 1
    for _ in range(2):
        state.step = torch.ones(1)  # a plain value stays one
    with pytest.raises(ValueError, match="'range'"):
        named(range=1)
    with pytest.raises(MoveError, match=r"state\.meters holds a Meter: name what has a state by itself"):
        named(meters=[Meter()]).saved()


class Meter:
    """An object without a state."""


def test_what_stands_between_the_heads_is_undone() -> None:
    """It runs again for the item that goes on, and draws the same; what it does to what is named counts once."""

    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        draws, array, old = torch.Generator().manual_seed(1), np.zeros(2), np.random.RandomState(3)
        data = TensorDataset(torch.arange(8))
        loader = DataLoader(data, 4, shuffle=True, generator=draws)
        state = name(model=model, optimizer=optimizer, draws=draws, array=array, old=old, total=0.0, epochs=0, best=0.0)
        for epoch in state.range(3):
            state.total = 0.0
            state.epochs += 1
            optimizer.param_groups[0]["lr"] *= 0.5
            model.weight.requires_grad_(epoch != 1)
            order = torch.randperm(4)
            for part in state.each(order.split(2)):
                array += old.random_sample(2)
                state.total += torch.rand(()).item() + part.sum().item()
                notes.append((epoch, part.tolist(), state.total, array.tolist(), model.weight.requires_grad))
            state.epochs += 1
            bar = state.each(loader)
            for (x,) in bar:
                state.best = max(state.best, torch.rand(()) + x.sum() + torch.rand((), generator=draws))
                notes.append((x.tolist(), float(state.best), state.epochs, optimizer.param_groups[0]["lr"]))
                if epoch == 1:
                    break  # and the loop is kept by ``bar``

    for at in range(1, 14):
        alone, moved = Moves().run(script, at)
        assert moved == alone, at


def test_shorter_loop_is_no_place_to_go_on() -> None:
    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        state = name()
        notes.extend(state.each(range(lengths.pop(0))))

    lengths = [9, 9, 2]
    with pytest.raises(MoveError, match="a loop has 2 items here, and had given 5 there"):
        Moves().run(script, 5)


def test_loops_are_known_by_their_lines() -> None:
    """One that is not begun any more, by what is named, changes nothing for those after it."""

    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        state = name(warm=False)
        if not state.warm:
            notes.extend(state.each(range(2)))
        state.warm = True
        for _ in range(2):
            for item in state.each(range(5)):
                notes.append(item)  # noqa: PERF402  # it is taken over in the middle

    for at in range(1, 13):
        alone, moved = Moves().run(script, at)
        assert moved == alone, at


def test_another_loop_is_no_place_to_go_on() -> None:
    """It is noticed at the end of the item in which it is missing."""

    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        state = name()
        for _ in state.range(3):
            if len(notes) < 4:
                for item in state.each(range(2)):
                    notes.append(item)  # noqa: PERF402

    with pytest.raises(MoveError, match="does not come to the loop"):
        Moves().run(script, 5)


#: what a job does that is not to move, and why; ``once`` is there from its first start on
UNMOVED = {
    "other names": (", **{'there' if once else 'here': 1}", "pass", "the script names model, .*, there here"),
    "named twice": ("", "more = hived_runtime.state(model=model)", "its script names its state twice"),
    "no loop": ("", "exit() if once else 0", "the destination has ended while it took the state over"),
    "fails": ("", "1 / (not once)", "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("what", UNMOVED)
def test_refused_move_says_why(start: Callable[..., Job], what: str) -> None:
    """And the job goes on, without a second process."""
    names, then, why = UNMOVED[what]
    before = f"{USUAL['before']}\nonce = Path(sys.argv[1] + '.once').exists()\nPath(sys.argv[1] + '.once').touch()"
    script = SCRIPT.format(**{**USUAL, "before": before, "names": names})
    job = start(script.replace("\ndef learn", f"\n{then}\n\ndef learn"))
    for _ in range(2 if what == "other names" else 1):
        with pytest.raises(RefusedError, match=why):
            job.job.migrate("cpu", PATIENCE_S)
        job.trains(job.mini_batches())
    assert job.first().abilities.named is (what != "named twice")
    job.assert_same_as_alone()


HOOKED = """
import hived_runtime, sys
state = hived_runtime.state(step=0)  # before torch is there
import light_torch, torch
from hived_runtime import starting
assert starting.running() is not None
print("managed", state.step)
"""


def test_named_before_torch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(HOOKED)
    with started(tmp_path / "jobs", "early", [sys.executable, str(file)]) as job:
        job.ended()
        assert "managed 0" in job.output()


def test_own_hook_of_errors_stays(start: Callable[..., Job]) -> None:
    """Set before the state is named, it is the script's where it goes on."""
    hook = "sys.excepthook = lambda kind, error, trace: (print('hooked', error, flush=True), os._exit(7))"
    before = f"{USUAL['before']}\n{hook}"
    job = start(SCRIPT.format(**{**USUAL, "before": before, "body": "assert state.step < 600, 'over'"}))
    job.job.migrate("cpu", PATIENCE_S)
    job.hurry()
    job.ended(7)
    assert "hooked over" in job.output()
