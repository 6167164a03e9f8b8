"""AntMan (OSDI'20): opportunistic jobs use what guaranteed ones leave of their GPUs, and are limited, never killed."""

from __future__ import annotations

from hived.scheduling import GpuSharing, Policy

from .guest_scheduler import guests_of
from .parameters import GuestSharing


class AntMan(Policy):
    """First come, first served; a job without a turn runs as a guest of others, and is upgraded where it runs.

    VCs say in the spec whose guests their jobs accept (``guests``). Where none does, jobs start early on loans.
    """

    name = "antman"

    def __init__(
        self,
        most_utilization: float = 0.8,
        window_s: float = 10.0,
        wait_s: float = 0.0,
        settle_s: float = 20.0,
        step_s: float = 5.0,
        steps: int = 4,
        gpu_memory_gib: float = 32.0,
        moves: bool = True,
        limits: bool = True,
        patience: float = 0.0,
    ) -> None:
        """``patience``: as of any policy, in seconds; the others: :class:`GuestSharing`."""
        self.patience = patience
        parameters = GuestSharing(
            most_utilization=most_utilization, window_s=window_s, wait_s=wait_s, settle_s=settle_s, step_s=step_s,
            steps=steps, gpu_memory_gib=gpu_memory_gib, moves=moves,
            limits=limits,
        )  # fmt: skip
        self.gpu_sharing = GpuSharing(guests_of, parameters, live=limits)
