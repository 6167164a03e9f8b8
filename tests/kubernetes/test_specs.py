"""A removed spec file is reported, and the last spec stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hived.engines.kubernetes import spec_source as specs
from hived.errors import InputError


def test_a_removed_file_is_reported_once_and_read_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "_POLL_S", 0.001)
    file = tmp_path / "spec.yaml"
    file.write_text("one")
    heard: list[str] = []
    back = asyncio.Event()

    def changed(text: str) -> None:
        heard.append(text)
        back.set()

    def refused(error: InputError) -> None:
        heard.append(str(error))
        file.write_text("one")

    async def watch() -> None:
        source = specs.FileSpec(file)
        await source.read()
        file.unlink()
        following = asyncio.create_task(source.follow(changed, refused))
        await asyncio.wait_for(back.wait(), 30)
        following.cancel()

    asyncio.run(watch())
    assert heard == [f"{file}: cannot be read any more: No such file or directory", "one"]
