"""Scheduling policies, by name: what a tenant's own scheduler does inside its virtual cluster."""

from .antman import AntMan
from .arrival import FIFO, Greedy, YarnCS
from .duration import SJF, SRTF
from .fair import Fair
from .gandiva import Gandiva
from .registry import DEFAULT, by_vc, make_policy, policies_of, policy_names, split_policy
from .tiresias import Tiresias

__all__ = [
    "DEFAULT",
    "FIFO",
    "SJF",
    "SRTF",
    "AntMan",
    "Fair",
    "Gandiva",
    "Greedy",
    "Tiresias",
    "YarnCS",
    "by_vc",
    "make_policy",
    "policies_of",
    "policy_names",
    "split_policy",
]
