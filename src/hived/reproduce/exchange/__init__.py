"""Cell exchange (the draft of HiveD, 3.3 and 5.4) and exact safety, by simulation.

The draft's Figures 3 and 10 need no exchange, and are in the evaluation of HiveD.
"""

from __future__ import annotations

from ..experiment import Experiment
from . import safety, tables

EXPERIMENTS: tuple[Experiment, ...] = (*tables.EXPERIMENTS, safety.EXPERIMENT)
