"""Exact safety: no job is ever later than alone in its tenant's private cluster (docs/exact-safety.md)."""

from .following import Following, borrowing_policies, check_exact
from .timeline import OnRun, VirtualTimeline

__all__ = ["Following", "OnRun", "VirtualTimeline", "borrowing_policies", "check_exact"]
