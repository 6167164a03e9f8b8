"""Fair share among the users of a virtual cluster, by what each has had of late."""

from __future__ import annotations

from math import isnan

from hived.errors import InputError
from hived.scheduling import JobView, Policy

#: in seconds, as long as Slurm's PriorityDecayHalfLife is by default
HALF_LIFE_S = 7 * 86_400.0


class Fair(Policy):
    """The user who has had the least GPU time of late is next, as users of Slurm's multifactor priority expect.

    A second of a GPU, on the VC's cells or on loan, counts half after each half-life. A user's own jobs are in the
    order of submission. A job that does not fit is passed by those behind it until it has waited for ``patience``
    seconds (as under ``greedy``). Nothing that runs is displaced for it.
    """

    name = "fair"

    def __init__(self, half_life: float = HALF_LIFE_S, patience: float = 86_400.0) -> None:
        """``half_life``, ``patience``: in seconds; a week, and a day."""
        if not isinstance(half_life, int | float) or isnan(half_life) or half_life <= 0:
            raise InputError(f"policy fair: half_life is {half_life!r}; it must be seconds above 0, 604800 for a week")
        self.half_life_s, self.patience = float(half_life), patience

    def order(self, job: JobView) -> tuple[float, ...]:
        """By decayed use of its user, then by submission."""
        return job.use_rank, job.submitted, job.sequence
