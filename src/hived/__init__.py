"""HiveD in Python: share a GPU cluster so that nobody is worse off than on a private one.

from hived import Cluster, Member, Request

cluster = Cluster.load("spec.yaml")
decision = cluster.schedule(Request("job-7", "research", members=[Member(pods=2, leaf_cells=8)]))
cluster.commit(decision)
"""

from .cluster import reasons
from .cluster.checked import CheckedCluster
from .cluster.cluster import Cluster
from .cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Wait
from .cluster.looking import GroupStatus, PlanAnswer
from .cluster.reasons import Reason, ReasonKind
from .cluster.recovery import Reconfiguration
from .cluster.replay import ReplayError, replay
from .cluster.requests import Member, Request
from .cluster.states import GroupState, LeafState
from .errors import ConflictError, HivedError, InfeasibleError, InputError, InvariantError, RequestError, SpecError

__version__ = "0.1.0"

__all__ = [
    "Bind",
    "CheckedCluster",
    "Cluster",
    "ConflictError",
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
    "Reason",
    "ReasonKind",
    "Reconfiguration",
    "ReplayError",
    "Request",
    "RequestError",
    "SpecError",
    "Wait",
    "__version__",
    "reasons",
    "replay",
]
