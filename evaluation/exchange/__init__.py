"""Cell exchange (the draft of HiveD, 3.3 and 5.4), a file for each figure, and exact safety, by simulation.

Figures 3 and 10 show, without trades, what tenants could exchange; Tables 4 and 5 and Figures 11 and 12, what they do.
Who is worse off by trades under load is ours.
"""

from __future__ import annotations

from ..experiment import Experiment
from . import fig3, fig10, fig11, fig12, safety, tables, worse

#: in the order of the report
EXPERIMENTS: tuple[Experiment, ...] = (
    fig3.EXPERIMENT,
    fig10.EXPERIMENT,
    tables.TABLE4,
    fig11.EXPERIMENT,
    tables.TABLE5,
    fig12.EXPERIMENT,
    worse.EXPERIMENT,
    safety.EXPERIMENT,
)
