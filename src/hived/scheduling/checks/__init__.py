"""The re-derivation of a scheduler's queues and indexes from its jobs: for tests, and for debugging in production."""

from .scheduler import check_scheduler

__all__ = ["check_scheduler"]
