"""Trace-driven simulation of the pure core: traces, the event loop, metrics, figures and experiments."""

from hived.cluster.sharing import Sharing

from .experiment import Options, Preempted, Results, run_experiment
from .record import Record, Run
from .report import Report, make_report
from .simulation import simulate

__all__ = [
    "Options",
    "Preempted",
    "Record",
    "Report",
    "Results",
    "Run",
    "Sharing",
    "make_report",
    "run_experiment",
    "simulate",
]
