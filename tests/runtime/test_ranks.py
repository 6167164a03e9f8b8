"""Ranks of one job agree, however long their mini-batches are; which memory of a process is emptied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from hived_control.folder import JobFolder
from hived_control.page import Answer, Command, Page, State, Wanted
from hived_runtime import process
from hived_runtime.memory.framework import can_be_emptied
from tests.control.conftest import Ranks


def agreeing(page: Page, seconds: float) -> SimpleNamespace:
    """A rank whose mini-batches take so long, as far as it waits for a decision."""
    rank = SimpleNamespace(
        _job=JobFolder.named("train"),
        _word=page.command_word(),
        wake=threading.Event(),
        seconds=seconds,
        _report=lambda **said: page.report_answer(Answer(state=said["state"])),
    )
    rank._others_hand_over = lambda: process.TrainingProcess._others_hand_over(rank)  # type: ignore[arg-type]
    return rank


def test_long_mini_batches_longer_wait(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_AGREE_S", 0.05)
    page, _ = ranks(2)
    for seconds, at in ((0.0, 1), (0.2, 2)):
        began = time.monotonic()
        command = Command(wanted=Wanted.SUSPEND, at=at)
        rank = agreeing(page, seconds)
        assert process.TrainingProcess._together(rank, page, command, "go", State.WAITING) is False  # type: ignore[arg-type]
        assert time.monotonic() >= began + max(0.05, 3 * seconds)


def test_handed_over_rank_waits(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is larger: a decision against the move would come before it can be."""
    monkeypatch.setattr(process, "_AGREE_S", 0.05)
    page, other = ranks(2)
    other.report_answer(Answer(state=State.WAITING))
    command = Command(wanted=Wanted.MOVE, at=1)
    with ThreadPoolExecutor(1) as pool:
        together = process.TrainingProcess._together
        waits = pool.submit(together, agreeing(page, 0.0), page, command, "move", State.HANDED)  # type: ignore[arg-type]
        time.sleep(0.5)
        assert not waits.done()
        other.report_answer(Answer(state=State.RUNNING))
        assert waits.result() is False


@pytest.mark.parametrize(
    ("device", "size", "resizable", "shared", "can"),
    [
        ("cuda", 512, True, True, True),  # torch says so of each storage of a GPU
        ("cuda", 512, False, True, False),  # one of another process
        ("cuda", 0, True, True, False),
        ("cpu", 1 << 20, True, False, True),
        ("cpu", 1 << 20, True, True, False),
        ("cpu", 512, True, False, False),
    ],
)
def test_which_storages_are_emptied(device: str, size: int, resizable: bool, shared: bool, can: bool) -> None:
    def answer(value: object) -> Callable[[], object]:
        return lambda: value

    storage = SimpleNamespace(
        device=torch.device(device), nbytes=answer(size), resizable=answer(resizable), is_shared=answer(shared)
    )
    assert can_be_emptied(storage) is can
