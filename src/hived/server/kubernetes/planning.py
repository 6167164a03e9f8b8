"""Plans of manifests: what would become of the pods that they make, by the code that will decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from hived.cluster.decisions import PodPlacement
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.sentences import in_lines
from hived.cluster.requests import Request
from hived.engine.explaining import Planned
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods import keys, pod_request
from hived.engines.kubernetes.pods.objects import Object, Owner, Pod
from hived.engines.kubernetes.pods.owners import is_gang, members_of, pods_at_once, starts_in_order
from hived.engines.kubernetes.pods.pod_request import PodRequest
from hived.errors import InputError, RequestError
from hived.server.schema import PlannedJob
from hived.server.service import places, reason_data
from hived.words import counted

_WITH_REPLICAS = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")
Outcome = Literal["now", "waits", "never", "unknown"]


class _Made(NamedTuple):
    """Equal pods that an object makes at a time."""

    pod: Pod
    number: int
    ordered: bool = False  #: whether each is made once the one before it is ready


@dataclass(slots=True)
class _Planned:
    """Pods that are placed together, or equal pods that are placed one by one."""

    ask: PodRequest
    name: str
    one_by_one: bool
    pods: int = 0  #: that are made
    makers: int = 0  #: objects, or parts of one, that make them
    ordered: bool = False
    held_back: bool = False  #: whether they cannot be bound as they are
    placed: list[PodPlacement] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)


def plan(gang_scheduler: GangScheduler, objects: Sequence[Object], namespace: str) -> list[PlannedJob]:
    """Plan the pods that objects make, each group beside those before it.

    Raises :class:`RequestError` for invalid objects. It costs one plan of the core per group, or per pod that is placed
    by itself.
    """
    groups: dict[str, _Planned] = {}
    helpers: dict[str, int] = {}
    unknown: list[PlannedJob] = []
    lists = [
        thing["items"] for thing in objects if thing.get("kind") == "List" and isinstance(thing.get("items"), list)
    ]
    inside = [thing for items in lists for thing in items if isinstance(thing, dict)]
    for number, thing in enumerate([*objects, *inside]):
        field_, kind = f"manifests.{number}", str(thing.get("kind") or "without a kind")
        made = _made(thing, namespace, field_)
        if made is None:
            if kind != "List" and (vc := _names_a_vc(thing)) is not None:
                unknown.append(_unread(thing, kind, vc, namespace))
            continue
        for one in made:
            try:
                _collect(gang_scheduler, groups, helpers, thing, kind, one)
            except InputError as error:
                raise RequestError(field_, f"{kind} {one.pod.metadata.name}: {error}") from None
    made_by = [(name, group) for name, group in groups.items() if group.pods]
    with gang_scheduler.cluster.what_if():
        return [_answer(gang_scheduler, group, helpers.get(name, 0)) for name, group in made_by] + unknown


def _collect(
    gang_scheduler: GangScheduler,
    groups: dict[str, _Planned],
    helpers: dict[str, int],
    thing: Object,
    kind: str,
    made: _Made,
) -> None:
    """Add pods to the groups that they are of, by the code that will read their requests."""
    pod = made.pod
    if not pod_request.concerns(pod):
        if (helped := pod_request.helps(pod)) is not None:
            helpers[helped] = helpers.get(helped, 0) + made.number
        return
    owned = pod_request.gang_owner(pod) is not None
    ask = gang_scheduler.valid_request(pod, members_of(thing, kind) if owned and is_gang(thing) else None)
    group = groups.get(ask.group)
    if group is None:
        alone = ask.group == pod.key and ask.size == 1
        group = groups[ask.group] = _Planned(ask, ask.group, alone and made.number > 1)
    elif (what := ask.disagrees(group.ask)) is not None:
        raise RequestError("group", f"other pods of its group {ask.group} ask for something else: {what}")
    group.pods += made.number
    group.makers += 1
    group.ordered |= made.ordered
    group.held_back |= pod.held_back


def _tried(gang_scheduler: GangScheduler, request: Request) -> PlanAnswer:
    """The answer to a request; one that would start now counts from then on."""
    answer, cluster = gang_scheduler.scheduler.plan(request), gang_scheduler.cluster
    if answer.outcome == "now":
        cluster.commit(cluster.schedule(request))
    return answer


def _answer(table: GangScheduler, group: _Planned, helpers: int) -> PlannedJob:
    """Plan one group, or equal pods one by one until one of them would not start."""
    ask = group.ask
    there = table.gangs.get(ask.group)
    size = 1 if group.one_by_one else table.sized(ask, group.pods).size
    if ask.counted:
        known = len(table.helpers.get(ask.group, ()))
        size = max(ask.counted - helpers - known, min(group.pods, ask.counted))
        ask = replace(ask, members=(replace(ask.members[0], pods=size),))
    problem = _problem(group, ask, 0 if there is None else there.all_pods)
    if problem is not None:
        return _told(group, ask, problem[0], problem[1], [])
    number = group.pods if group.one_by_one else 1
    for index in range(number):
        name = f"{ask.group}-{index}" if group.one_by_one else ask.group
        name = f"{name} (planned)" if name in table.gangs or group.one_by_one else name
        found = _one(table, ask, name)
        outcome, text = found.outcome, found.text
        if found.decision is not None:
            group.placed += found.decision.placement.pods
            group.victims += [v for v in getattr(found.decision, "victims", ()) if v not in group.victims]
        if outcome != "now":
            reasons = [reason_data(reason, GangExplainer(table).say(reason)) for reason in found.reasons]
            if index:
                some = f"{index:,} of its {number:,} pods would start now, each by itself; the others:"
                return _told(group, ask, "waits", in_lines([some, *text.splitlines()]), reasons)
            return _told(group, ask, outcome, text, reasons)
    surplus = 0 if group.one_by_one else group.pods - ask.size
    if surplus > 0:
        more = f"{counted(surplus, 'more pod')} than its group has places ({ask.size:,}): the others wait for a place"
        return _told(group, ask, "waits", in_lines(["not all of it would start:", more]), [])
    if group.one_by_one:
        text = in_lines([f"all {number:,} pods would start now, each by itself"])
    return _told(group, ask, "now", text, [])


def _problem(group: _Planned, ask: PodRequest, there: int) -> tuple[Outcome, str] | None:
    """Why the pods of a group do not start, whatever room there is: an outcome and its text; None: they may."""
    if group.held_back:
        return "waits", in_lines(["it would wait:", "its pods are held back (suspend, or a scheduling gate)"])
    if group.one_by_one or not ask.whole or ask.size == 1:
        return None
    if group.ordered and group.pods > 1:
        why = (
            f"its pods are made one after another, and a group is placed once all {ask.size:,} exist; start them "
            "together (podManagementPolicy: Parallel, startupPolicyOrder: AnyOrder), or give them no group"
        )
        return "never", in_lines(["it can never start:", why])
    if group.pods + there < ask.size:
        why = f"{group.pods + there:,} of its {ask.size:,} pods exist then; it is placed once all do"
        return "waits", in_lines(["it would wait:", why])
    return None


def _one(table: GangScheduler, ask: PodRequest, name: str) -> Planned:
    """Plan one request: at its turn, or on a loan before that."""
    request = replace(ask.request(), group=name)
    answer = _tried(table, request)
    return GangExplainer(table).planned(request, answer, partial(_tried, table), ask.group, ask.early)


def _told(
    group: _Planned, ask: PodRequest, outcome: Outcome, text: str, reasons: list[dict[str, object]]
) -> PlannedJob:
    return PlannedJob(
        name=group.name,
        vc=ask.vc,
        gpus=ask.gpus * (group.pods if group.one_by_one else 1),
        outcome=outcome,
        text=text,
        placement=places(group.placed),
        victims=group.victims,
        reasons=reasons,
    )


# -- what objects make ------------------------------------------------------------------------------------------------


def _made(thing: Object, namespace: str, where: str) -> list[_Made] | None:
    """The pods that an object makes at a time; None: its kind is not read."""
    kind = thing.get("kind")
    try:
        metadata = thing.get("metadata") or {}
        name = str(metadata.get("name") or metadata.get("generateName") or "unnamed").rstrip("-")
        home = str(metadata.get("namespace") or namespace)
        if kind == "Pod":
            return [_Made(_templated(thing, home, name, ()), 1)]
        if kind == "CronJob":
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**metadata, "name": name}}
            return _made({**job, "spec": thing["spec"]["jobTemplate"]["spec"]}, namespace, where)
        if kind in _WITH_REPLICAS:
            spec = thing["spec"]
            number, template = spec.get("replicas"), spec["template"]
            ordered = kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
            parts = [(1 if number is None else int(number), template, ordered)]
        elif is_gang(thing) or kind == "Job":
            ordered = starts_in_order(thing)
            parts = [(number, template, ordered) for number, template in pods_at_once(thing)]
        else:
            return None
        api = str(thing.get("apiVersion"))
        owner = Owner(api_version=api, kind=str(kind), name=name, uid="planned", controller=True)
        suspended = bool(thing["spec"].get("suspend"))
        return [
            _Made(_templated(template, home, name, (owner,), suspended), number, ordered)
            for number, template, ordered in parts
        ]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, msgspec.ValidationError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise RequestError(where, f"{kind}: it has not the form that Kubernetes wants: {what}") from None


def _templated(template: Object, namespace: str, name: str, owners: Sequence[Owner], suspended: bool = False) -> Pod:
    metadata = {
        **(template.get("metadata") or {}),
        "namespace": namespace,
        "name": name,
        "uid": "planned",
        "ownerReferences": [msgspec.to_builtins(owner) for owner in owners],
    }
    spec = dict(template.get("spec") or {})
    if suspended:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": "suspended"}]
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def _names_a_vc(thing: object) -> str | None:
    """A virtual cluster that a label or an annotation somewhere in an object names; None: none. O(object)."""
    left = [thing]
    while left:  # objects may be nested deeper than calls can be
        one = left.pop()
        if isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, dict):
            for key in (keys.VC, keys.POD_SPEC):
                if isinstance(value := one.get(key), str):
                    return value if key == keys.VC else "the annotation's virtual cluster"
            left += reversed(one.values())
    return None


def _unread(thing: Object, kind: str, vc: str, namespace: str) -> PlannedJob:
    """The answer about an object of a kind that is not read, with pods for HiveD in it."""
    metadata = thing.get("metadata") or {}
    name = f"{metadata.get('namespace') or namespace}/{metadata.get('name') or 'unnamed'}"
    why = (
        f"it names {vc}, and what pods a {kind} makes is not known here; plan a pod of it, or a Job, JobSet, "
        "PyTorchJob, CronJob, Deployment, ReplicaSet or StatefulSet like it"
    )
    text = in_lines(["it cannot be foreseen:", why])
    return PlannedJob(name=name, vc=vc, gpus=0, outcome="unknown", text=text, placement=[], victims=[], reasons=[])
