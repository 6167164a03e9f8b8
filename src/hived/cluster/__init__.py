"""The allocation of leaf cells to groups: the interface of the core (:class:`Cluster`), and all behind it. Pure."""

from .cluster import Cluster
from .decisions import Bind, Decision, Placement, PodPlacement, Preempt, Wait
from .feasibility import Shortage, check_feasible, initial_safety, shortages
from .requests import OPPORTUNISTIC, Member, Request
from .sharing import BindingKind, Sharing

__all__ = [
    "OPPORTUNISTIC",
    "Bind",
    "BindingKind",
    "Cluster",
    "Decision",
    "Member",
    "Placement",
    "PodPlacement",
    "Preempt",
    "Request",
    "Sharing",
    "Shortage",
    "Wait",
    "check_feasible",
    "initial_safety",
    "shortages",
]
