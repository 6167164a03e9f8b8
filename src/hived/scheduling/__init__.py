"""Who is next: the queues of all tenants over a cluster, in the order of a policy. Pure."""

from .instructions import Instruction, Kind, Move, Promote, Start, Stop
from .policy import Displaced, JobView, Order, Policy, Reaction
from .queue import Status
from .scheduler import Scheduler
from .yarn_cs import YarnCS

__all__ = [
    "Displaced",
    "Instruction",
    "JobView",
    "Kind",
    "Move",
    "Order",
    "Policy",
    "Promote",
    "Reaction",
    "Scheduler",
    "Start",
    "Status",
    "Stop",
    "YarnCS",
]
