"""What happened in an engine, as data: people are told in sentences that are made where they read them."""

from __future__ import annotations

from collections.abc import Reversible
from dataclasses import dataclass, field
from typing import Any

from hived.cluster.decisions import Placement, PodPlacement


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to a job, to hardware, or to the engine."""

    seq: int  #: place among all events, from 1, without gaps
    at: float  #: seconds since the epoch
    kind: str
    job: Any = None  #: number or name, as the engine calls its jobs; None: it is about none
    data: dict[str, Any] = field(default_factory=dict)  #: what the kind says it has; plain JSON


def after(recent: Reversible[Event], seq: int) -> list[Event]:
    """What came after number ``seq``. O(how many)."""
    found: list[Event] = []
    for event in reversed(recent):
        if event.seq <= seq:
            break
        found.append(event)
    return found[::-1]


def placement_data(placement: Placement) -> dict[str, object]:
    """A placement as plain data."""
    pods = [[pod.node, list(pod.leaf_cells)] for pod in placement.pods]
    return {"chain": placement.chain, "pods": pods, "levels": list(placement.reserved_levels)}


def placement_from(plain: Any) -> Placement:
    """The placement that :func:`placement_data` made this of."""
    pods = tuple(PodPlacement(node, tuple(devices)) for node, devices in plain["pods"])
    return Placement(plain["chain"], pods, tuple(plain["levels"]))
