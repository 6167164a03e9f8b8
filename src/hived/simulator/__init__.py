"""Trace-driven simulation of the pure core: traces, the event loop, metrics, figures and experiments."""

from hived.cluster.sharing import Sharing

from .experiment import Results, run_experiment
from .record import Record, Run
from .report import Report, make_report
from .scenario import Preempted, Scenario
from .simulation import simulate

__all__ = [
    "Preempted",
    "Record",
    "Report",
    "Results",
    "Run",
    "Scenario",
    "Sharing",
    "make_report",
    "run_experiment",
    "simulate",
]
