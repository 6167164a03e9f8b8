"""Gandiva (OSDI'18): introspective scheduling inside a cluster."""

from __future__ import annotations

from hived.scheduling import GpuSharing, Policy

from .parameters import TimeSlicing
from .slicers import Slicers


class Gandiva(Policy):
    """Jobs start at once, on GPUs of their own or taking turns with others; packed, migrated and grown as measured.

    A job that finds no free GPUs takes turns on those of a server whose jobs have as many GPUs as it (Gandiva, 4.2).
    If there is none, it waits, and the jobs behind it pass for ``patience`` seconds.
    """

    name = "gandiva"

    def __init__(
        self,
        packs: bool = True,
        migrates: bool = True,
        grows: bool = True,
        quantum_s: float = 60.0,
        most_height: float = 4.0,
        profile_s: float = 60.0,
        trial_s: float = 60.0,
        most_trials: int = 3,
        warm_s: float = 30.0,
        idle_s: float = 60.0,
        gpu_memory_gib: float = 24.0,
        exact: bool = False,
        patience: float = 3_600.0,
    ) -> None:
        """``patience``: ours, in seconds; the others: :class:`TimeSlicing`."""
        self.patience = patience
        parameters = TimeSlicing(
            quantum_s=quantum_s, packs=packs, migrates=migrates, grows=grows, most_height=most_height,
            profile_s=profile_s, trial_s=trial_s, most_trials=most_trials, warm_s=warm_s, idle_s=idle_s, exact=exact,
            gpu_memory_gib=gpu_memory_gib,
        )  # fmt: skip
        self.gpu_sharing = GpuSharing(Slicers, parameters, live=True)
