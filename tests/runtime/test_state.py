"""What is handed over in a move: contents of one run's objects, applied in place to those of another run."""

from __future__ import annotations

import array
import collections
import ctypes
import enum
import functools
import gc
import io
import itertools
import logging
import multiprocessing
import os
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hived_runtime.moving import frames, kinds, outside
from hived_runtime.moving.channel import read_state, write_state
from hived_runtime.moving.describing import Description
from hived_runtime.moving.kinds import MoveError
from hived_runtime.moving.restoring import Restoration
from hived_runtime.storage import as_bytes


@pytest.fixture(autouse=True)
def this_file_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the repository is in a folder of libraries."""
    monkeypatch.setattr(kinds, "_LIBRARIES", ("/nowhere",))


def handed_over(there: Any, here: Any) -> Any:
    """``here`` after it has taken over the state of ``there``, as if they were in two processes."""
    description = Description()
    node = pickle.loads(pickle.dumps(description.node(there)))
    description.check()
    with torch.no_grad():
        return Restoration([each.clone() for each in description.storages.tensors]).value(node, here)


@pytest.mark.parametrize("mode", ["w", "wb", "r", "rb", "w+b"])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_closed_file_is_no_state(tmp_path: Path, mode: str, buffering: int) -> None:
    """The other run may have none yet, or an earlier one; the file is left alone."""
    if not buffering and "b" not in mode:
        return
    (tmp_path / "model.pt").write_text("kept")
    with open(tmp_path / "model.pt", "r+b") as other:  # noqa: PTH123
        pass
    with open(os.devnull, mode, buffering) as there:  # noqa: PTH123
        pass
    found = handed_over({"f": there}, {})["f"]
    assert (type(found), found.closed, found.name, found.mode) == (type(there), True, os.devnull, there.mode)
    assert handed_over({"f": there}, {"f": found})["f"] is found
    assert handed_over({"f": there}, {"f": other})["f"] is not other
    named = handed_over({"f": other}, {})["f"]
    assert named.name == str(tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_text() == "kept"
    assert Description().node(found)[2:] == Description().node(there)[2:]


def test_ended_generator_is_no_state() -> None:
    there = (each for each in "abc")
    there.close()
    found = handed_over({"g": there}, {})["g"]
    assert list(found) == []


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (itertools.count(7), itertools.count()),
        (itertools.count(-9, -3), itertools.count(0, -3)),
        (itertools.count(1.5, 0.5), itertools.count(0.5, 0.5)),
        (itertools.count(3), itertools.count(8)),
        (itertools.count(3, 2), itertools.count()),
        (itertools.count(3), None),
    ],
)
def test_count_goes_on(there: Any, here: Any) -> None:
    """In place where it can, as a loop needs it."""
    found = handed_over([there], [here])[0]
    assert [next(found) for _ in range(3)] == [next(there) for _ in range(3)]
    assert (found is here) is (repr(here) in ("count(10)", "count(-18, -3)"))


@pytest.mark.parametrize("iterator", [iter(int, 1), itertools.cycle("ab"), iter({"a": 1})])
def test_iterator_without_position_is_refused_at_once(iterator: Any) -> None:
    """As the state is described: before a destination begins the script a second time."""
    with pytest.raises(MoveError, match=r"^one: the position of an iterator of type \w+ cannot be handed over"):
        Description().node({"one": iterator})


def test_thread_is_named_with_what_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's says "Thread-1" of itself."""
    monkeypatch.setattr(outside, "descendants", lambda *_, **__: [])
    monkeypatch.setattr(outside, "written_by", lambda *_: {})
    ended = threading.Event()

    class Refresh(threading.Thread):
        __module__ = "rich.live"

        def run(self) -> None:
            ended.wait()

    thread = Refresh(name="Thread-1")
    thread.start()
    # another test's library may have threads here too
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), thread])
    try:
        with pytest.raises(MoveError, match=r"the thread 'Thread-1' of rich\.live, which may hold work"):
            outside.check(tmp_path)
    finally:
        ended.set()
        thread.join()


def test_variables_of_a_thread() -> None:
    """Those that the training thread has; another has its own."""
    there, here = threading.local(), threading.local()
    there.depth, here.depth, here.more = [1, 2], [1], 3
    kept = here.depth
    assert handed_over([there], [here])[0] is here
    assert vars(here) == {"depth": [1, 2]}
    assert here.depth is kept
    assert handed_over([there], [None])[0].depth == [1, 2]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(slots=True)
class Slotted:
    number: int = 0
    things: list[int] = field(default_factory=list)


class Meter:
    total = 0.0

    def __init__(self) -> None:
        self.values: collections.deque[float] = collections.deque(maxlen=3)
        self.best: dict[str, Any] | None = None

    def update(self, value: float) -> None:
        self.values.append(value)


def linear(x: float) -> float:
    return x


def square(x: float) -> float:
    return x * x


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ([1, "a", None, 2.5, (3, 4)], [0]),
        ({"a": {"b": [1, 2]}, 5: "x"}, {"a": {"b": [], "c": 1}, "z": 0}),
        (collections.OrderedDict(b=1, a=2), collections.OrderedDict(a=5)),
        (collections.Counter("hello"), collections.Counter()),
        (collections.deque([1, 2, 3], maxlen=3), collections.deque([9], maxlen=3)),
        ({"d": collections.deque([1], maxlen=2)}, {"d": None}),
        ({1, 2, 3}, {9}),
        (Colour.BLUE, Colour.RED),
        (Pair(1, [2]), Pair(0, [])),
        (Slotted(3, [1, 2]), Slotted()),
        ({"f": square, "g": len, "h": torch.relu, "k": Meter}, {"f": linear, "g": max, "h": torch.tanh, "k": Pair}),
        (bytearray(b"abc"), bytearray(b"")),
        (np.arange(4.0), np.zeros(4)),
        ({"a": np.arange(3)}, {"a": None}),
        (torch.Size([1, 2]), torch.Size([])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_and_containers(there: Any, here: Any) -> None:
    after = handed_over(there, here)
    assert type(after) is type(there)
    assert str(after) == str(there)
    assert getattr(after, "maxlen", None) == getattr(there, "maxlen", None)
    if isinstance(here, list | dict | set | collections.deque | Slotted):
        assert after is here, "in place: others hold it too"


def test_shared_objects_stay_shared() -> None:
    inner = [1, 2]
    there = {"a": inner, "b": inner, "c": {"d": inner}}
    mine = [0]
    after = handed_over(there, {"a": mine, "b": [7], "c": {}})
    assert after["a"] is after["b"] is after["c"]["d"] is mine
    assert mine == [1, 2]
    twice = [5]
    after = handed_over({"a": [1], "b": [2]}, {"a": twice, "b": twice})
    assert (after["a"], after["b"]) == ([1], [2]), "shared there alone"


def test_object_referring_to_itself() -> None:
    there: dict[str, Any] = {"n": 1}
    there["me"] = [there]
    after = handed_over(there, {"n": 0})
    assert after["me"][0] is after


def test_views_share_their_storage() -> None:
    def made() -> dict[str, Any]:
        base, flag = torch.zeros(4, 5), torch.zeros(3, dtype=torch.bool)
        return {"base": base, "row": base[1], "every": base[:, ::2], "tied": base, "flag": flag}

    there, here = made(), made()
    there["base"].copy_(torch.arange(20.0).view(4, 5))
    there["flag"][1] = True
    row = here["row"]
    after = handed_over(there, here)
    assert after["row"] is row
    assert torch.equal(row, torch.arange(5.0, 10.0))
    after["base"][1, 0] = -1
    assert row[0] == -1 == after["every"][1, 0]
    assert after["tied"] is after["base"]
    assert after["flag"].tolist() == [False, True, False]


def test_tensor_keeps_its_identity() -> None:
    here = {"x": torch.zeros(3), "y": torch.zeros(2)}
    x, y = here["x"], here["y"]
    after = handed_over({"x": torch.ones(5), "y": torch.ones(2, dtype=torch.int64)}, here)
    assert after["x"] is x
    assert x.tolist() == [1] * 5
    assert (after["y"].dtype, after["y"].tolist()) == (torch.int64, [1, 1])
    assert y.dtype is torch.float32


def test_model_and_optimizer_in_place() -> None:
    def made(steps: int) -> dict[str, Any]:
        torch.manual_seed(steps)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
            schedule.step()
        model[0].weight.requires_grad_(steps < 3)
        return {"model": model, "optimizer": optimizer, "schedule": schedule, "best": None if steps < 2 else [
            each.detach().clone() for each in model.parameters()
        ]}  # fmt: skip

    there, here = made(5), made(1)
    weight, state = here["model"][0].weight, here["optimizer"].state[here["model"][2].bias]
    after = handed_over(there, here)
    assert after["model"][0].weight is weight
    assert not weight.requires_grad
    assert after["optimizer"].state[after["model"][2].bias] is state
    assert state["step"] == 5
    for name, value in there["model"].state_dict().items():
        assert torch.equal(value, after["model"].state_dict()[name])
    assert after["optimizer"].param_groups[0]["lr"] == there["optimizer"].param_groups[0]["lr"]
    assert all(map(torch.equal, after["best"], there["best"]))
    for run in (there, after):
        torch.manual_seed(9)
        run["optimizer"].zero_grad()
        run["model"](torch.randn(4, 3)).sum().backward()
        run["optimizer"].step()
        run["schedule"].step()
    assert torch.equal(there["model"][2].weight, after["model"][2].weight)


def test_functions_and_closures() -> None:
    def made(start: int, function: Callable[[float], float]) -> dict[str, Any]:
        count = start

        def tick() -> int:
            nonlocal count
            count += 1
            return count

        meter = Meter()
        for value in range(start):
            meter.update(value)
        held = {"meter": meter, "tick": tick, "partial": functools.partial(function, start)}
        return {**held, "method": meter.update, "append": meter.values.append}

    after = handed_over(made(5, square), made(1, linear))
    assert after["tick"]() == 6
    after["method"](8.0)
    after["append"](9.0)
    assert list(after["meter"].values) == [4.0, 8.0, 9.0]
    assert after["partial"]() == 25


def test_wrapped_functions_are_state() -> None:
    def make(start: int, weight: float) -> dict[str, Any]:
        calls = start

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def evaluate() -> int:
            nonlocal calls
            calls += 1
            return calls

        norm = torch.nn.BatchNorm1d(2)
        norm.running_mean.fill_(weight)
        return {"evaluate": evaluate, "network": torch.compile(norm, backend="eager")}

    here = make(0, 0.0)
    after = handed_over(make(40, 2.5), here)
    assert after["evaluate"] is here["evaluate"]
    assert after["evaluate"]() == 41
    assert after["network"] is here["network"]
    assert after["network"].running_mean.tolist() == [2.5, 2.5]


def test_refusal_names_the_variable(tmp_path: Path) -> None:
    trainer = Meter()
    trainer.best = {"now": Slotted()}
    with (tmp_path / "log").open("w") as log:
        trainer.best["now"].things = log
        with pytest.raises(MoveError, match=r"^best\.now\.things: the file '.*log', which the script has open"):
            handed_over(trainer, Meter())


def test_attributes_of_classes() -> None:
    Meter.total = 3.5
    node = Description().node({"class": Meter})
    Meter.total = 0.0
    Restoration([]).value(pickle.loads(pickle.dumps(node)), {"class": Meter})
    assert Meter.total == 3.5
    Meter.total = 0.0


# -- state that is easily forgotten: each returns its objects, and a step that changes them and says what it finds ----


def random_generators() -> tuple[Any, Callable[[int], Any]]:
    python, numpy, legacy = random.Random(1), np.random.default_rng(2), np.random.RandomState(3)
    generator = torch.Generator().manual_seed(4)
    drawn: list[Callable[[], Any]] = [python.random, numpy.random, legacy.random]
    drawn.append(lambda: torch.rand(1, generator=generator).item())
    return [python, numpy, legacy, generator], lambda _: [draw() for draw in drawn]


def generators_and_iterators() -> tuple[Any, Callable[[int], Any]]:
    def batches(items: list[int]) -> Any:
        while True:
            for index, item in enumerate(items):
                received = yield index * item
                if received:
                    items.append(received)

    assert frames.supported() == ""
    held = [batches([5, 6, 7]), iter(range(10)), zip("abcdefghi", range(20), strict=False)]
    return held, lambda _: [next(each, None) for each in held]


def a_cache() -> tuple[Any, Callable[[int], Any]]:
    @functools.cache
    def totals(kind: str) -> dict[str, float]:
        return {"sum": 0.0}

    def step(number: int) -> float:
        totals(f"k{number % 4}")["sum"] += number
        return totals("k1")["sum"]

    return totals, step


def views_of_arrays() -> tuple[Any, Callable[[int], Any]]:
    class Ring:
        def __init__(self) -> None:
            self.items = np.zeros(4)
            self.head = self.items[:3]

    ring = Ring()

    def step(number: int) -> list[float]:
        if number % 5 == 4:
            ring.items = np.concatenate([ring.items, np.ones(2)])
            ring.head = ring.items[1:4]
        ring.items[number % 4] = number
        ring.head[0] += 1
        return [*map(float, ring.items), *map(float, ring.head)]

    return ring, step


def memory_that_is_shared() -> tuple[Any, Callable[[int], Any]]:
    text, data = bytearray(b"abcdefgh"), np.zeros(3, dtype=np.float32)
    held: dict[str, Any] = {
        "text": text,
        "letters": np.frombuffer(text, dtype=np.uint8),
        "data": data,
        "tensor": torch.from_numpy(data),
    }

    def step(number: int) -> Any:
        held["letters"][number % 8] = 65 + number
        held["tensor"][number % 3] += number
        return bytes(held["text"]), held["data"].tolist()

    return held, step


def buffers_and_handlers() -> tuple[Any, Callable[[int], Any]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    done = threading.Event()

    def step(number: int) -> Any:
        handler.emit(logging.makeLogRecord({"msg": f"step {number}"}))
        (done.set if number % 2 else done.clear)()
        return stream.getvalue(), done.is_set()

    return {"handler": handler, "stream": stream, "done": done}, step


def a_sentinel() -> tuple[Any, Callable[[int], Any]]:
    held = {"nothing": object(), "seen": 0}
    values = {"last": held["nothing"]}

    def step(number: int) -> Any:
        held["seen"] += values["last"] is held["nothing"]  # type: ignore[operator]
        values["last"] = number if number % 3 else held["nothing"]
        return held["seen"], values["last"] is held["nothing"]

    return [held, values], step


def default_values_of_methods() -> tuple[Any, Callable[[int], Any]]:
    class Log:
        def __call__(self, value: int, kept: list[int] = []) -> int:  # noqa: B006  # scripts do this
            kept.append(value)
            return sum(kept)

        @staticmethod
        @torch.no_grad()  # type: ignore[untyped-decorator]
        def best(value: int, kept: list[int] = []) -> int:  # noqa: B006
            kept.append(value % 7)
            return max(kept)

    log = Log()
    return [Log, log], lambda number: (log(number), log.best(number))


def attributes_of_functions_under_decorators() -> tuple[Any, Callable[[int], Any]]:
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def probe(value: int) -> int:
        probe.total += value
        return int(probe.total)

    probe.total = 0
    return probe, probe


def half_an_expression_of_a_generator() -> tuple[Any, Callable[[int], Any]]:
    def mean() -> Any:
        total, count = 0.0, 0
        while True:
            total += yield total / max(count, 1)
            count += 1

    averages = mean()
    next(averages)
    return averages, averages.send


def a_with_block_of_a_generator() -> tuple[Any, Callable[[int], Any]]:
    def draws() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            while True:
                yield len(torch.get_rng_state())

    there = draws()
    return there, lambda number: next(there) + number


def generators_of_generators() -> tuple[Any, Callable[[int], Any]]:
    source = np.random.default_rng(5)
    return source, lambda number: source.spawn(1)[0].random() + number


def hooks_of_tensors() -> tuple[Any, Callable[[int], Any]]:
    weight = torch.ones(2, requires_grad=True)
    held: dict[str, Any] = {"weight": weight, "ema": 0.0}

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        held["ema"] = 0.5 * held["ema"] + float(gradient.sum())
        return gradient * held["ema"]

    handle = weight.register_hook(hook)

    def step(number: int) -> Any:
        if number == 4:
            handle.remove()
        weight.grad = None
        (weight * number).sum().backward()
        return held["ema"], weight.grad.tolist()

    return held, step


@pytest.mark.parametrize(
    "made",
    [
        random_generators,
        generators_and_iterators,
        a_cache,
        views_of_arrays,
        memory_that_is_shared,
        buffers_and_handlers,
        a_sentinel,
        default_values_of_methods,
        attributes_of_functions_under_decorators,
        half_an_expression_of_a_generator,
        a_with_block_of_a_generator,
        generators_of_generators,
        hooks_of_tensors,
    ],
    ids=lambda made: made.__name__,
)
def test_easily_forgotten_state_moves(made: Callable[[], tuple[Any, Callable[[int], Any]]]) -> None:
    there, step = made()
    here, own_step = made()
    for number in range(1, 8):
        step(number)
        if number < 3:
            own_step(number)
    # as a frame of the script's that holds them: functions that it calls have the same variables
    after = handed_over([there, step], [here, own_step])
    assert after[0] is here
    for number in range(8, 12):
        assert own_step(number) == step(number), number


def shared_number() -> dict[str, Any]:
    return {"x": multiprocessing.Value("i", 3)}


def array_of_a_library() -> dict[str, Any]:
    return {"x": np.frombuffer(array.array("b", [1, 2]), np.uint8)}


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        (lambda: {"x": threading.Lock()}, lambda: {"x": None}, "an object of type lock is not here yet"),
        (lambda: {"x": iter({1: 2})}, lambda: {"x": iter({1: 2})}, "an iterator of type dict_keyiterator"),
        (lambda: {"x": {Meter(), Meter()}}, lambda: {"x": {Meter(), Meter()}}, "cannot be told apart"),
        (lambda: {"x": np.array([[]], dtype=object)}, lambda: {"x": None}, "an array of Python objects"),
        (lambda: {"x": [lambda: 1][0]}, lambda: {"x": [lambda: 1, lambda: 2][1]}, "is not here"),
        (lambda: {"x": collections.defaultdict(list, a=[])}, lambda: {"x": None}, "a defaultdict is not here yet"),
        (lambda: {"x": iter(range(9))}, lambda: {"x": iter(range(8))}, "not the same here|items less here"),
        (lambda: {"x": (m := Meter()), "y": {id(m): 1}}, lambda: {"x": Meter(), "y": {}}, r"keeps id\(\)"),
        (lambda: {"x": (torch.ones(3, requires_grad=True) * 2).exp()}, lambda: {"x": None}, "backward has not been"),
        (shared_number, shared_number, "an object of multiprocessing.*, which other processes may"),
        (array_of_a_library, array_of_a_library, "an array in memory of a array"),
    ],
    ids=["lock", "iterator", "set", "objects", "lambda", "defaultdict", "range", "id", "graph", "shared", "memory"],
)
def test_inexact_state_is_refused(there: Callable[[], Any], here: Callable[[], Any], why: str) -> None:
    with pytest.raises(MoveError, match=why):
        handed_over(there(), here())


def test_freed_graph_is_no_obstacle() -> None:
    loss = (torch.ones(3, requires_grad=True) * 2).exp().sum()
    loss.backward()
    other = torch.zeros(())
    assert handed_over({"loss": loss}, {"loss": other})["loss"].item() == pytest.approx(loss.item())


# -- frames -----------------------------------------------------------------------------------------------------------


def test_loops_of_a_frame_are_found() -> None:
    found: list[list[str]] = []

    def look() -> None:
        found.append([type(each).__name__ for each in frames.loop_iterators(sys._getframe(1))])

    with torch.no_grad():
        for _ in range(2):
            for _ in enumerate("ab"):
                try:
                    look()
                finally:
                    pass
                break
            look()
            break
    look()
    assert found == [["range_iterator", "enumerate"], ["range_iterator"], []]


def test_waiting_operands_are_replaced() -> None:
    def look(*_: int, replace: float | None = None) -> float:
        found = frames.operands(sys._getframe(1))
        numbers = [each for each in found if each is not None and isinstance(each[0], float)]
        assert [each[0] for each in numbers] == [total]
        if replace is not None:
            frames.set_operand(numbers[0][1], replace)
        return 1.0

    total = 0.0
    for number in range(4):
        total += look(number, 7, replace=1000.0) if number == 2 else look(number)
    assert total == 1002.0
    total = 5.0
    total = total * 2.0 / 2.0 + look(*(1, 2))
    assert total == 6.0


def test_operands_below_c_code() -> None:
    found: list[Any] = []

    def looks(item: int) -> int:
        frame = sys._getframe(1)
        try:
            found.append(len(frames.operands(frame)))
        except frames.PlaceError as error:
            found.append(str(error))
        return item

    def calls_it() -> int:
        return 2 * looks(3)

    def sorts() -> list[int]:
        return sorted([3, 1], key=looks)

    calls_it(), sorts()
    assert found[0] == 1, "the factor"
    assert all("is within sorted(), which holds what it goes over" in each for each in found[1:])
    assert len(found) == 3


def test_frame_in_an_exception_handler() -> None:
    try:
        int("x")
    except ValueError:
        with pytest.raises(frames.PlaceError, match="in an exception handler"):
            frames.loop_iterators(sys._getframe())


def test_bytes_of_a_copy_that_nobody_else_has() -> None:
    """Of a tensor on a GPU the state has a copy on the host, which was gone before its bytes were written (EFAULT)."""
    copies: weakref.WeakSet[Any] = weakref.WeakSet()

    class Copy:
        def __init__(self) -> None:
            self.kept = ctypes.create_string_buffer(b"abcd", 4)
            copies.add(self)

        def nbytes(self) -> int:
            return 4

        def data_ptr(self) -> int:
            return ctypes.addressof(self.kept)

    view = as_bytes(Copy())
    gc.collect()
    assert len(copies) == 1
    assert bytes(view) == b"abcd"
    del view
    gc.collect()
    assert not copies


def test_state_is_read_on_the_host_whatever_the_default_device(tmp_path: Path) -> None:
    """A script that trains under ``torch.set_default_device`` would have the bytes read to addresses of the GPU."""
    path = tmp_path / "state"
    with path.open("wb") as file:
        write_state(file.fileno(), b"description", [torch.arange(5, dtype=torch.uint8)])
    with torch.device("meta"):
        data, (storage,) = read_state(str(path))
    assert (data, storage.device.type, storage.tolist()) == (b"description", "cpu", [0, 1, 2, 3, 4])
