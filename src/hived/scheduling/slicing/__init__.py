"""Time-slicing: the jobs of a VC that share its GPUs, server by server (Gandiva, OSDI'18, 4.2). Pure."""

from .parameters import TimeSlicing
from .probe import Probe

__all__ = ["Probe", "TimeSlicing"]
