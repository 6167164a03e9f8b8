"""The service behind the HTTP API of the engine on Kubernetes, and of upstream's inspection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeVar

from hived.access import Access, Person
from hived.cluster.cluster import Cluster
from hived.cluster.explain.sentences import in_lines
from hived.cluster.requests import Member, Request
from hived.engine.job import JobFilter
from hived.engine.job import after as events_after
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.gangs.foreign import ForeignPod
from hived.engines.kubernetes.gangs.gang import Gang, PodEntry
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.gangs.withheld import foreign_pods, kept_for_others
from hived.engines.kubernetes.pods import keys
from hived.errors import ForbiddenError, NotFoundError, RequestError, UnsupportedError
from hived.server import schema
from hived.server.permits import Whose
from hived.server.service import Service, plan_one, shown_accounts, shown_event, shown_spec

from .inspection import GroupPods
from .planning import plan

_SAID = 20  #: nodes and pods of which something is said
T = TypeVar("T")


class EngineService(Service[Gang]):
    """The API's operations on the engine on Kubernetes, where a job is an affinity group."""

    kind = "kubernetes"

    def __init__(self, engine: Engine, *, may_change: bool) -> None:
        """``may_change``: whether callers may change anything."""
        super().__init__()
        self._engine = engine
        self._may_change = may_change

    # -- jobs -----------------------------------------------------------------------------------------------------

    def scheduler(self) -> GangScheduler:
        """Its gangs. Raises :class:`~hived.errors.UnavailableError` while it does not decide."""
        return self._engine.active_scheduler()

    def find(self, ref: str) -> Gang:
        """A gang by its name, or by a pod of it; or one that has ended, as long as it is remembered."""
        gang_scheduler = self.scheduler()
        gang = _gang(gang_scheduler, ref)
        if gang is None and (entry := _pod(gang_scheduler, ref)) is not None:
            gang = entry.gang
            if gang is None:
                raise NotFoundError(f"{entry.key} is of no group, since it cannot be scheduled: hived explain says why")
        gang = gang or _ended(gang_scheduler, ref)
        if gang is None:
            raise _unknown(ref)
        return gang

    def jobs(self, chosen: JobFilter, limit: int, page: str | None) -> schema.Jobs:
        """Gangs by name, ended ones only where that state is chosen; a page is the name before it. O(gangs)."""
        gang_scheduler = self.scheduler()
        # one that is made anew under its name is that name's
        ended = gang_scheduler.ended if JobState.ENDED in chosen.states else {}
        gone = (gang for gang in ended.values() if gang.name not in gang_scheduler.gangs)
        found = sorted(
            (gang for gang in (*gang_scheduler.gangs.values(), *gone) if _is_chosen(gang, chosen)),
            key=lambda gang: gang.name,
        )
        left = found if page is None else [gang for gang in found if gang.name > page]
        more = left[limit - 1].name if len(left) > limit else None
        return schema.Jobs(jobs=[self.shown(gang) for gang in left[:limit]], total=len(found), next=more)

    def explainer(self) -> GangExplainer:
        """Explains its gangs."""
        return GangExplainer(self.scheduler())

    def clock(self) -> float:
        """See :meth:`Service.clock`."""
        return self._engine.clock()

    def finished(self, job: Gang) -> bool | None:
        """Whether the pods of a gang that has ended did so by themselves."""
        return job.finished if job.state.ended else None

    def tasks(self, job: Gang) -> list[schema.Task]:
        """Its pods that there are."""
        return [_task(job, entry) for entry in job.pods.values()]

    def explain(self, ref: str) -> schema.Explanation:
        """Explain a group or a pod: where both have the name, the pod if it is of that group, else the group."""
        jobs = self.scheduler()
        entry, gang = _pod(jobs, ref), _gang(jobs, ref)
        if entry is not None and (gang is None or entry.gang is gang):
            text = in_lines(self.explainer().explain_pod(entry, self.clock()))
            if entry.gang is not None and entry.refused is None:
                return self.explained(entry.gang).model_copy(update={"task": entry.key, "text": text})
            said, kind = str(entry.refused or text), "" if entry.refused is None else entry.refused.kind
            why: dict[str, object] = {"kind": "misconfigured", "text": said, "field": kind, "message": said}
            job = "" if entry.gang is None else entry.gang.name
            return schema.Explanation(job=job, task=entry.key, text=text, reasons=[why])
        if gang is None and (foreign := _foreign_pod(jobs, ref)) is not None:
            lines = [f"{foreign.key} is not HiveD's:", jobs.conflicts.get(foreign.uid, foreign.situation)]
            return schema.Explanation(job="", task=foreign.key, text=in_lines(lines), reasons=[])
        gang = gang or _ended(jobs, ref)
        if gang is None:
            raise _unknown(ref)
        return self.explained(gang)

    def plan(self, request: schema.PlanRequest, person: Person) -> schema.Plan:
        """Plan manifests, or a job by its size alone. Raises :class:`~hived.errors.InputError` for invalid ones."""
        gang_scheduler = self.scheduler()
        if (job := request.job) is None:
            return schema.Plan(jobs=plan(gang_scheduler, request.manifests, request.namespace))
        if request.manifests:
            raise RequestError("job", "either a job or manifests are planned, beside each other: give one of them")
        wanted = Request("(this job)", job.vc, job.priority, (Member(job.tasks, job.gpus),))
        answer = gang_scheduler.scheduler.plan(wanted)
        found = plan_one(self.explainer(), gang_scheduler, wanted, answer, "it", job.name or "it", job.early)
        return schema.Plan(jobs=[found])

    def events(self, after: int, limit: int, ref: str | None) -> schema.Events:
        """The latest events of this replica since it decides: those that it remembers."""
        gang_scheduler = self.scheduler()
        if ref is None:
            found = events_after(gang_scheduler.recent, max(after, gang_scheduler.seq - limit if after < 0 else 0))
        else:
            found = events_after(self.find(ref).history, after)
        found = found[-limit:] if after < 0 else found[:limit]
        shown = [shown_event(event, event.job or "") for event in found]
        return schema.Events(events=shown, last=gang_scheduler.seq)

    async def changed(self, after: int) -> None:
        """Return once there is an event after number ``after``, or another replica decides."""
        await self._engine.changed(after)

    # -- the cluster ----------------------------------------------------------------------------------------------

    async def _drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        """Cordon or uncordon a node."""
        gang_scheduler = self.scheduler()
        if drain.node is None:
            raise RequestError("node", "on Kubernetes nodes are drained one by one: say which")
        if drain.node not in gang_scheduler.nodes.devices:
            raise NotFoundError(f"the spec has no node {drain.node!r}; hived devices shows those it has")
        if drain.device is not None:
            raise UnsupportedError(
                f"on Kubernetes nodes are drained whole; to keep single devices from jobs: kubectl annotate node "
                f"{drain.node} {keys.BAD_DEVICES}={drain.device}"
            )
        if drain.reason:
            raise UnsupportedError(
                f"a cordon of Kubernetes has no reason; leave it out, or kubectl annotate node {drain.node} with it"
            )
        if drain.now:
            raise UnsupportedError(
                f"on Kubernetes who runs there runs on; to send pods away: kubectl drain {drain.node}"
            )
        await self._engine.cordon(drain.node, not drain.undo)
        node = self.node(drain.node, gang_scheduler.nodes.devices[drain.node])
        return schema.Drained(nodes=[node], undone=drain.undo)

    def foreign(self) -> int:
        """GPUs kept from jobs for pods that HiveD did not place. O(foreign pods)."""
        return kept_for_others(self.scheduler())

    def of_kubernetes(self) -> Mapping[str, Any]:
        """What only nodes of Kubernetes have. O(nodes + foreign pods)."""
        gang_scheduler = self.scheduler()
        others = sorted(foreign_pods(gang_scheduler), key=lambda pod: -pod.short)
        return {
            "missing": gang_scheduler.nodes.missing[:_SAID],
            "unmanaged": gang_scheduler.nodes.unmanaged,
            "foreign_pods": [
                f"{pod.node}: {pod}" + (f"; {pod.short} of them are in use by others" if pod.short else "")
                for pod in islice(others, _SAID)
            ],
        }

    def spec(self) -> schema.Spec:
        """The spec in force, or that a replica would decide by."""
        engine = self._engine
        text, source = engine.spec_text, engine.spec_source
        return shown_spec(engine.spec, text, source, engine.spec_loaded_at, engine.spec_problem)

    async def reconfigure(self, spec: schema.SpecText, user: str, dry_run: bool = False) -> schema.Reconfigured:
        """Refuse: Kubernetes guards what the spec is read from."""
        kind, _, place = (source := self.spec().source).partition("/")
        namespace, _, name = place.partition("/")
        if kind == "configmap" and name:
            raise self._unsupported(f"its spec is in a ConfigMap: kubectl -n {namespace} edit configmap {name}")
        raise self._unsupported(f"its spec is the file {source}: edit that, or the ConfigMap that it is mounted from")

    def engine(self) -> schema.Engine:
        """What answers."""
        engine = self._engine
        replica = schema.Replica(identity=engine.identity, leader=engine.leader, holder=engine.holder)
        return self._engine_of(engine.started_at, ready=engine.ready, simulated=False, replica=replica, settings=None)

    def access(self) -> Access:
        """Who may do what; nobody may change anything where callers are not known by a token."""
        if not self._may_change:
            raise ForbiddenError("this service was started without --token-file, so it can only be looked at")
        return Access(self._engine.cluster.spec, "")

    def whose(self, ref: str) -> Whose | None:
        """Kubernetes guards pods: nothing is done to them here."""

    async def accounts(self, start: float, end: float) -> schema.Accounts:
        """GPU seconds between two times, by user (namespace and service account), virtual cluster and use."""
        accounts = self._engine.accounts
        if accounts is None:
            raise UnsupportedError(
                "this service keeps no accounts: start hived serve kubernetes with --accounts-configmap NS/NAME; "
                "Prometheus may have sums: sum by (vc, use) (increase(hived_gpu_seconds_total[30d]))"
            )
        found = await accounts.between(start, end)
        return shown_accounts(found, start, min(end, self.clock()), accounts.begins)

    # -- trades of cells ------------------------------------------------------------------------------------------

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read."""
        return self._engine.trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market."""
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


def _task(gang: Gang, entry: PodEntry) -> schema.Task:
    place = gang.placement.pods[entry.slot] if gang.placement is not None and entry.slot is not None else None
    state: Literal["waiting", "starting", "running", "stopping"] = "waiting"
    if entry.terminating or entry.bound or entry.binding:
        state = "stopping" if entry.terminating else "running" if entry.bound else "starting"
    node, devices = ("", []) if place is None else (place.node, list(place.leaf_cells))
    return schema.Task(name=entry.key, uid=entry.uid, state=state, node=node, devices=devices)


def _ended(gang_scheduler: GangScheduler, ref: str) -> Gang | None:
    """A gang that has ended, by its name."""
    return gang_scheduler.ended.get(ref) or gang_scheduler.ended.get(f"default/{ref}")


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
        f"no group and no pod {ref!r} that HiveD decides about; write namespace/name, hived ps lists the groups"
    )


def _is_chosen(gang: Gang, chosen: JobFilter) -> bool:
    since, before, ended_at = chosen.ended_since, chosen.ended_before, gang.ended_at
    return (
        (not chosen.states or gang.state in chosen.states)
        and chosen.vc in (None, gang.vc)
        and chosen.user in (None, gang.entry.view.user)
        and (chosen.name or "") in gang.name
        and chosen.array is None  # there are none
        and (since is None or (ended_at is not None and ended_at >= since))
        and (before is None or (ended_at is not None and ended_at < before))
    )
