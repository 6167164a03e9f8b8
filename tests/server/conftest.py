"""Tests that are coroutines, each in an event loop of its own; and what they ask: a fake service, or a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from inspect import iscoroutinefunction, signature
from pathlib import Path

import pytest

from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.store import Store

from ..engines.living import Lives
from ..engines.real import PATIENCE_S
from .fakes import FakeService


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine to its end; a fixture that is an asynchronous context is entered in the same event loop."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            arguments = {name: pyfuncitem.funcargs[name] for name in signature(pyfuncitem.obj).parameters}
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(scope="session")
def one_service() -> FakeService:
    """Of all tests, since its applications take longer to make than most tests."""
    return FakeService()


@pytest.fixture
def service(one_service: FakeService) -> FakeService:
    one_service.reset()
    return one_service


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[AbstractAsyncContextManager[Engine]]:
    """A real engine of eight simulated devices and real processes, of which none is left afterwards."""
    lives = Lives(tmp_path / "state")

    @asynccontextmanager
    async def life() -> AsyncIterator[Engine]:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        made = Engine(lives.spec, Store(lives.folder), Simulated())
        lives.engines.append(made)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()
        assert unhandled == []

    yield life()
    for made in lives.engines:
        lives._as_the_kernel_does(made)
    lives.end()
