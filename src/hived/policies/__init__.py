"""Schedulers for inside a VC, a quota share or a private cluster, and the queues they run over. Pure."""

from .decisions import Decision, Move, Preempt, Promote, Start
from .protocols import Displaced, Order, Placement, Policy, React, Reaction, Request
from .queues import Status
from .scheduler import Scheduler
from .yarn_cs import YarnCS

__all__ = [
    "Decision",
    "Displaced",
    "Move",
    "Order",
    "Placement",
    "Policy",
    "Preempt",
    "Promote",
    "React",
    "Reaction",
    "Request",
    "Scheduler",
    "Start",
    "Status",
    "YarnCS",
]
