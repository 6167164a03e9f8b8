"""AntMan's evaluation (OSDI'20) by simulation, a file for each kind of experiment.

What measures GPUs is left out: Figures 10 to 12, Tables 2 and 5.
"""

from __future__ import annotations

from ..against_private import against_private
from ..experiment import Experiment
from . import fig2, fig13, table4

EXPERIMENTS: tuple[Experiment, ...] = (
    fig2.EXPERIMENT,
    fig13.EXPERIMENT,
    table4.EXPERIMENT,
    against_private("antman", table4.MIX, guests="all"),
)
