"""Bound pods back to gangs: after a restart, or when somebody else has bound them.

What pods say is checked against each other: pods of one gang tell one story, and a device has one owner. Who cannot be
believed is told apart, so that what it may use is given to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hived.cluster.decisions import Placement

from . import asking, keys
from .asking import Ask, AskError
from .bindinfo import BindInfo, bind_info
from .gangs import PodEntry


@dataclass(slots=True)
class Found:
    """A gang that its bound pods tell of."""

    ask: Ask
    info: BindInfo
    created: str  #: of its first pod
    entries: dict[int, PodEntry] = field(default_factory=dict)  #: by their places in ``info.pods``

    @property
    def guaranteed(self) -> bool:
        """Whether a pod says that they stand in cells of their VC. A change of that may have reached some only."""
        return all(self.info.cell_types)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A bound pod that no gang is made of."""

    entry: PodEntry
    error: AskError
    devices: tuple[int, ...] | None  #: that it may use; None: any of its node


def gather(entries: Iterable[PodEntry]) -> tuple[list[Found], list[Unknown]]:
    """What bound pods say, the earliest gang first. O(pods)."""
    found: dict[str, Found] = {}
    unknown: list[Unknown] = []
    for entry in sorted(entries, key=lambda entry: (created(entry), entry.key)):
        try:
            _add(found, entry)
        except AskError as error:
            unknown.append(Unknown(entry, error, _devices(entry)))
    return list(found.values()), unknown


def created(entry: PodEntry) -> str:
    """When a pod was created: RFC 3339, so that later is larger."""
    return entry.pod.metadata.creation_timestamp or ""


def _add(found: dict[str, Found], entry: PodEntry) -> None:
    pod = entry.pod
    info = bind_info(pod)
    if info is None:
        raise AskError("unplaced", f"it was bound to {pod.spec.node_name} by somebody else, and has no GPUs of HiveD")
    if info.pod.node != pod.spec.node_name:
        raise AskError("bind-info", f"it is on {pod.spec.node_name}, and its annotations say {info.pod.node}")
    ask = asking.ask(pod, info.members)
    of = found.get(ask.group)
    if of is None:
        of = found[ask.group] = Found(ask, info, created(entry))
    else:
        why = of.ask.disagrees(ask)
        if why is not None:
            raise AskError("disagrees", f"its group {ask.group} has pods that ask for something else: {why}")
        if of.info.pods != info.pods:
            raise AskError("disagrees", f"pods of its group {ask.group} do not agree about where the group is")
        if all(info.cell_types) and not of.guaranteed:
            of.info = info
    slot = info.pods.index(info.pod)
    if slot in of.entries:
        other = of.entries[slot].key
        raise AskError("conflict", f"{other} was bound to the same GPUs; delete one of the two")
    of.entries[slot] = entry


def _devices(entry: PodEntry) -> tuple[int, ...] | None:
    """What a pod may be using, whose annotations are not what they should be. () where it got no devices."""
    text = entry.pod.annotation(keys.ISOLATION) or entry.pod.annotation(keys.FORMER_ISOLATION)
    if text is None:
        return () if entry.pod.annotation(keys.BIND_INFO) is None else None
    words = text.split(",")
    if all(word.strip().isdecimal() and len(word) < 8 for word in words):
        return tuple(int(word) for word in words)
    return None


def without(placement: Placement, slots: set[int]) -> Placement:
    """``placement`` without some of its pods."""
    kept = [number for number in range(len(placement.pods)) if number not in slots]
    levels = tuple(placement.reserved_levels[number] for number in kept) if placement.reserved_levels else ()
    return Placement(placement.chain, tuple(placement.pods[number] for number in kept), levels)
