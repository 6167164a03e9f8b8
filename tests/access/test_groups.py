"""The groups of who is behind a socket: a real process with groups of its own, and the kernel's word on it."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from hived.access import Person
from hived.server import limits

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

NOBODY = pwd.getpwnam("nobody")


def connect(path: Path, groups: Sequence[int]) -> int:
    """The pid of a process of nobody's with these supplementary groups, which connects and is answered."""
    if pid := os.fork():
        return pid
    try:
        os.setgroups(groups)
        os.setgid(NOBODY.pw_gid)
        os.setuid(NOBODY.pw_uid)
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(path))
        end.recv(1)
    finally:
        os._exit(0)


def who_connects(folder: Path, groups: Sequence[int]) -> Person:
    """Whom such a process is taken for."""

    async def served() -> Person:
        found: asyncio.Future[Person] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert isinstance(writer.transport, asyncio.Transport)
            found.set_result(limits._peer(writer.transport)["person"])
            writer.close()

        async with await asyncio.start_unix_server(connected, folder / "s"):
            (folder / "s").chmod(0o666)
            pid = connect(folder / "s", groups)
            try:
                return await asyncio.wait_for(found, 60)
            finally:
                os.waitpid(pid, 0)

    return asyncio.run(served())


def test_supplementary_groups_are_known(open_folder: Path) -> None:
    """A member by `group:gpu` was refused where gpu was not the group of their login."""
    some = [entry for entry in grp.getgrall() if entry.gr_gid != NOBODY.pw_gid][:3]
    person = who_connects(open_folder, [entry.gr_gid for entry in some])
    assert person.name == "nobody"
    assert person.groups == {grp.getgrgid(NOBODY.pw_gid).gr_name, *(entry.gr_name for entry in some)}


def test_more_groups_than_can_be_asked_for(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the machine's database are theirs then."""
    own = [NOBODY.pw_gid, 4001, 4002]
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: own if name == "nobody" else [gid])
    assert {"4001", "4002"} <= who_connects(open_folder, range(20_000, 20_300)).groups
