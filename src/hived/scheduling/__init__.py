"""The scheduler: queues of all virtual clusters over one cluster, ordered by a policy. Pure."""

from .checked_policy import CheckedPolicy, Policies, SomePolicies
from .extension import Extension
from .instructions import (
    Downgrade,
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
    Unschedulable,
)
from .policy import Displaced, GpuSharing, JobView, Policy, Reaction
from .probe import Probe
from .queue import Entry, loan_of
from .scheduler import Scheduler
from .states import Status

__all__ = [
    "CheckedPolicy",
    "Displaced",
    "Downgrade",
    "Entry",
    "Extension",
    "GpuSharing",
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
    "Turn",
    "Unreserve",
    "Unschedulable",
    "loan_of",
]
