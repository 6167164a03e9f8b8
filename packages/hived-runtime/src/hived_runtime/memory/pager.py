"""The pager: physical memory under PyTorch's stock caching allocator (Gandiva, OSDI'18, 4.1; AntMan, OSDI'20, 4.1).

The pager is a C++ library (``pager.cpp``) that stands in for ``cudaMalloc`` and ``cudaFree``. Addresses stay while the
memory behind them moves: to the host when the job is suspended, or when it uses more than its limit, and back. Here it
is compiled, loaded, and called. The tests have a fake driver; it was measured on one H100
(docs/reference/gpu-results.md).

    build     g++, once for each version of the source: the result is kept in the user's cache folder
    install   the import slots of the allocator's library, rewritten once in a process, before its first device tensor
    limit     in force for new allocations at once, for memory that is held already at the next boundary only

All calls may come from any thread. They hold one lock: an allocation waits for a suspend that is under way.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("pager.cpp")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILERS = ("g++", "c++", "clang++")
_COMPILE_S = 120.0  #: a compiler that takes longer hangs
_DIGEST = hashlib.sha256().digest_size
#: codes of the pager itself; all others are the driver's (``CUresult``)
_OWN_CODES = {
    -1: "the driver's library cannot be loaded, or lacks this function",
    -2: "the pager is not started",
    -3: "no such import slots: the library is not loaded, or does not import them",
    -4: "this process is a fork of the one that has the pager",
    -5: "this process has a pager already",
    -6: "the driver keeps memory that was given back",
}


class PagerUnavailable(RuntimeError):  # noqa: N818 - it is a state of the machine, and the caller goes on without
    """The pager cannot be used here. Nothing was changed; its text is the reason."""


class PagerError(RuntimeError):
    """An operation failed, and what it had begun is undone: no contents are lost.

    If the driver refuses the undoing as well, :attr:`PagerStats.suspended` is true; :meth:`Pager.resume` tries again.
    """

    def __init__(self, call: str, code: int) -> None:
        self.call = call  #: the driver's function, or the pager's operation
        self.code = code  #: a ``CUresult``, or below 0 a code of the pager itself
        why = _OWN_CODES.get(code, "out of memory" if code == 2 else "see CUresult in cuda.h")
        super().__init__(f"{call} failed with code {code}: {why}")


@dataclass(frozen=True, slots=True)
class PagerStats:
    """What the pager holds. Bytes are physical memory, in whole granules of the driver."""

    device_bytes: int  #: on the device
    host_bytes: int  #: segments of the device that stand on the host; without the slabs
    peak_device_bytes: int  #: most since the peaks were reset
    peak_host_bytes: int
    slab_bytes: int  #: pinned memory of the host, kept from one suspend to the next
    limit: int  #: device bytes; 0: none
    segments: int  #: allocations that live
    host_bytes_since_boundary: (
        int  #: most that lived at once of what had no room in this mini-batch (AntMan, Figure 7a)
    )
    overflows: int  #: chunks that were allocated or resumed on the host, since the start
    promotions: int  #: chunks that moved to the device at a boundary, since the start
    demotions: int  #: chunks that moved to the host at a boundary, since the start
    suspended: bool
    last_error: int  #: code of the last operation that failed; 0: none has
    last_call: str  #: the call of the driver that made it fail


@dataclass(frozen=True, slots=True)
class Moved:
    """What a boundary did."""

    demoted_chunks: int
    demoted_bytes: int
    promoted_chunks: int
    promoted_bytes: int
    seconds: float


class _Stats(ctypes.Structure):
    """``Stats`` of pager.cpp."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in PagerStats.__slots__[:11]),
        ("suspended", ctypes.c_int64),
        ("last_error", ctypes.c_int64),
        ("last_call", ctypes.c_char * 40),
    )


class _Moved(ctypes.Structure):
    """``Moved`` of pager.cpp."""

    _fields_ = (*((name, ctypes.c_uint64) for name in Moved.__slots__[:4]), ("seconds", ctypes.c_double))


def unsupported(environ: Mapping[str, str]) -> str | None:
    """Why PyTorch's allocator, with these environment variables, cannot be paged. ``None``: it can.

    Two settings allocate by other functions than ``cudaMalloc``, which the import slots do not see; without the cache
    nobody frees memory and asks again. What a script sets later, by a call, is not seen here.
    """
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        for setting in environ.get(variable, "").split(","):
            name, _, value = (part.strip() for part in setting.partition(":"))
            if name == "expandable_segments" and value.lower() in ("true", "1"):
                return f"{variable} has expandable_segments:True, which does not allocate by cudaMalloc: remove it"
            if name == "backend" and value.lower() == "cudamallocasync":
                return f"{variable} has backend:cudaMallocAsync, which does not allocate by cudaMalloc: remove it"
    for variable in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_MEMORY_CACHING"):
        if environ.get(variable, "0") not in ("", "0"):
            return f"{variable} is set: without the caching allocator each tensor would be a segment of its own"
    return None


def build() -> Path:
    """The pager's library for this source and machine: from the cache, or compiled now (1 to 3 s).

    A file of the cache ends with the SHA-256 of what comes before, so a torn or foreign one is compiled again rather
    than loaded. :class:`PagerUnavailable`: no compiler, it fails, or the cache folder cannot be used.
    """
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(repr((_FLAGS, platform.machine(), platform.libc_ver())).encode() + source).hexdigest()
    target = _cache_folder() / f"pager-{key[:32]}.so"
    if not _whole(target):
        _compile(target)
    return target


def _whole(path: Path) -> bool:
    """Whether a file of the cache is as it was written."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def _cache_folder() -> Path:
    """The folder of compiled libraries, which this user alone may write."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hived"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise PagerUnavailable(f"{folder} is of another user: a library there is not to be trusted")
        folder.chmod(0o700)
    except (OSError, RuntimeError) as error:
        if isinstance(error, PagerUnavailable):
            raise
        raise PagerUnavailable(f"no cache folder for the pager's library: {error}") from error
    return folder


def _compile(target: Path) -> None:
    """Compile to a file beside the target, and rename it: others see the whole library or none."""
    named = os.environ.get("CXX")
    compiler = next((found for each in ((named,) if named else _COMPILERS) if (found := shutil.which(each))), None)
    if compiler is None:
        raise PagerUnavailable(f"no C++ compiler: {named or ', '.join(_COMPILERS)} not found; install g++, or set CXX")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            command = [compiler, *_FLAGS, "-o", str(made), str(_SOURCE), "-ldl"]
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_S)
            if result.returncode != 0:
                raise PagerUnavailable(f"{compiler} cannot compile the pager: {result.stderr.strip()[:500]}")
            content = made.read_bytes()
            made.write_bytes(content + hashlib.sha256(content).digest())
            made.rename(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PagerUnavailable(f"{compiler} cannot compile the pager: {error}") from error


class Pager:
    """The pager of this process. There is one at most, for the process's life."""

    def __init__(self, driver: str | None = None, chunk: int = 32 << 20, retry_first: bool = True) -> None:
        """Load the library and find the driver's functions; the driver itself is started by the first allocation.

        ``driver``: its library, ``None`` for libcuda.so.1. ``chunk``: bytes of physical memory that move as one,
        rounded up to the driver's granularity. ``retry_first``: what has no room is first refused, so that the caller
        frees its cache and asks again; without, it goes to the host at once.
        :class:`PagerUnavailable`: no compiler, no driver, or one without the functions that are needed.
        """
        path = build()
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise PagerUnavailable(f"the pager's library cannot be loaded: {error}") from error
        self._library.hived_pager_slots.restype = ctypes.c_size_t
        self._library.hived_pager_limit.argtypes = (ctypes.c_uint64,)
        name = None if driver is None else os.fsencode(driver)
        code = self._library.hived_pager_init(name, ctypes.c_size_t(chunk), int(retry_first))
        if code:
            raise PagerUnavailable(str(PagerError(self.stats().last_call, code)))

    def install(self, library: str, alloc_symbol: str, free_symbol: str, least_bytes: int = 1) -> None:
        """Rewrite a loaded library's import slots, so that it allocates here what has ``least_bytes`` or more.

        ``library``: its file name or path. The symbols: ``cudaMalloc, cudaFree``, or ``posix_memalign, free``. What
        it has allocated before stays with the original. :class:`PagerError`: a symbol has no slot; none is changed.
        """
        code = self._library.hived_pager_install(
            library.encode(), alloc_symbol.encode(), free_symbol.encode(), ctypes.c_size_t(least_bytes)
        )
        if code:
            raise PagerError(f"install of {alloc_symbol}, {free_symbol} in {library}", code)

    def slots(self, library: str, symbol: str) -> tuple[int, ...]:
        """The addresses that a loaded library's import slots of a symbol hold now."""
        values = (ctypes.c_void_p * 16)()
        count = self._library.hived_pager_slots(library.encode(), symbol.encode(), values, ctypes.c_size_t(16))
        return tuple(value or 0 for value in values[: min(count, 16)])

    def limit(self, limit_bytes: int) -> None:
        """Limit the device bytes of this process; 0: no limit. In force for what is held at :meth:`boundary` only."""
        self._library.hived_pager_limit(limit_bytes)

    def boundary(self) -> Moved:
        """Bring device memory to the limit, in place: youngest chunks to the host, or oldest ones back to the device.

        To be called between two mini-batches, when no kernel runs. It ends the mini-batch for
        :attr:`PagerStats.host_bytes_since_boundary`: read that before. A device that others have filled is no error,
        the chunks stay on the host. :class:`PagerError`: a part has moved, no contents are lost.
        """
        moved = _Moved()
        self._done(self._library.hived_pager_boundary(ctypes.byref(moved)))
        return Moved(*(getattr(moved, name) for name in Moved.__slots__))

    def suspend(self) -> int:
        """Copy the device's memory to the host, and release all of it. Bytes that were copied.

        Until :meth:`resume` any access faults, an allocation answers out of memory, a free is honoured. The caller
        empties PyTorch's cache before. :class:`PagerError`: all is as before.
        """
        copied = ctypes.c_uint64()
        self._done(self._library.hived_pager_suspend(ctypes.byref(copied)))
        return copied.value

    def resume(self) -> int:
        """Bring all memory back to its addresses. Bytes that were copied.

        What has no room on the device, or in the limit, is put on the host; a later boundary promotes it.
        :class:`PagerError`: still suspended, to be tried again.
        """
        copied = ctypes.c_uint64()
        self._done(self._library.hived_pager_resume(ctypes.byref(copied)))
        return copied.value

    def owns(self, address: int) -> bool:
        """Whether an address lies in memory of the pager. O(log segments)."""
        return bool(self._library.hived_pager_owns(ctypes.c_void_p(address)))

    def stats(self) -> PagerStats:
        """What the pager holds now."""
        found = _Stats()
        self._library.hived_pager_stats(ctypes.byref(found))
        values = {name: getattr(found, name) for name in PagerStats.__slots__}
        values["suspended"], values["last_call"] = bool(found.suspended), found.last_call.decode()
        return PagerStats(**values)

    def reset_peaks(self) -> None:
        """Let the peaks start from what is held now."""
        self._library.hived_pager_reset_peaks()

    def _done(self, code: int) -> None:
        if code:
            raise PagerError(self.stats().last_call or "the pager", code)
