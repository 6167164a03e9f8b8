"""The framework's way to release device memory: storages of tensors are copied out, emptied, and filled again.

A storage is emptied in place (``resize_(0)``), so every tensor, view, saved tensor and bucket that shares it finds its
bytes again. Only their addresses change: a CUDA graph that holds them refuses this tier.

What optimizers and modules hold is moved first. If much is in use after that, all objects of the process are walked: on
a GPU for every tensor that Python holds, without one for the modules that were not noted. What is in use then is said.
On a GPU the caching allocator gives all of its cache back. Without one the bytes go to an unlinked file on the disk: so
the tier is tested where there is no GPU, and a suspended job leaves its memory to others there too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from ..storage import as_bytes
from . import noted
from .tier import Bytes, TierError

_LITTLE = 32 << 20  #: bytes: who leaves no more has left what it can
_SMALL = 4096  #: bytes: on the host smaller storages stay, they free no page


class FrameworkTier:
    """Storages are emptied and filled again, on one device."""

    name = "framework"

    def __init__(self, device: torch.device, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._optimizers = optimizers
        self.limited = 0
        self._kept: list[tuple[Any, Any, int]] = []  #: storage, its copy (or its place in the file), bytes
        self._file: IO[bytes] | None = None
        self.stayed = 0

    def release(self) -> int:
        """Copy out and empty. O(bytes), and O(objects of the process) more where much would stay."""
        if self._cuda and noted.has_graphs():
            raise TierError("a CUDA graph holds addresses of device memory")
        self.stayed = 0
        try:
            if self._cuda:
                torch.cuda.synchronize(self._device)  # other streams may still write to them
            self._empty(self._noted_tensors())
            if self._in_use() > _LITTLE:
                self._empty(self._all_tensors())
            left = self._in_use()
        except Exception as error:  # also one of the script's own objects, as they are looked at
            self.restore()  # what was emptied so far
            room = isinstance(error, OSError | RuntimeError)
            raise TierError(f"{'no room on the host: ' if room else ''}{type(error).__name__}: {error}") from error
        self.stayed = left if left > _LITTLE else 0
        return sum(size for _, _, size in self._kept)

    def restore(self) -> None:
        """Allocate and fill. :class:`TierError` while the device has no room; then it goes on where it stopped."""
        while self._kept:
            storage, kept, size = self._kept[-1]
            try:
                storage.resize_(size)
            except RuntimeError as error:
                self._empty_cache()
                raise TierError(f"no room on the device for {size} of the bytes that were there: {error}") from error
            if self._file is None:
                storage.copy_(kept)
            else:
                self._file.seek(kept)
                if self._file.readinto(as_bytes(storage)) != size:  # type: ignore[attr-defined]
                    raise OSError("the file of a suspended process is cut short")
            self._kept.pop()
        self._drop()

    def limit(self, limit: int, most: int) -> str:
        """The cache is kept below the limit; what tensors need is not: only the pager can put tensors on the host."""
        self.limited = limit
        if not limit:
            return ""
        return (
            "without --pager a memory limit holds for PyTorch's cache, not for tensors"
            if self._cuda
            else "without a GPU there is no device memory to limit"
        )

    def boundary(self) -> None:
        """Shrink the cache to what is used, if both are above the limit."""
        if self._cuda and self.limited and torch.cuda.memory_reserved(self._device) > self.limited:
            torch.cuda.empty_cache()

    def held(self) -> Bytes:
        """From the caching allocator; without a GPU the anonymous memory of the process."""
        if not self._cuda:
            held = _anonymous_bytes()
            return Bytes(0, 0, 0, 0) if held is None else Bytes(held, held, held, 0)
        used, peak = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        return Bytes(torch.cuda.memory_reserved(self._device), used, peak, 0)

    # -- what there is

    def _in_use(self) -> int:
        """Bytes in tensors on the device; without a GPU, in memory of the process since the runtime started."""
        if self._cuda:
            return int(torch.cuda.memory_allocated(self._device))
        _trim()
        return max(0, (_anonymous_bytes() or 0) - _AT_START)

    def _storages(self, tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
        """Storages on the device that can be emptied and are not yet, each once."""
        seen = {storage._cdata for storage, _, _ in self._kept}
        for tensor in tensors:
            for part in () if is_lazy(tensor) else _dense_parts(tensor):
                if part.device.type != self._device.type or (self._cuda and part.device != self._device):
                    continue
                storage = part.untyped_storage()
                if storage._cdata in seen:
                    continue
                seen.add(storage._cdata)
                if can_be_emptied(storage):
                    yield storage

    def _noted_tensors(self) -> Iterator[torch.Tensor]:
        """What optimizers and the modules that were noted hold. O(their parameters)."""
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield parameter
                    if parameter.grad is not None:
                        yield parameter.grad
            for state in optimizer.state.values():
                yield from _tensors_in(state)
        for module in noted.modules():
            yield from _tensors_of(module)

    def _all_tensors(self) -> Iterator[torch.Tensor]:
        """What any object of the process holds. O(objects)."""
        for each in noted.all_objects():
            kind = type(each)  # not isinstance: proxies answer it by what they stand for, dead ones by an error
            if issubclass(kind, torch.nn.Module):
                yield from _tensors_of(each)
            elif self._cuda and issubclass(kind, torch.Tensor):
                yield each

    # -- copies

    def _empty(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the storages of tensors out, and empty them."""
        if not self._cuda and self._file is None:
            self._file = tempfile.TemporaryFile(dir=os.environ.get("HIVED_SPILL") or _spill_folder())  # noqa: SIM115
        first, place = len(self._kept), sum(size for _, _, size in self._kept)
        for storage in self._storages(tensors):
            size = storage.nbytes()
            if self._file is None:
                copy = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()
                copy.copy_(storage, non_blocking=True)
                self._kept.append((storage, copy, size))
            else:
                self._file.seek(place)
                self._file.write(as_bytes(storage))
                self._kept.append((storage, place, size))
                place += size
        if self._file is None:
            torch.cuda.synchronize(self._device)
        else:
            self._file.flush()
        for storage, _, _ in self._kept[first:]:
            storage.resize_(0)
        self._empty_cache()

    def _drop(self) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _empty_cache(self) -> None:
        if self._cuda:
            with contextlib.suppress(AttributeError):
                torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        else:
            _trim()


def can_be_emptied(storage: Any) -> bool:
    """Whether a storage can be emptied in place, and it is worth it: no other process, and no owner of its own, has it.

    On a GPU ``is_shared`` is true of every storage; one that came from another process cannot be resized there.
    """
    if storage.device.type == "cpu":
        return bool(storage.nbytes() >= _SMALL and storage.resizable() and not storage.is_shared())
    return bool(storage.nbytes() and storage.resizable())


def _dense_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages of their own that a tensor is made of."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, which has none
    if tensor.layout is torch.strided:
        if tensor.device.type != "meta" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    with contextlib.suppress(Exception):  # a module whose __init__ has not come so far
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)


def _spill_folder() -> str | None:
    """A folder on the disk: the usual temporary folder may be in memory."""
    return "/var/tmp" if Path("/var/tmp").is_dir() else None


def _anonymous_bytes() -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _trim() -> None:
    """Give free memory of the C library back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_AT_START = _anonymous_bytes() or 0  #: without a GPU: of Python, PyTorch, and what the script had before it
