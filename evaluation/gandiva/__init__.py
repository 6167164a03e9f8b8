"""Gandiva's evaluation (OSDI'18) by simulation.

What only echoes its input is left out: Table 1 is the input of the contention law; Figures 12 and 13 measure GPUs.
"""

from . import searches, sharing, timelines
from .base import GANDIVA

__all__ = ["GANDIVA", "searches", "sharing", "timelines"]
