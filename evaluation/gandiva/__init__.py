"""Gandiva's evaluation (OSDI'18) by simulation, a file for each kind of experiment.

What only echoes its input is left out: Table 1 is the input of the contention law; Figures 12 and 13 measure GPUs.
"""

from __future__ import annotations

from ..against_private import against_private
from ..experiment import Experiment
from . import fig15, fig18, searches, table3, table5, timelines

EXPERIMENTS: tuple[Experiment, ...] = (
    *timelines.EXPERIMENTS,
    searches.FIG14,
    table3.EXPERIMENT,
    searches.TABLE4_EXPERIMENT,
    fig15.EXPERIMENT,
    table5.EXPERIMENT,
    fig18.EXPERIMENT,
    against_private("gandiva", table5.MIX),
)
