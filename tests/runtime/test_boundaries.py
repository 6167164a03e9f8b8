"""Where mini-batches end: the rule for several optimizers, and the hooks on real modules and optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from threading import get_ident

import pytest
import torch

from hived_runtime.boundaries import Boundaries, MiniBatches


def ends(pattern: str) -> str:
    """The steps of a pattern, those in upper case that end a mini-batch. Optimizers by letter."""
    rule = MiniBatches()
    return "".join(each.upper() if rule.ends_with(ord(each)) else each for each in pattern)


@pytest.mark.parametrize(
    ("pattern", "skip", "expected"),
    [
        ("aaaaa", 0, "AAAAA"),
        ("dgdgdgdg", 0, "DGdGdGdG"),
        ("abcabcabc", 0, "ABCabCabC"),
        ("ddddgddddgddddg", 5, "ddddGddddG"),  # repeated steps are waited for
        ("gddddgddddgdddd", 10, "Gdddd"),
        ("w" * 5 + "a" * 90, 80, "A" * 15),  # one that has gone is forgotten
        ("a" * 5 + "dg" * 40, 65, "dG" * 10),
    ],
)
def test_steps_that_end_mini_batches(pattern: str, skip: int, expected: str) -> None:
    assert ends(pattern)[skip:] == expected


def test_seldom_stepped_optimizer() -> None:
    assert "AAAA" in ends(("a" * 20 + "b") * 5)[42:]


class Record:
    """What the hooks have called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.boundaries = Boundaries(lambda: self.calls.append("ended"), lambda: self.calls.append("boundary"))


@pytest.fixture
def record() -> Iterator[Record]:
    made = Record()
    yield made
    made.boundaries.remove()


def test_boundary_is_first_call_after_step(record: Record) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    live = []
    record.boundaries._act = lambda: live.append([each.grad is None for each in model.parameters()])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert live == [[True] * 4] * 2, "gradients have been dropped there: it is the minimum of the memory cycle"
    assert record.calls == ["ended"] * 3


class Batches:
    """A loader whose transform is a module, as torchvision's are."""

    def __init__(self, *transforms: torch.nn.Module) -> None:
        self.transforms, self.inside = transforms, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(3):
            self.inside = True
            batch = torch.ones(2, 4)
            for transform in self.transforms:
                batch = transform(batch)
            self.inside = False
            yield batch


@pytest.mark.parametrize("frozen", [False, True])
def test_transform_is_no_boundary(record: Record, frozen: bool) -> None:
    """Nor a frozen network in the loader, nor a loss: only a module that is trained."""
    teacher = torch.nn.Linear(4, 4).requires_grad_(not frozen)
    loader, model = Batches(torch.nn.Identity(), teacher), torch.nn.Linear(4, 1)
    loss, optimizer = torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    where: list[tuple[bool, bool]] = []
    record.boundaries._act = lambda: where.append((loader.inside, model.weight.grad is None))
    for batch in loader:
        optimizer.zero_grad()
        loss(model(batch.detach()), torch.ones(2, 1)).backward()
        optimizer.step()
    assert where == [(False, True)] * 2


def test_boundary_with_copies_of_parameters(record: Record) -> None:
    """The optimizer has master weights: the model that requires gradients counts, once that is seen; no transform."""
    loader, model = Batches(torch.nn.Identity()), torch.nn.Linear(4, 1)
    master = [each.detach().clone().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=0.1)
    inside: list[bool] = []
    record.boundaries._act = lambda: inside.append(loader.inside)
    for batch in [*loader, *loader]:
        model(batch).sum().backward()
        for mine, theirs in zip(master, model.parameters(), strict=True):
            mine.grad = theirs.grad
        optimizer.step()
    assert inside == [False] * 4


def test_phase_is_not_in_a_transform(record: Record) -> None:
    loader, model = Batches(torch.nn.Identity()), torch.nn.Linear(4, 1)
    inside: list[bool] = []
    record.boundaries._act = lambda: inside.append(loader.inside)
    record.boundaries._thread = get_ident()
    record.boundaries.look_for_phase()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    assert inside == [False]


def test_group_that_is_added_counts(record: Record) -> None:
    """A backbone that is unfrozen later."""
    head, body = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(body.parameters())})
        hidden = body(torch.ones(1, 4))
        record.calls.append("head")
        head(hidden).sum().backward()
        optimizer.step()
    assert record.calls == [
        "head",
        "ended",
        "head",
        "boundary",
        "ended",
        "head",
        "boundary",
        "ended",
        "boundary",
        "head",
        "ended",
    ]


def test_accumulation_is_one_mini_batch(record: Record) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        model(torch.ones(2, 4)).sum().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert record.calls == ["ended", "boundary", "ended"]


def test_boundary_without_modules(record: Record) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    for _ in range(4):
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()
    assert record.calls == ["ended", "ended", "boundary", "ended", "boundary", "ended", "boundary"]


def test_boundary_in_a_phase(record: Record) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    model(torch.ones(2, 4))
    record.calls.clear()
    record.boundaries.look_for_phase()
    model(torch.ones(2, 4))
    assert record.calls == [], "a graph is alive: it is within a mini-batch"
    with torch.no_grad():
        list(islice((model(torch.ones(2, 4)) for _ in range(9)), 3))
    assert record.calls == ["boundary"]


def test_no_hook_between_boundaries(record: Record) -> None:
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    before = len(hooks)
    optimizer.step()
    assert len(hooks) == before + 1
    model(torch.ones(1, 2))
    assert len(hooks) == before


def test_optimizer_with_a_reused_id(record: Record) -> None:
    model = torch.nn.Linear(2, 1)
    for _ in range(50):  # so that numbers are given again
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert record.boundaries.optimizers == [optimizer]
        assert len(record.boundaries._optimizers) <= 2
        del optimizer
        assert record.boundaries.optimizers == [], "it is freed"
