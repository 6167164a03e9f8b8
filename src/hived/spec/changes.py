"""What a new spec changes, for who had only seen the one before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .compiled import AccessSpec, ClusterSpec

#: what is said of a virtual cluster, by its key in the spec
_OF_VC = {
    "policy": "policy",
    "safety": "safety",
    "guests": "guests",
    "opportunistic_weight": "opportunisticWeight",
    "opportunistic_grace_seconds": "opportunisticGraceSeconds",
}
_OF_ACCESS = {
    "members": "members",
    "admins": "admins",
    "max_priority": "maxPriority",
    "max_jobs": "maxJobs",
    "max_gpus": "maxGpus",
    "max_grace_seconds": "maxGraceSeconds",
    "file_group": "fileGroup",
}
_NOBODY = AccessSpec()


class Change(NamedTuple):
    """One; of nodes, cells and virtual clusters as a whole only that there is one, and how many GPUs."""

    vc: str  #: "": of the cluster
    key: str  #: of the spec, or one of nodes, cells, new, gone, order
    was: object = None
    has: object = None


def changes(old: ClusterSpec, new: ClusterSpec) -> Iterator[Change]:
    """What one spec has otherwise than another. O(virtual clusters)."""
    if old.chains != new.chains:
        yield Change("", "nodes", old.gpus, new.gpus)
    if old.operators != new.operators:
        yield Change("", "operators", old.operators, new.operators)
    before = {vc.name: vc for vc in old.virtual_clusters}
    for vc in new.virtual_clusters:
        was = before.pop(vc.name, None)
        if was is None:
            yield Change(vc.name, "new")
            continue
        if (was.cells, was.pinned) != (vc.cells, vc.pinned):
            yield Change(vc.name, "cells", old.reserved(was), new.reserved(vc))
        access = was.access or _NOBODY, vc.access or _NOBODY
        for names, (one, other) in ((_OF_VC, (was, vc)), (_OF_ACCESS, access)):
            for name, key in names.items():
                if (had := getattr(one, name)) != (has := getattr(other, name)):
                    yield Change(vc.name, key, had, has)
    yield from (Change(name, "gone") for name in before)
    if _common(old, new) != _common(new, old):
        yield Change("", "order")


def _common(spec: ClusterSpec, other: ClusterSpec) -> list[str]:
    """The virtual clusters that another spec has too, in the order of this one."""
    names = {vc.name for vc in other.virtual_clusters}
    return [vc.name for vc in spec.virtual_clusters if vc.name in names]
