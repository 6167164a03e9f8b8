"""Suspends processes that know nothing of hived, by the checkpoints of NVIDIA's driver (570 or later).

The driver copies all device memory of a process to the host and gives the device back, context and all; then the
process is stopped. So a job of another framework, or one that has not come to its first mini-batch, can be suspended
too; it may be restored on another GPU of the same kind. It is tested on a fake driver, and has met one GPU.
Memory that processes share (CUDA IPC) and managed memory are not covered: the driver refuses, and nothing changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import ConflictError, UnavailableError
from .gpus import of_machine
from .stopping import descendants, send

_RUNNING, _LOCKED, _CHECKPOINTED = 0, 1, 2
_LOCK_MS = 10_000  #: for work that is queued on the device
_OLDEST = 570  #: the driver's release in which these functions came


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair: the UUIDs of a GPU that was checkpointed, and of the one to restore on."""

    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs; its fields for pairs of GPUs are reserved, 0, in older headers."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("more", ctypes.c_uint64),
    )


class Checkpoints:
    """The driver's functions, and what is made of them."""

    def __init__(self, driver: str = "libcuda.so.1") -> None:
        """Load the driver; :class:`UnavailableError` if there is none, or it is too old."""
        try:
            self._driver = ctypes.CDLL(driver)
            self._driver.cuCheckpointProcessLock  # noqa: B018  # is it there?
        except (OSError, AttributeError) as error:
            raise UnavailableError(
                f"this job has ended no mini-batch; only NVIDIA's driver {_OLDEST} or later could suspend it: {error}"
            ) from None
        self._call("cuInit", 0)

    def suspend(self, pid: int) -> int:
        """Suspend a process and those below it: all, or none. How many of them had a device."""
        tree = [pid, *descendants(pid)]
        on_device = [each for each in tree if self._state(each) in (_RUNNING, _LOCKED)]
        done: list[int] = []
        try:
            for each in on_device:
                self.lock(each)
                done.append(each)
            for each in on_device:
                self.checkpoint(each)
        except ConflictError:
            for each in done:
                with contextlib.suppress(ConflictError):
                    self._back(each, ())
            raise
        send(signal.SIGSTOP, tree[::-1])
        return len(on_device)

    def resume(self, pid: int, pairs: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Let a process and those below it go on; ``pairs``: on other GPUs. How many are on a device."""
        tree = [pid, *descendants(pid)]
        send(signal.SIGCONT, tree)  # the driver restores in a thread of the process
        time.sleep(0.01)
        on_device = [each for each in tree if self._state(each) in (_LOCKED, _CHECKPOINTED)]
        for each in on_device:
            self._back(each, pairs)
        return len(on_device)

    def move(self, pid: int, to: str, now: str = "") -> None:
        """Move a process and those below it to another GPU, ``cuda:1``. If that fails they go on where they were.

        ``now``: where they are, if they have been moved before.
        """
        pairs = self._pairs(now or _visible(pid), to)
        self.suspend(pid)
        try:
            self.resume(pid, pairs)
        except ConflictError:
            self.resume(pid)
            raise

    # -- the steps, for one process

    def lock(self, pid: int) -> None:
        """Let no call of CUDA begin any more, and wait for those that have."""
        self._call("cuCheckpointProcessLock", pid, ctypes.byref(LockArgs(timeout_ms=_LOCK_MS)))

    def checkpoint(self, pid: int) -> None:
        """Copy device memory into memory of the process, and release the device."""
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Take a device again, and copy back. ``pairs``: UUIDs of old and new GPUs, of all that this host has."""
        arguments = RestoreArgs()
        if pairs:
            made = (GpuPair * len(pairs))()
            for each, (old, new) in zip(made, pairs, strict=True):
                each.old[:], each.new[:] = list(old), list(new)
            arguments.pairs, arguments.count = made, len(pairs)
        self._call("cuCheckpointProcessRestore", pid, ctypes.byref(arguments) if pairs else None)

    def unlock(self, pid: int) -> None:
        """Let it call CUDA again."""
        self._call("cuCheckpointProcessUnlock", pid, None)

    def uuids(self) -> list[bytes]:
        """The UUIDs of the GPUs, by number."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        found = []
        for index in range(count.value):
            uuid = (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGetUuid", ctypes.byref(uuid), index)
            found.append(bytes(uuid))
        return found

    def swapped(self, one: int, other: int) -> list[tuple[bytes, bytes]]:
        """Which GPU stands for which, if two change places and all others stay."""
        uuids = self.uuids()
        new = {one: other, other: one}
        return [(uuid, uuids[new.get(index, index)]) for index, uuid in enumerate(uuids)]

    # -- parts

    def _back(self, pid: int, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        if self._state(pid) == _CHECKPOINTED:
            self.restore(pid, pairs)
        self.unlock(pid)

    def _pairs(self, now: str, to: str) -> list[tuple[bytes, bytes]]:
        uuids = self.uuids()
        numbers = [_number(gpu, uuids) for gpu in (now, to)]
        for gpu, number in zip((now, to), numbers, strict=True):
            if number < 0:
                raise ConflictError(f"no GPU {gpu!r} here: there are cuda:0 to cuda:{len(uuids) - 1}, and their UUIDs")
        return self.swapped(*numbers)

    def _state(self, pid: int) -> int:
        """Its state; -1 if it has no device."""
        state = ctypes.c_int(-1)
        return state.value if self._driver.cuCheckpointProcessGetState(pid, ctypes.byref(state)) == 0 else -1

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise ConflictError(f"{name} of NVIDIA's driver failed with code {code} (CUresult in cuda.h)")


def _visible(pid: int) -> str:
    """The GPU that a process uses: the first that it sees."""
    variables = []
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return of_machine(0, dict(each.split("=", 1) for each in variables if "=" in each))


def _number(gpu: str, uuids: Sequence[bytes]) -> int:
    """The number of the GPU that is meant by ``cuda:1``, ``1`` or ``GPU-`` and its UUID; -1: there is none."""
    name = gpu.removeprefix("cuda:")
    if name.isdigit():
        return int(name) if int(name) < len(uuids) else -1
    asked = name.removeprefix("GPU-").replace("-", "").lower()
    found = [number for number, uuid in enumerate(uuids) if uuid.hex() == asked]
    return found[0] if found else -1
