"""The framework's way to release device memory: storages of tensors are copied out, emptied, and filled again.

A storage is emptied in place (``resize_(0)``), so every tensor, view, saved tensor and bucket that shares it finds its
bytes again. Only their addresses change: a CUDA graph that holds them refuses this tier.

On a GPU all tensors that Python holds are moved, and the caching allocator gives all of its cache back. Without a GPU
the same is done to parameters, gradients, optimizer states and buffers, which go to an unlinked file on the disk: so
the tier is tested where there is no GPU, and a suspended job leaves its memory to others there too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from ..storage import as_bytes
from .tier import Bytes, TierError

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

    def release(self) -> int:
        """Copy out and empty. O(bytes), and on a GPU O(objects of the process) to find its tensors."""
        if self._cuda and any(isinstance(each, torch.cuda.CUDAGraph) for each in gc.get_objects()):
            raise TierError("a CUDA graph holds addresses of device memory")
        if self._cuda:
            torch.cuda.synchronize(self._device)  # other streams may still write to them
        storages = list(self._storages())
        try:
            moved = self._copied_out(storages)
        except (OSError, RuntimeError) as error:
            self._drop()
            raise TierError(
                f"no room on the host for {sum(each.nbytes() for each in storages)} bytes: {error}"
            ) from error
        for storage, _, _ in self._kept:
            storage.resize_(0)
        self._empty_cache()
        return moved

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

    def _storages(self) -> Iterator[Any]:
        """Storages on the device that can be emptied, each once."""
        seen = set()
        for tensor in self._tensors():
            for part in () if is_lazy(tensor) else _dense_parts(tensor):
                if part.device.type != self._device.type or (self._cuda and part.device != self._device):
                    continue
                storage = part.untyped_storage()
                if storage._cdata in seen:
                    continue
                seen.add(storage._cdata)
                if can_be_emptied(storage):
                    yield storage

    def _tensors(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield parameter
                    if parameter.grad is not None:
                        yield parameter.grad
            for state in optimizer.state.values():
                yield from _tensors_in(state)
        for each in gc.get_objects():
            kind = type(each)  # not isinstance: proxies of other libraries answer it by side effects
            if issubclass(kind, torch.nn.Module):
                with contextlib.suppress(Exception):  # a module whose __init__ has not come so far
                    yield from each.parameters(recurse=False)
                    yield from each.buffers(recurse=False)
            elif self._cuda and issubclass(kind, torch.Tensor):
                yield each

    # -- copies

    def _copied_out(self, storages: list[Any]) -> int:
        if not self._cuda:
            self._file = tempfile.TemporaryFile(dir=os.environ.get("HIVED_SPILL") or _spill_folder())  # noqa: SIM115
        place = 0
        for storage in storages:
            size = storage.nbytes()
            if self._file is None:
                copy = torch.empty(size, dtype=torch.uint8, pin_memory=True).untyped_storage()
                copy.copy_(storage, non_blocking=True)
                self._kept.append((storage, copy, size))
            else:
                self._file.write(as_bytes(storage))
                self._kept.append((storage, place, size))
                place += size
        if self._file is None:
            torch.cuda.synchronize(self._device)
        else:
            self._file.flush()
        return sum(size for _, _, size in self._kept)

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
