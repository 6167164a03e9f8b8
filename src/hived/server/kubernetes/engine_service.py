"""Service layer of the API of the command line and of upstream's inspection, with plans of manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from hived import __version__
from hived.cluster.cluster import Cluster
from hived.cluster.explain.sentences import in_lines
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.explaining import (
    event_text,
    explain,
    explain_pod,
    reasons,
    shortly,
)
from hived.engines.kubernetes.gangs.foreign import ForeignPod, foreign_pods, kept_for_others
from hived.engines.kubernetes.gangs.gang import Gang, PodEntry
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.errors import ForbiddenError, NotFoundError
from hived.server.exchange import ExchangeService
from hived.server.mapping import kept_idle, safety_margin, virtual_clusters

from . import schema
from .inspection import GroupPods
from .planning import plan, reason_data
from .view import bad_gpus, waiting

_SHOWN = 100
T = TypeVar("T")


class EngineService:
    """Answers the HTTP API with models of :mod:`.schema`, in the event loop's thread only.

    ``ref`` is the name of a group, or a pod's ``namespace/name`` or ``name`` (of namespace ``default``). Raises
    :class:`~hived.errors.NotFoundError` for unknown objects, and :class:`~hived.errors.UnavailableError` while the
    engine is not ready or Kubernetes does not answer.
    """

    def __init__(self, engine: Engine, *, may_change: bool) -> None:
        """``may_change``: whether callers may change anything."""
        self._engine = engine
        self._may_change = may_change
        #: trades of cells
        self.market = ExchangeService(self)

    # -- the command line -----------------------------------------------------------------------------------------

    def status(self) -> schema.Status:
        """The service and its cluster. O(nodes + gangs with a reservation)."""
        engine, gang_scheduler = self._engine, self._engine.gang_scheduler
        spec = engine.spec
        total = len(spec.node_names)
        common: dict[str, Any] = {
            "version": __version__,
            "started_at": engine.started_at,
            "identity": engine.identity,
            "leader": engine.leader,
            "holder": engine.holder,
            "ready": engine.ready,
            "spec": schema.SpecStatus(
                source=engine.spec_source, loaded_at=engine.spec_loaded_at, problem=engine.spec_problem
            ),
            "gpus": spec.gpus,
        }
        none = {state.value: 0 for state in JobState if not state.ended}
        if gang_scheduler is None:
            counts = schema.NodeCounts(total=total, healthy=0, bad=0, why=[], missing=[], unmanaged=0)
            numbers = ("guaranteed", "opportunistic", "reserved", "bad", "foreign", "doomed", "unavailable")
            nothing: dict[str, Any] = {"foreign_pods": [], "groups": none, "vcs": [], **dict.fromkeys(numbers, 0)}
            return schema.Status(**common, nodes=counts, safety_margin=None, **nothing)
        nodes, usage, cluster = gang_scheduler.nodes, gang_scheduler.usage, gang_scheduler.cluster
        others = foreign_pods(gang_scheduler)
        theirs = {(pod.node, one) for pod in others for one in pod.kept + pod.shared}
        why = [f"{name}: {words}" for name, words in sorted(nodes.bad_nodes.items())]
        single = sorted(place for place in nodes.bad_devices if place not in theirs)
        why += [f"{node} GPU {one}: {nodes.bad_devices[node, one]}" for node, one in single]
        return schema.Status(
            **common,
            nodes=schema.NodeCounts(
                total=total,
                healthy=len(nodes.healthy),
                bad=len(nodes.bad_nodes),
                why=why[:20],
                missing=nodes.missing[:20],
                unmanaged=nodes.unmanaged,
            ),
            guaranteed=usage.used.total(),
            opportunistic=usage.lent.total(),
            reserved=kept_idle(cluster, gang_scheduler.reserved()),
            bad=bad_gpus(gang_scheduler),
            foreign=kept_for_others(gang_scheduler),
            foreign_pods=[
                f"{pod.node}: {pod}" + (f"; {pod.short} of them are in use by others" if pod.short else "")
                for pod in sorted(others, key=lambda pod: -pod.short)[:20]
            ],
            groups=none | usage.per_state(),
            vcs=[self._summary(gang_scheduler, vc.name) for vc in spec.virtual_clusters],
            doomed=len(cluster.doomed()),
            unavailable=cluster.unavailable_to_all(),
            safety_margin=safety_margin(cluster),
        )

    def vc(self, name: str) -> schema.VcDetail:
        """One virtual cluster. O(gangs)."""
        gang_scheduler = self._engine.active_scheduler()
        cluster = gang_scheduler.cluster
        found = next((vc for vc in virtual_clusters(cluster.spec) if vc.name == name), None)
        if found is None:
            names = ", ".join(vc.name for vc in cluster.spec.virtual_clusters[:10])
            raise NotFoundError(f"there is no virtual cluster {name!r}; there are {names}")
        of = [gang for gang in gang_scheduler.gangs.values() if gang.vc == name]
        line = [gang for gang in waiting(gang_scheduler, len(gang_scheduler.gangs)) if gang.vc == name]
        return schema.VcDetail(
            summary=self._summary(gang_scheduler, name),
            cells=found.reserved,
            doomed=[f"{kind} of {chain}, on {node}" for vc, chain, kind, node in cluster.doomed() if vc == name],
            running=[self._info(gang_scheduler, gang) for gang in of if gang.holds][:_SHOWN],
            waiting=[self._info(gang_scheduler, gang) for gang in line[:_SHOWN]],
        )

    def groups(self, vc: str | None, state: str | None, limit: int, offset: int) -> schema.Groups:
        """Groups by name. O(gangs)."""
        gang_scheduler = self._engine.active_scheduler()
        names = sorted(
            gang.name
            for gang in gang_scheduler.gangs.values()
            if (vc is None or gang.vc == vc) and (state is None or gang.state.value == state)
        )
        shown = [self._info(gang_scheduler, gang_scheduler.gangs[name]) for name in names[offset : offset + limit]]
        return schema.Groups(groups=shown, total=len(names))

    def group(self, ref: str) -> schema.GroupInfo:
        """One group."""
        gang_scheduler = self._engine.active_scheduler()
        gang = _gang(gang_scheduler, ref)
        if gang is None and (entry := _pod(gang_scheduler, ref)) is not None:
            gang = entry.gang
        if gang is None:
            raise _unknown(ref)
        return self._info(gang_scheduler, gang)

    def explain(self, ref: str) -> schema.GroupExplanation:
        """Explain a group or a pod. A pod wins if both have the name."""
        gang_scheduler = self._engine.active_scheduler()
        at = self._engine.clock()
        entry, gang = _pod(gang_scheduler, ref), _gang(gang_scheduler, ref)
        pod = ""
        if entry is not None and (gang is None or entry.gang is gang):
            gang, pod, lines = entry.gang, entry.key, explain_pod(gang_scheduler, entry, at)
            name = "" if gang is None else gang.name
        elif gang is not None:
            name, lines = gang.name, explain(gang_scheduler, gang, at)
        elif (foreign := _foreign_pod(gang_scheduler, ref)) is not None:
            name, pod = "", foreign.key
            lines = [f"{pod} is not HiveD's:", gang_scheduler.conflicts.get(foreign.uid, foreign.situation)]
        elif (ended := gang_scheduler.ended.get(ref) or gang_scheduler.ended.get(f"default/{ref}")) is not None:
            name, lines = ref, [f"{ref} has ended:", *map(event_text, ended.history[-5:])]
        else:
            raise _unknown(ref)
        found = [] if gang is None else [reason_data(reason) for reason in reasons(gang_scheduler, gang)]
        if pod and entry is not None and entry.refused is not None:
            found = [{"kind": "misconfigured", "field": entry.refused.kind, "message": str(entry.refused)}]
        return schema.GroupExplanation(group=name, pod=pod, text=in_lines(lines), reasons=found)

    def plan(self, request: schema.PlanRequest) -> schema.PlanAnswer:
        """Plan manifests. Raises :class:`~hived.errors.InputError` for invalid ones."""
        return schema.PlanAnswer(groups=plan(self._engine.active_scheduler(), request.objects, request.namespace))

    async def drain(self, request: schema.DrainRequest) -> schema.Drained:
        """Cordon or uncordon a node."""
        self._check_may_change()
        gang_scheduler = self._engine.active_scheduler()
        if request.node not in gang_scheduler.nodes.devices:
            raise NotFoundError(f"the spec has no node {request.node!r}; hived status shows what it has")
        await self._engine.cordon(request.node, not request.undo)
        there = {
            gang.name: None
            for device in gang_scheduler.nodes.devices[request.node]
            if (gang := gang_scheduler.usage.at.get((request.node, device))) is not None
        }
        gpus = len(gang_scheduler.nodes.devices[request.node])
        return schema.Drained(node=request.node, drained=not request.undo, gpus=gpus, groups=list(there))

    def _check_may_change(self) -> None:
        if not self._may_change:
            raise ForbiddenError("this service was started without --token-file, so it can only be looked at")

    # -- trades of cells, see :class:`~hived.server.exchange.Trader` --------------------------------------------------

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read."""
        return self._engine.trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market."""
        self._check_may_change()
        return await self._engine.trade(act)

    # -- inspection -----------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        """The core."""
        return self._engine.cluster

    def title(self, group: str) -> str:
        """The name of a group in its pods: upstream's name, which need not be unique."""
        gang = self._engine.active_scheduler().gangs.get(group)
        return gang.ask.title or group if gang is not None else group

    def by_title(self, title: str) -> str:
        """The name of a group with that title; the title itself if there is none. O(gangs)."""
        gangs = self._engine.active_scheduler().gangs
        if title in gangs:
            return title
        return next((gang.name for gang in gangs.values() if gang.ask.title == title), title)

    def pods_of(self, group: str) -> GroupPods:
        """The UIDs of the pods of a group that holds or has reserved cells."""
        gang = self._engine.active_scheduler().gangs.get(group)
        if gang is None:
            return GroupPods()
        if gang.state is JobState.RESERVED:
            return GroupPods(preempting=list(gang.pods))
        return GroupPods(allocated=[uid for uid, entry in gang.pods.items() if entry.holds])

    def lazy_preemption(self, group: str) -> tuple[str, str] | None:
        """The preemptor that made a group opportunistic by a lazy preemption, and when (RFC 3339)."""
        gang = self._engine.active_scheduler().gangs.get(group)
        for event in reversed(gang.history) if gang is not None else ():
            if event.kind == "restored":
                return None
            if event.kind == "downgraded" and event.data["by"] is not None:
                return event.data["by"], datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return None

    # -- parts ----------------------------------------------------------------------------------------------------

    def _summary(self, gang_scheduler: GangScheduler, name: str) -> schema.VcSummary:
        return schema.VcSummary(
            name=name,
            reserved=gang_scheduler.nodes.reserved_gpus(name),
            used=gang_scheduler.usage.used[name],
            borrowed=gang_scheduler.usage.lent[name],
            waiting=gang_scheduler.usage.waiting[name],
        )

    def _info(self, gang_scheduler: GangScheduler, gang: Gang) -> schema.GroupInfo:
        victims = gang_scheduler.cluster.group(gang.name).victims if gang.state is JobState.RESERVED else ()
        return schema.GroupInfo(
            name=gang.name,
            vc=gang.vc,
            priority=gang.priority,
            state=gang.state,
            kind=None if not gang.holds else "guaranteed" if gang.guaranteed else "opportunistic",
            gpus=gang.gpus,
            size=gang.ask.size,
            pods=[_pod_info(gang, entry) for entry in gang.pods.values()],
            since=gang.since,
            victims=list(victims),
            why=shortly(gang_scheduler, gang),
        )


def _pod_info(gang: Gang, entry: PodEntry) -> schema.GroupPod:
    namespace, _, name = entry.key.partition("/")
    place = gang.placement.pods[entry.slot] if gang.placement is not None and entry.slot is not None else None
    state: Literal["terminating", "bound", "binding", "waiting"] = "waiting"
    if entry.terminating or entry.bound or entry.binding:
        state = "terminating" if entry.terminating else "bound" if entry.bound else "binding"
    return schema.GroupPod(
        namespace=namespace,
        name=name,
        uid=entry.uid,
        state=state,
        node="" if place is None else place.node,
        devices=[] if place is None else list(place.leaf_cells),
    )


def _gang(gang_scheduler: GangScheduler, ref: str) -> Gang | None:
    """A group by its name, with or without the namespace ``default``."""
    return gang_scheduler.gangs.get(ref) or gang_scheduler.gangs.get(f"default/{ref}")


def _pod(gang_scheduler: GangScheduler, ref: str) -> PodEntry | None:
    """A pod by ``namespace/name``, or by its name in ``default``; the latest if one is being replaced. O(pods)."""
    keys = (ref, f"default/{ref}") if "/" not in ref else (ref,)
    found: Iterable[PodEntry] = (entry for entry in gang_scheduler.pods.values() if entry.key in keys)
    return max(found, key=lambda entry: entry.pod.metadata.creation_timestamp or "", default=None)


def _foreign_pod(gang_scheduler: GangScheduler, ref: str) -> ForeignPod | None:
    """A foreign pod by its name. O(foreign pods)."""
    return next((pod for pod in gang_scheduler.foreign.pods.values() if pod.key in (ref, f"default/{ref}")), None)


def _unknown(ref: str) -> NotFoundError:
    return NotFoundError(
        f"no group and no pod {ref!r} that HiveD decides about; write namespace/name, hived groups lists them"
    )
