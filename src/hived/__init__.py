"""HiveD in Python: share a GPU cluster so that each tenant is as well off as on a private one.

from hived import Cluster, Member, Request

cluster = Cluster.load("spec.yaml")
decision = cluster.schedule(Request("job-7", "research", members=[Member(pods=2, leaf_cells=8)]))
cluster.commit(decision)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hived.cluster.explain.queries import GroupStatus, PlanAnswer

    from .cluster.checked import CheckedCluster
    from .cluster.cluster import Cluster
    from .cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Wait
    from .cluster.explain import reasons
    from .cluster.explain.reasons import Reason, ReasonKind
    from .cluster.recovery import Reconfiguration
    from .cluster.requests import Member, Request
    from .cluster.states import GroupState, LeafState
    from .errors import ConflictError, HivedError, InfeasibleError, InputError, InvariantError, RequestError, SpecError
    from .events.recorded import RecordedCluster
    from .events.replay import ReplayError, replay
    from .installed import __version__
    from .simulator.scenario import Scenario
    from .simulator.study import simulate

#: the module of each public name, imported lazily: a command that only talks to an engine needs none of them
_MODULES = {
    "Bind": "cluster.decisions",
    "CheckedCluster": "cluster.checked",
    "Cluster": "cluster.cluster",
    "ConflictError": "errors",
    "Decision": "cluster.decisions",
    "GroupState": "cluster.states",
    "GroupStatus": "cluster.explain.queries",
    "HivedError": "errors",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "InvariantError": "errors",
    "LeafState": "cluster.states",
    "Member": "cluster.requests",
    "Placement": "cluster.decisions",
    "PlanAnswer": "cluster.explain.queries",
    "PodPlacement": "cluster.decisions",
    "Preempt": "cluster.decisions",
    "Reason": "cluster.explain.reasons",
    "ReasonKind": "cluster.explain.reasons",
    "Reconfiguration": "cluster.recovery",
    "RecordedCluster": "events.recorded",
    "ReplayError": "events.replay",
    "Request": "cluster.requests",
    "RequestError": "errors",
    "Scenario": "simulator.scenario",
    "SpecError": "errors",
    "Wait": "cluster.decisions",
    "__version__": "installed",
    "reasons": "cluster.explain",
    "replay": "events.replay",
    "simulate": "simulator.study",
}

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
    "RecordedCluster",
    "ReplayError",
    "Request",
    "RequestError",
    "Scenario",
    "SpecError",
    "Wait",
    "__version__",
    "reasons",
    "replay",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'hived' has no attribute {name!r}")
    found: object = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found  # cached for the next look-up
    return found


def __dir__() -> list[str]:
    return __all__
