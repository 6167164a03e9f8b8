"""The interface of the tiers by which device memory is managed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class TierError(RuntimeError):
    """A tier cannot do it, and everything is as before; the next tier may. Its text says why."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Memory of a process on its device."""

    device: int = 0  #: held, cache included
    used: int = 0  #: of these, in tensors
    peak: int = 0  #: most in tensors, since the start or since the script has reset PyTorch's own peak
    host: int = 0  #: device tensors that stand in host memory


class Tier(Protocol):
    """One way to manage device memory. Called at boundaries by the training thread; ``held`` by any."""

    name: str  #: as reported: pager, framework, stop
    stayed: int  #: bytes that the last release has left in use
    limited: int  #: device bytes that it keeps to, as it is now; 0: no limit

    def release(self) -> int:
        """Copy what is on the device to the host, and free all of it, cache included. The bytes copied.

        :class:`TierError` if it cannot: nothing has changed then.
        """

    def restore(self) -> None:
        """Take back what was released, all of it, before anything uses it."""

    def limit(self, limit: int, most: int) -> str:
        """Keep device memory at ``limit`` bytes from now on; 0: no limit. Why that is not kept in full, or "".

        At a boundary it may rise, up to ``most``, by what had no room in the mini-batch.
        """

    def boundary(self) -> None:
        """Bring device memory to the limit; what may come back to the device comes back."""

    def held(self) -> Bytes:
        """How much is held and used."""


class StopTier:
    """No memory is released: the process only stops. What is left where nothing else works."""

    name = "stop"
    limited = stayed = 0

    def release(self) -> int:
        """Nothing is released."""
        return 0

    def restore(self) -> None:
        """Nothing was released."""

    def limit(self, limit: int, most: int) -> str:
        """Not kept."""
        return "this process has no device memory that can be limited" if limit else ""

    def boundary(self) -> None:
        """Nothing to do."""

    def held(self) -> Bytes:
        """Unknown."""
        return Bytes()
