"""The scheduler: queues of all virtual clusters over one cluster, ordered by a policy. Pure."""

from .checked_policy import CheckedPolicy, Policies, SomePolicies
from .guests import GuestSharing
from .instructions import (
    Downgrade,
    Hold,
    Instruction,
    Kind,
    Move,
    Promote,
    Reserve,
    Share,
    Shares,
    Start,
    Stop,
    Turn,
    Unreserve,
)
from .policy import Displaced, JobView, Policy, Reaction
from .queue import Entry, Status, loan_of
from .scheduler import Scheduler
from .slicing import Probe, TimeSlicing

__all__ = [
    "CheckedPolicy",
    "Displaced",
    "Downgrade",
    "Entry",
    "GuestSharing",
    "Hold",
    "Instruction",
    "JobView",
    "Kind",
    "Move",
    "Policies",
    "Policy",
    "Probe",
    "Promote",
    "Reaction",
    "Reserve",
    "Scheduler",
    "Share",
    "Shares",
    "SomePolicies",
    "Start",
    "Status",
    "Stop",
    "TimeSlicing",
    "Turn",
    "Unreserve",
    "loan_of",
]
