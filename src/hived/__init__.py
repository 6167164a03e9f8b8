"""HiveD in Python: share a GPU cluster so that nobody is worse off than on a private one."""

from .cluster.cluster import Cluster
from .cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Wait
from .cluster.looking import GroupStatus, PlanAnswer
from .cluster.recovery import Reconfiguration
from .cluster.replay import replay
from .cluster.requests import Member, Request
from .cluster.states import GroupState, LeafState
from .errors import HivedError, InfeasibleError, InputError, InvariantError, RequestError, SpecError

__version__ = "0.1.0"

__all__ = [
    "Bind",
    "Cluster",
    "Decision",
    "GroupState",
    "GroupStatus",
    "HivedError",
    "InfeasibleError",
    "InputError",
    "InvariantError",
    "LeafState",
    "Member",
    "Placement",
    "PlanAnswer",
    "PodPlacement",
    "Preempt",
    "Reconfiguration",
    "Request",
    "RequestError",
    "SpecError",
    "Wait",
    "__version__",
    "replay",
]
