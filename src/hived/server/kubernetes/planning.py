"""What manifests would come to now: the pods that they stand for, asked of the core as questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import msgspec

from hived.cluster.explain.sentences import MAX_NAMED
from hived.engines.explaining import planned
from hived.engines.kubernetes.gangs.explaining import WhyNot, in_words
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods import pod_request as asking
from hived.engines.kubernetes.pods.objects import Object, Owner, Pod
from hived.engines.kubernetes.pods.owners import is_gang, members_of
from hived.engines.kubernetes.pods.pod_request import PodRequest
from hived.errors import InputError, RequestError

from .schema import PlannedGroup, PodPlace

#: kinds with a template of their pods
_WITH_TEMPLATE = ("Job", "Deployment", "StatefulSet", "ReplicaSet")


def plan(gang_scheduler: GangScheduler, objects: Sequence[Object], namespace: str) -> list[PlannedGroup]:
    """Each group alone. Raises :class:`RequestError` for objects that are wrong. The core's price per group."""
    asks: dict[str, PodRequest] = {}
    lists = [
        thing["items"] for thing in objects if thing.get("kind") == "List" and isinstance(thing.get("items"), list)
    ]
    inside = [thing for items in lists for thing in items if isinstance(thing, dict)]
    for number, thing in enumerate([*objects, *inside]):
        field, kind = f"objects.{number}", str(thing.get("kind") or "without a kind")
        for pod in _pods(thing, namespace, field):
            try:
                if not asking.concerns(pod):
                    continue
                members = members_of(thing, kind) if asking.gang_owner(pod) is not None and is_gang(thing) else None
                ask = gang_scheduler.understood(pod, members)
            except InputError as error:
                raise RequestError(field, f"{kind} {pod.metadata.name}: {error}") from None
            asks.setdefault(ask.group, ask)
    return [_planned(gang_scheduler, ask) for ask in asks.values()]


def reason_data(reason: WhyNot) -> dict[str, object]:
    """Why not, as data: its kind, and the numbers."""
    return {"kind": reason.kind.value, **asdict(reason)}


def _pods(thing: Object, namespace: str, field: str) -> list[Pod]:
    """A pod of each kind that an object makes."""
    try:
        metadata = thing.get("metadata") or {}
        name = str(metadata.get("name") or metadata.get("generateName") or "unnamed").rstrip("-")
        home = str(metadata.get("namespace") or namespace)
        kind = thing.get("kind")
        if kind == "JobSet":
            templates = [job["template"]["spec"]["template"] for job in thing["spec"]["replicatedJobs"]]
        elif kind == "PyTorchJob":
            templates = [role["template"] for role in thing["spec"]["pytorchReplicaSpecs"].values()]
        elif kind == "Pod" or kind in _WITH_TEMPLATE:
            templates = [thing if kind == "Pod" else thing["spec"]["template"]]
        else:
            return []
        owner = Owner(
            api_version=str(thing.get("apiVersion")), kind=str(kind), name=name, uid="planned", controller=True
        )
        owners = () if kind == "Pod" else (owner,)
        return [_pod(template, home, name, owners) for template in templates]
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise RequestError(field, f"{thing.get('kind')}: it has not the form that Kubernetes wants: {what}") from None


def _pod(template: Object, namespace: str, name: str, owners: Sequence[Owner]) -> Pod:
    metadata = {
        **(template.get("metadata") or {}),
        "namespace": namespace,
        "name": name,
        "uid": "planned",
        "ownerReferences": [msgspec.to_builtins(owner) for owner in owners],
    }
    return msgspec.convert({"metadata": metadata, "spec": template.get("spec") or {}}, Pod)


def _planned(gang_scheduler: GangScheduler, ask: PodRequest) -> PlannedGroup:
    """One group: the same question that will decide, and who is in line before it."""
    request = ask.request()
    if ask.group in gang_scheduler.gangs:  # one of that name is there: the question is about another like it
        request = replace(request, group=f"{ask.group} (planned)")
    answer = gang_scheduler.cluster.plan(request)
    line = gang_scheduler.scheduler.before(ask.vc, ask.priority, MAX_NAMED)
    outcome, text, decision, reasons = planned(answer, line, ask.group, partial(in_words, gang_scheduler))
    pods = decision.placement.pods if decision is not None else ()
    return PlannedGroup(
        group=ask.group,
        vc=ask.vc,
        gpus=sum(member.pods * member.leaf_cells for member in ask.members),
        outcome=outcome,
        text=text,
        placement=[PodPlace(node=pod.node, devices=list(pod.leaf_cells)) for pod in pods],
        victims=list(getattr(decision, "victims", ())),
        reasons=[reason_data(reason) for reason in reasons],
    )
