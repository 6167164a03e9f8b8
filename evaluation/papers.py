"""The papers whose evaluation can be run again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from . import antman, exchange, gandiva
from . import hived as of_hived
from .experiment import Experiment


class Paper(StrEnum):
    """By the name of the command's argument."""

    HIVED = "hived"
    GANDIVA = "gandiva"
    ANTMAN = "antman"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a report has of a paper."""

    heading: str
    intro: str
    experiments: tuple[Experiment, ...]  #: in the order of the report
    table1: bool  #: whether its traces have the tenants of HiveD's Table 1, and a second one is run
    timed: bool = False  #: whether requests are timed, as in section 5.3


EVALUATIONS = {
    Paper.HIVED: Evaluation(
        "HiveD's evaluation, run again",
        "Every figure of the evaluation of HiveD (Zhao et al., OSDI'20), with the paper's numbers beside ours, and "
        "a figure of its draft.",
        of_hived.EXPERIMENTS,
        True,
        True,
    ),
    Paper.GANDIVA: Evaluation(
        "Gandiva's evaluation, by simulation",
        "Figures and tables of Gandiva (Xiao et al., OSDI'18) that are about scheduling, simulated, with the paper's "
        "numbers beside ours. What measures GPUs is left out: Table 1 is the input of the contention law "
        "(docs/reference/models.md), Figures 12 and 13 are of real migrations.",
        gandiva.EXPERIMENTS,
        False,
    ),
    Paper.ANTMAN: Evaluation(
        "AntMan's evaluation, by simulation",
        "Figures and tables of AntMan (Xiao et al., OSDI'20) that are about scheduling, simulated, with the paper's "
        "numbers beside ours. What measures GPUs is left out: Figures 10 to 12, Tables 2 and 5.",
        antman.EXPERIMENTS,
        False,
    ),
    Paper.EXCHANGE: Evaluation(
        "Cell exchange and exact safety, by simulation",
        "Figures 3, 10, 11 and 12 and Tables 4 and 5 of the draft of HiveD, in which tenants exchange cells, with its "
        "numbers beside ours; and what no paper has: jobs that are never later than in a private cluster.",
        exchange.EXPERIMENTS,
        True,
    ),
}
