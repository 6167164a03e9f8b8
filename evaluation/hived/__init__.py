"""HiveD's evaluation (OSDI'20), a file for each figure, and a figure of its draft."""

from __future__ import annotations

from ..experiment import Experiment
from . import draft, fig1, fig5, fig6, fig7, fig8, fig9, fig10, fig11

#: in the order of the report; section 5.3, which measures time, is beside them
EXPERIMENTS: tuple[Experiment, ...] = (
    fig1.EXPERIMENT,
    fig5.SMALL,
    fig5.LARGE,
    fig6.FULL_SIZE,
    fig6.CROWDED,
    fig7.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    fig10.EXPERIMENT,
    fig11.EXPERIMENT,
    draft.EXAMPLE,
)
