"""What a new spec changes, in words: for who had only seen the one before."""

from __future__ import annotations

from collections.abc import Iterator

from .compiled import AccessSpec, ClusterSpec, VirtualClusterSpec

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
    "file_group": "fileGroup",
}
_NOBODY = AccessSpec()


def changes(old: ClusterSpec, new: ClusterSpec) -> Iterator[str]:
    """Each change as ``vision: maxGpus 3 (was 4)``; nothing where the specs are the same. O(virtual clusters)."""
    if old.chains != new.chains:
        yield (
            f"the cluster has {new.gpus:,} GPUs (was {old.gpus:,})" if old.gpus != new.gpus else "other nodes or cells"
        )
    if old.operators != new.operators:
        yield f"operators {_shown(new.operators)} (was {_shown(old.operators)})"
    before = {vc.name: vc for vc in old.virtual_clusters}
    for vc in new.virtual_clusters:
        was = before.pop(vc.name, None)
        if was is None:
            yield f"{vc.name} is new"
        else:
            if (was.cells, was.pinned) != (vc.cells, vc.pinned):
                gpus = new.reserved(vc), old.reserved(was)
                cells = f"{gpus[0]:,} reserved GPUs (was {gpus[1]:,})" if gpus[0] != gpus[1] else "other cells"
                yield f"{vc.name}: {cells}"
            yield from (f"{vc.name}: {what}" for what in _of_vc(was, vc))
    yield from (f"{name} is no more" for name in before)


def _of_vc(old: VirtualClusterSpec, new: VirtualClusterSpec) -> Iterator[str]:
    access = old.access or _NOBODY, new.access or _NOBODY
    for names, (was, has) in ((_OF_VC, (old, new)), (_OF_ACCESS, access)):
        for name, key in names.items():
            values = getattr(was, name), getattr(has, name)
            if values[0] != values[1]:
                yield f"{key} {_shown(values[1])} (was {_shown(values[0])})"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
