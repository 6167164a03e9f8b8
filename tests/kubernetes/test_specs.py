"""A removed spec file is reported, and the last spec stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hived.engines.kubernetes import spec_source as specs
from hived.errors import InputError

from .virtual_time import played


@played
async def test_removed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once, and read when it is back."""
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

    source = specs.FileSpec(file)
    await source.read()
    file.unlink()
    following = asyncio.create_task(source.follow(changed, refused))
    await asyncio.wait_for(back.wait(), 120)
    following.cancel()
    assert heard == [f"{file}: cannot be read any more: No such file or directory", "one"]
