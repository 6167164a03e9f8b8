"""Job models: what a job needs of a GPU, what it gains and loses beside others, and what its placement costs it.

Data (``models.csv``, replaceable) and pure functions on it: :mod:`.table` reads them, :mod:`.contention` is the one law
of jobs on the same GPUs, :mod:`.locality` the speed of a placement, :mod:`.mixing` draws models for jobs without one.
"""

from __future__ import annotations

from .contention import OWNER_LOSS, guest_rates, packed_memory, packed_rates
from .locality import Affinity, Locality, rate_at, speed
from .mixing import assign_models
from .table import Contention, JobModel, Models

__all__ = [
    "OWNER_LOSS",
    "Affinity",
    "Contention",
    "JobModel",
    "Locality",
    "Models",
    "assign_models",
    "guest_rates",
    "packed_memory",
    "packed_rates",
    "rate_at",
    "speed",
]
