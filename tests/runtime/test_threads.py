"""Which threads could use tensors while a job is suspended."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hived_runtime import threads

from .jobs import until

weight = torch.ones(3)
stop = threading.Event()


@pytest.fixture(autouse=True)
def this_file_alone_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "is_users", lambda file: file == __file__)
    stop.clear()


def waits(*_: Any) -> None:
    while not stop.wait(0.01):
        pass


def computes() -> None:
    while not stop.wait(0.01):
        helper()


def helper() -> None:
    weight.add_(0)


class Writer:
    def __init__(self, item: Any) -> None:
        self.items: queue.Queue[Any] = queue.Queue()
        self.items.put(item)

    def run(self) -> None:
        while not stop.wait(0.01):
            self.write()

    def write(self) -> None:
        time.time()


class Gone:
    pass


def test_dead_proxy_reaches_nothing() -> None:
    """A live one reaches what it stands for."""
    gone, model = Gone(), torch.nn.Linear(1, 1)
    proxies = weakref.proxy(gone), weakref.proxy(model)
    del gone

    def holds(proxy: Any) -> Callable[[], None]:
        def run() -> None:
            while not stop.wait(0.01):
                repr(type(proxy))

        return run

    for proxy, reaches in zip(proxies, (False, True), strict=True):
        stop.clear()
        thread = threading.Thread(target=holds(proxy))
        thread.start()
        try:
            assert threads.others_may_compute() is reaches
        finally:
            stop.set()
            thread.join()


def hidden(model: Any) -> Callable[[], None]:
    def run() -> None:
        while not stop.wait(0.01):
            str(model)

    return run


@pytest.mark.parametrize(
    ("target", "arguments", "may"),
    [
        (waits, (), False),
        (Writer("a line").run, (), False),
        (hidden("a text"), (), False),
        (computes, (), True),
        (waits, ({"x": [weight]},), True),
        (Writer(weight).run, (), True),
        (hidden(torch.nn.Linear(1, 1)), (), True),
    ],
    ids=["waits", "writes lines", "a text", "by a function", "by an argument", "by a queue", "by a closure"],
)
def test_thread_reaching_a_tensor(target: Callable[..., None], arguments: tuple[Any, ...], may: bool) -> None:
    assert not threads.others_may_compute()
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    try:
        until(threads._stacks_of_script)
        until(lambda: threads.others_may_compute() is may)
    finally:
        stop.set()
        thread.join()
