"""Bound pods back to gangs: after a restart, or when somebody else has bound them.

What pods say is checked against each other: pods of one gang tell one story, and a device has one owner. Who cannot be
believed is told apart, so that what it may use is given to nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hived.cluster.decisions import Placement
from hived.engines.kubernetes.pods import labels as keys
from hived.engines.kubernetes.pods import pod_request as asking
from hived.engines.kubernetes.pods.bind_info import BindInfo, bind_info
from hived.engines.kubernetes.pods.gpus import named_devices, uses
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequest
from hived.engines.kubernetes.pods.untrusted import PodRequestError

from .gang import PodEntry


@dataclass(slots=True)
class Found:
    """A gang that its bound pods tell of."""

    ask: PodRequest
    info: BindInfo
    entries: dict[int, PodEntry] = field(default_factory=dict)  #: by their places in ``info.pods``


@dataclass(frozen=True, slots=True)
class Unknown:
    """A bound pod that no gang is made of."""

    entry: PodEntry
    error: PodRequestError
    devices: tuple[int, ...] | None  #: that it may use; None: any of its node


#: what one pod says: what it asks for, and where its gang is
_Said = tuple[PodEntry, PodRequest, BindInfo]


def gather(entries: Iterable[PodEntry]) -> tuple[list[Found], list[Unknown]]:
    """What bound pods say, the earliest gang first. O(pods), and O(pods * stories) where pods tell several."""
    said: dict[str, list[_Said]] = {}
    unknown: list[Unknown] = []
    for entry in sorted(entries, key=lambda entry: (entry.pod.created_at, entry.key)):
        try:
            info = _info(entry.pod)
            ask = asking.ask(entry.pod, info.members)
        except PodRequestError as error:
            unknown.append(Unknown(entry, error, _devices(entry)))
            continue
        of = said.setdefault(ask.group, [])
        if of and (why := of[0][1].disagrees(ask)) is not None:
            other = PodRequestError("disagrees", f"its group {ask.group} has pods that ask for something else: {why}")
            unknown.append(Unknown(entry, other, _devices(entry)))
        else:
            of.append((entry, ask, info))
    found = []
    for of in said.values():
        one = Found(of[0][1], _story([info for _, _, info in of]))
        wrong = _wrong(one)
        for entry, ask, info in of:
            if (problem := wrong or _add(one, entry, ask, info)) is not None:
                unknown.append(Unknown(entry, problem, _devices(entry)))
        if one.entries:
            found.append(one)
    return found, unknown


def _info(pod: Pod) -> BindInfo:
    info = bind_info(pod)
    if info is None:
        raise PodRequestError(
            "unplaced", f"it was bound to {pod.spec.node_name} by somebody else, and has no GPUs of HiveD"
        )
    if info.pod.node != pod.spec.node_name:
        raise PodRequestError("bind-info", f"it is on {pod.spec.node_name}, and its annotations say {info.pod.node}")
    return info


def _story(told: list[BindInfo]) -> BindInfo:
    """The one in which most of these pods are where they say, told by most, the largest.

    A pod that is bound after a spec has taken devices away from its gang tells a smaller one; and of a change between
    guaranteed and opportunistic some may not have heard, so who says guaranteed is believed, if that can be.
    """
    stories = {(info.pods, all(info.cell_types)): info for info in reversed(told)}
    if len(stories) == 1:
        return told[0]
    tellers = Counter(info.pods for info in told)

    def weight(info: BindInfo) -> tuple[int, int, int, bool]:
        places = set(info.pods)
        there = sum(one.pod in places for one in told)
        return there, tellers[info.pods], len(places), all(info.cell_types)

    return max(reversed(stories.values()), key=weight)


def _wrong(found: Found) -> PodRequestError | None:
    """Why a story cannot be true, whoever tells it: the core would refuse it, and look at all the others again."""
    pods, ask = found.info.pods, found.ask
    where = f"annotation {keys.BIND_INFO}"
    if len(pods) > ask.size:
        return PodRequestError(
            "bind-info", f"{where}: it places {len(pods)} pods, and its group {ask.group} has {ask.size}"
        )
    largest = max(member.leaf_cells for member in ask.members)
    most = max(len(pod.leaf_cells) for pod in pods)
    if most > largest:
        return PodRequestError("bind-info", f"{where}: a pod has {most} devices, more than the {largest} asked for")
    devices = {(pod.node, device) for pod in pods for device in pod.leaf_cells}
    if len(devices) < sum(len(pod.leaf_cells) for pod in pods):
        return PodRequestError("bind-info", f"{where}: two pods of its group {ask.group} have the same device")
    return None


def _add(of: Found, entry: PodEntry, ask: PodRequest, info: BindInfo) -> PodRequestError | None:
    """A pod has its place in a story, or does not fit in."""
    if of.info.pods is not info.pods and info.pod not in of.info.pods:
        return PodRequestError("disagrees", f"pods of its group {ask.group} do not agree about where the group is")
    other = of.entries.setdefault(of.info.pods.index(info.pod), entry)
    what = f"{other.key} was bound to the same GPUs; delete one of the two"
    return None if other is entry else PodRequestError("conflict", what)


def _devices(entry: PodEntry) -> tuple[int, ...] | None:
    """What a pod may be using, whose annotations are not what they should be: () nothing, None any of its node.

    Annotations can be changed by whoever owns the pod, its resources cannot: they say whether it has devices, and
    mostly how many.
    """
    some, number = uses(entry.pod)
    return named_devices(entry.pod, number) if some else ()


def without(placement: Placement, slots: set[int]) -> Placement:
    """``placement`` without some of its pods."""
    kept = [number for number in range(len(placement.pods)) if number not in slots]
    levels = tuple(placement.reserved_levels[number] for number in kept) if placement.reserved_levels else ()
    return Placement(placement.chain, tuple(placement.pods[number] for number in kept), levels)
