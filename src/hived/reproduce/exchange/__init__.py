"""Cell exchange (the draft of HiveD, 3.3 and 5.4) and exact safety, by simulation.

Figures 3 and 10 show, without trades, what tenants could exchange.
"""

from __future__ import annotations

from ..experiment import Experiment
from . import fig3, fig10, safety, tables

EXPERIMENTS: tuple[Experiment, ...] = (
    fig3.EXPERIMENT,
    fig10.EXPERIMENT,
    *tables.EXPERIMENTS,
    safety.EXPERIMENT,
)
