"""A share of the device's time: work is paced within mini-batches, on a simulated clock and on real modules."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from hived_control.page import Command, Wanted
from hived_runtime import idle, starting
from hived_runtime.monitor import Monitor
from hived_runtime.share import Pacer


class Plant:
    """A clock that work and sleep move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited = 0.0  #: for other ranks
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds * 1.1 + 0.0001  # a sleep takes longer than asked for
        self.slept.append(seconds)


class Setup:
    def __init__(self) -> None:
        self.plant = Plant()
        self.model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.pacer = Pacer(
            torch.device("cpu"),
            lambda: [self.optimizer],
            lambda: self.plant.now,
            self.plant.sleep,
            lambda: self.plant.now - self.plant.waited,
        )
        for layer in self.model:
            layer.register_forward_hook(self._works)
        for parameter in self.model.parameters():
            parameter.register_hook(lambda gradient: self._works())

    def _works(self, *_: object) -> None:
        self.plant.now += 0.002

    def mini_batch(self) -> float:
        began = self.plant.now
        self.pacer.begin()
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.pacer.end()
        return self.plant.now - began


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.pacer.set(1.0)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25, 0.1, 0.02])
def test_work_has_its_share(setup: Setup, share: float) -> None:
    setup.pacer.set(share)
    total = sum(setup.mini_batch() for _ in range(50))
    work = 50 * 0.002 * (6 + 12)
    assert setup.pacer.active_s == pytest.approx(work)
    assert work / total == pytest.approx(share, rel=0.02)


def test_paced_within_the_mini_batch(setup: Setup) -> None:
    setup.pacer.set(0.5)
    setup.mini_batch()
    assert len(setup.plant.slept) >= 12, "no burst is longer than some milliseconds"
    assert max(setup.plant.slept) < 0.006
    active = setup.pacer.active_s
    setup.plant.now += 5.0  # data is loaded: what is between two of them is free
    setup.mini_batch()
    assert setup.pacer.active_s == pytest.approx(2 * active)


def test_waiting_for_ranks_is_no_work(setup: Setup) -> None:
    setup.pacer.set(0.5)
    setup.pacer.begin()
    setup.plant.now += 0.5
    setup.plant.waited += 0.5
    setup.pacer.point()
    assert setup.plant.slept == []


def test_hooks_only_with_a_share(setup: Setup) -> None:
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    before = len(hooks)
    setup.pacer.set(0.5)
    assert len(hooks) == before + 1
    setup.pacer.set(0.7)
    assert len(hooks) == before + 1
    setup.pacer.set(1.0)
    assert len(hooks) == before
    assert not any(parameter._post_accumulate_grad_hooks for parameter in setup.model.parameters())
    setup.mini_batch()
    assert setup.plant.slept == []


def test_long_wait_is_taken_in_parts(setup: Setup) -> None:
    setup.pacer.set(0.02)
    setup.pacer.begin()
    setup.plant.now += 0.1  # one long operation
    setup.pacer.point()
    assert setup.plant.slept == [1.0]
    setup.plant.now += 0.01
    setup.pacer.point()
    assert len(setup.plant.slept) == 2, "the rest is not forgotten"


def classes(*pids: int) -> set[int]:
    """Of all threads of this process, and of others."""
    tasks = [task for pid in (os.getpid(), *pids) for task in Path(f"/proc/{pid}/task").iterdir()]
    return {os.sched_getscheduler(int(task.name)) for task in tasks}


@pytest.fixture
def child() -> Iterator[int]:
    """A process that this one has started, as workers of a loader are."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_limited_on_the_processor_it_is_in_the_idle_class(setup: Setup, child: int) -> None:
    """With its children; and all come back, whatever threads there are by then; nowhere without a way back."""
    before = classes(child)
    setup.pacer.set(0.5)
    assert classes(child) == ({os.SCHED_IDLE} if idle._may_return() else before)
    setup.mini_batch()
    setup.pacer.set(0.3)
    setup.pacer.set(1.0)
    assert classes(child) == before


def test_it_yields_to_nobody_while_somebody_waits_for_it(setup: Setup) -> None:
    """Until it pauses, or has gone on: else whoever has the processor keeps it from obeying."""
    before = classes()
    setup.pacer.hurry(True)
    setup.pacer.hurry(False)
    assert classes() == before, "it is not limited"
    setup.pacer.set(0.5)
    setup.pacer.hurry(True)
    assert classes() == before
    setup.pacer.hurry(False)
    assert classes() == ({os.SCHED_IDLE} if idle._may_return() else before)
    setup.pacer.set(1.0)


def test_who_waits_is_seen_by_the_monitor() -> None:
    """Until the command is noted: one to pause whose lease is over is in its page yet, and nobody waits."""
    page, process = mock.Mock(), mock.Mock(seconds=0.1)
    monitor = Monitor(mock.Mock(), page, process)
    for wanted, pending, hurries in (
        (Wanted.RUN, True, None), (Wanted.SUSPEND, True, True), (Wanted.SUSPEND, False, False),
        (Wanted.SUSPEND, True, True), (Wanted.RUN, True, None), (Wanted.RUN, False, False),
    ):  # fmt: skip
        page.command.return_value = Command(wanted=wanted)
        process.pending.return_value = pending
        monitor._looked(1.0)
        assert process.hurry.mock_calls == ([] if hurries is None else [mock.call(hurries)])
        process.hurry.reset_mock()


def test_session_of_others_is_left_alone(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was started by hand shares it with a shell, and with jobs beside it."""
    group = Path("/proc/self/autogroup")
    if not group.exists() or not idle._may_return():
        pytest.skip("the kernel does not group processes by session, or nothing may leave the idle class here")
    before = group.read_text()
    monkeypatch.delenv("HIVED_RUN_SESSION", raising=False)
    setup.pacer.set(0.5)
    assert group.read_text() == before
    setup.pacer.set(1.0)


def test_what_does_not_train_is_in_it_for_a_while_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = classes()
    timer = mock.Mock()
    monkeypatch.setattr(threading, "Timer", timer)
    for share, switch, yields in ("0.05", "on", True), ("0.05", "off", False), ("1", "on", False), ("no", "on", False):
        monkeypatch.setenv("HIVED_RUN_SHARE", share)
        monkeypatch.setenv("HIVED_RUNTIME", switch)
        starting._yield_while_it_loads()
        assert classes() == ({os.SCHED_IDLE} if yields and idle._may_return() else before)
        for call in timer.call_args_list:
            call.args[1]()
        assert classes() == before
