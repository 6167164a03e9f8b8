"""The pager as a tier: addresses stay, and a limit holds within the mini-batch too (AntMan, OSDI'20, 3.1.1 and 4.1).

It is tested on a fake driver, and has met one GPU: so it is there only if asked for (``hived train run --pager``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

import torch

from .pager import Pager, PagerError, PagerUnavailable, unsupported
from .tier import Bytes, Tier, TierError

_HOST_LEAST = 64 << 10  #: without a GPU, smaller tensors stay with the C library


class PagedTier:
    """Device memory by the pager."""

    name = "pager"

    def __init__(self, pager: Pager, cuda: bool) -> None:
        self.pager = pager
        self._cuda = cuda
        self.limited = self._most = self.stayed = 0

    def release(self) -> int:
        """Empty the cache, copy out and unmap. O(bytes)."""
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        try:
            return self.pager.suspend()
        except PagerError as error:
            while self.pager.stats().suspended:  # nothing may go on with pages that are not there
                with contextlib.suppress(TierError):
                    self.restore()
                    break
                time.sleep(0.2)
            raise TierError(str(error)) from error

    def restore(self) -> None:
        """Bring all back to its addresses; what has no room on the device goes to the host."""
        try:
            self.pager.resume()
        except PagerError as error:
            raise TierError(str(error)) from error

    def limit(self, limit: int, most: int) -> str:
        """In force at once for new allocations, for what is held at :meth:`boundary`."""
        self.limited, self._most = limit, max(limit, most)
        self.pager.limit(limit)
        return ""

    def boundary(self) -> None:
        """Let the limit rise by what had no room (Figure 7a), as far as it may, and bring memory to it."""
        overflow = self.pager.stats().host_bytes_since_boundary
        if self.limited and overflow and self.limited < self._most:
            self.limited = min(self.limited + overflow, self._most)
            self.pager.limit(self.limited)
        if self._cuda and self.limited and torch.cuda.memory_reserved() > self.limited:
            torch.cuda.empty_cache()
        try:
            self.pager.boundary()
        except PagerError as error:
            raise TierError(str(error)) from error

    def held(self) -> Bytes:
        """From the pager; within a segment PyTorch's cache knows what is used."""
        found = self.pager.stats()
        used, peak = found.device_bytes, found.peak_device_bytes
        if self._cuda:
            used, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return Bytes(found.device_bytes, used, peak, found.host_bytes)


def installed(driver: str) -> Callable[[], Tier]:
    """Put the pager under PyTorch's allocator, now: before its first tensor on the device. What makes the tier of it.

    ``driver``: "cuda", or the library of another one; then the tensors of the CPU are paged, as the tests do it. What
    makes the tier raises :class:`TierError` if the pager cannot be used.
    """
    why: str | None
    tier: Tier | None = None
    cuda = driver == "cuda"
    try:
        if cuda and torch.cuda.is_initialized():
            why = "the script has used the GPU before the pager was there: import hived_runtime earlier"
        else:
            why = unsupported(os.environ)
        if why is None:
            pager = Pager(None if cuda else driver, retry_first=cuda)
            if cuda:
                pager.install("libc10_cuda.so", "cudaMalloc", "cudaFree")
            else:
                pager.install("libc10.so", "posix_memalign", "free", least_bytes=_HOST_LEAST)
            tier = PagedTier(pager, cuda)
    except (PagerUnavailable, PagerError) as error:
        why = str(error)
    if why is not None:
        print(f"hived_runtime: no pager: {why}", file=sys.stderr)

    def made() -> Tier:
        if tier is None:
            raise TierError(f"no pager: {why}")
        return tier

    return made
