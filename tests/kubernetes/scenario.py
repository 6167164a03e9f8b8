"""A fake cluster for scenarios: gangs and pods of namespace t by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.explain.sentences import in_lines
from hived.cluster.reasons import ReasonKind
from hived.engines.kubernetes.gangs.explaining import explain, explain_pod, reasons, shortly
from hived.engines.kubernetes.gangs.gang import Evict, Gang, PodEntry, RecordEvent
from hived.engines.kubernetes.pods.objects import Pod
from hived.spec.compiled import ClusterSpec

from .fake_kubernetes import Members, World
from .pods import devices_of, flat_spec, node, pod, uid_of


class Scenario(World):
    """A fake cluster with the nodes that its VCs have reserved, or of a spec."""

    def __init__(
        self,
        spec: ClusterSpec | None = None,
        seed: int = 0,
        cluster: Callable[[ClusterSpec], Cluster] = Cluster,
        **vcs: int,
    ) -> None:
        super().__init__(spec or flat_spec(**vcs), seed, cluster)

    # -- events ---------------------------------------------------------------------------------------------------

    def submit(self, *pods: Pod, members: Members = None, bind: bool = True) -> list[str]:
        """Create pods; kube-scheduler asks for each of them: its results."""
        self.create(*pods, members=members)
        return [self.ask(one, bind=bind) for one in pods]

    def run(self, *pods: Pod, members: Members = None) -> None:
        """Create pods, which are bound."""
        self.submit(*pods, members=members)
        self.flush()
        assert all(self.nodes_of(*pods)), f"not bound: {self.nodes_of(*pods)}"

    def planned(self, one: Pod) -> str:
        """Create a pod, which gets a place and is not bound yet: its node."""
        self.submit(one, bind=False)
        return self.slot_node(one)

    def ended(self, *ones: Pod | str) -> None:
        """Delete pods, which end."""
        self.end(*ones)
        self.deliver_all()

    def update(self, there: Pod) -> None:
        """Change a pod, or create one that kube-scheduler is not asked for."""
        self.write(there)
        self.deliver_all()

    def gone(self, *ones: Pod | str) -> None:
        """Remove pods."""
        for one in ones:
            self.remove(one)
            self.deliver_all()

    def bound_behind(self, there: Pod) -> None:
        """Another client has bound this pod."""
        self.untrusted.add(there.metadata.uid)
        self.update(there)

    def cordon(self, *names: str) -> None:
        """Cordon nodes."""
        for name in names:
            self.set_node(node(name, cordoned=True))

    # -- what there is --------------------------------------------------------------------------------------------

    def there(self, one: Pod | str) -> Pod:
        """A pod as the API server has it."""
        return self.pods[uid_of(one)]

    def entry(self, one: Pod | str) -> PodEntry:
        """A pod as the gang scheduler has it."""
        return self.gang_scheduler.pods[uid_of(one)]

    def gang(self, name: str) -> Gang:
        """A gang."""
        return self.gang_scheduler.gangs[f"t/{name}"]

    def state(self, name: str) -> str:
        """The state of a gang."""
        return self.gang(name).state.value

    def guaranteed(self, *names: str) -> list[bool]:
        """Whether gangs are guaranteed."""
        return [self.gang(name).guaranteed for name in names]

    def placement(self, name: str) -> Placement:
        """The placement of a gang."""
        placement = self.gang(name).placement
        assert placement is not None
        return placement

    def places(self, name: str) -> list[str]:
        """The nodes of a gang's placement."""
        return [place.node for place in self.placement(name).pods]

    def slot_node(self, one: Pod | str) -> str:
        """The node that the gang scheduler has given a pod."""
        given = self.entry(one).given
        assert given is not None
        return given.node

    def nodes_of(self, *ones: Pod | str) -> list[str | None]:
        """The nodes that pods are on."""
        return [self.there(one).spec.node_name for one in ones]

    def home(self, one: Pod | str) -> str:
        """The node that a pod is on."""
        (home,) = self.nodes_of(one)
        assert home is not None
        return home

    def deleted(self, one: Pod | str) -> bool:
        """Whether a pod is being deleted."""
        return self.there(one).metadata.deletion_timestamp is not None

    def nobody_gets(self, name: str, *devices: int) -> None:
        """Pods that want everything do not get these devices."""
        crowd = [pod(f"greedy-{i}", 1, priority="-1", created=900) for i in range(16)]
        self.create(*crowd)
        self.quiesce()
        taken = {device for one in crowd for device in devices_of(self.there(one))}
        assert taken, "this test shows nothing"
        assert not taken & {(name, device) for device in devices}

    # -- what is said ---------------------------------------------------------------------------------------------

    def refusal(self, one: Pod | str) -> str:
        """Why a pod is of no gang."""
        entry = self.entry(one)
        assert entry.gang is None
        return str(entry.refused)

    def reason(self, name: str) -> ReasonKind:
        """The decisive reason why a gang waits."""
        return reasons(self.gang_scheduler, self.gang(name))[0].kind

    def short(self, name: str) -> str:
        """Why a gang waits, as lists have it."""
        return "; ".join(shortly(self.gang_scheduler, self.gang(name)))

    def explained(self, name: str, at: float | None = None) -> str:
        """The situation of a gang."""
        return in_lines(explain(self.gang_scheduler, self.gang(name), at))

    def pod_explained(self, one: Pod | str) -> str:
        """The situation of a pod."""
        return in_lines(explain_pod(self.gang_scheduler, self.entry(one), None))

    def events_of(self, one: Pod | str) -> list[RecordEvent]:
        """Events of a pod."""
        return [event for event in self.events if event.uid == uid_of(one)]

    def counted(self, reason: str) -> Counter[str]:
        """How many Events for this reason each pod has."""
        return Counter(event.uid for event in self.events if event.reason == reason)

    def evictions_due(self) -> list[Evict]:
        """Evictions that are still to be carried out."""
        return [one for one in self.todo if isinstance(one, Evict)]
