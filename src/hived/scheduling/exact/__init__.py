"""Exact safety: no job is ever later than alone in its tenant's private cluster (docs/explanation/exact-safety.md)."""

from .following import TimelineFollower, borrowing_policies, check_exact, check_together
from .scheduler import ExactScheduler
from .timeline import OnRun, VirtualState, VirtualTimeline

__all__ = [
    "ExactScheduler",
    "OnRun",
    "TimelineFollower",
    "VirtualState",
    "VirtualTimeline",
    "borrowing_policies",
    "check_exact",
    "check_together",
]
