"""The scheduler: queues of all virtual clusters over one cluster, ordered by a policy. Pure."""

from .instructions import Downgrade, Hold, Instruction, Kind, Move, Promote, Reserve, Start, Stop, Unreserve
from .policy import Displaced, JobView, Order, Policy, Reaction
from .queue import Entry, Status, loan_of
from .scheduler import Scheduler
from .yarn_cs import YarnCS

__all__ = [
    "Displaced",
    "Downgrade",
    "Entry",
    "Hold",
    "Instruction",
    "JobView",
    "Kind",
    "Move",
    "Order",
    "Policy",
    "Promote",
    "Reaction",
    "Reserve",
    "Scheduler",
    "Start",
    "Status",
    "Stop",
    "Unreserve",
    "YarnCS",
    "loan_of",
]
