"""Gandiva (OSDI'18): the policy, and how the jobs of a VC share its GPUs, server by server."""

from .parameters import TimeSlicing
from .policy import Gandiva

__all__ = ["Gandiva", "TimeSlicing"]
