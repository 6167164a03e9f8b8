"""The scheduler: queues of all virtual clusters over one cluster, ordered by a policy. Pure."""

from .checked_policy import CheckedPolicy, Policies, SomePolicies
from .instructions import Downgrade, Hold, Instruction, Kind, Move, Promote, Reserve, Start, Stop, Unreserve
from .policy import Displaced, JobView, Policy, Reaction
from .queue import Entry, Status, loan_of
from .scheduler import Scheduler

__all__ = [
    "CheckedPolicy",
    "Displaced",
    "Downgrade",
    "Entry",
    "Hold",
    "Instruction",
    "JobView",
    "Kind",
    "Move",
    "Policies",
    "Policy",
    "Promote",
    "Reaction",
    "Reserve",
    "Scheduler",
    "SomePolicies",
    "Start",
    "Status",
    "Stop",
    "Unreserve",
    "loan_of",
]
