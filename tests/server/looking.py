"""What a dashboard has to show of an engine, whichever it is: counted naively, by an own way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hived.cluster.decisions import Placement
from hived.engine.job import EngineJob
from hived.server import pictures
from hived.spec.compiled import ClusterSpec, Device

#: what a job does in a state; one that has GPUs and need not go is guaranteed or opportunistic
DOING = {
    "queued": "waiting",
    "waiting": "waiting",
    "reserved": "reserved",
    "stopping": "stopping",
    "preempted": "stopping",
    "backoff": "backoff",
    "held": "held",
}


def applied(before: pictures.Picture, update: pictures.Update) -> pictures.Picture:
    """What a browser makes of an update."""
    holders = {holder.id: holder for holder in before.holders if holder.id not in update.gone}
    holders |= {holder.id: holder for holder in update.holders}
    return pictures.Picture(
        seq=update.seq,
        at=update.at,
        holders=list(holders.values()),
        bad=before.bad if update.bad is None else update.bad,
        drained=before.drained if update.drained is None else update.drained,
        queue=before.queue if update.queue is None else update.queue,
        queue_total=update.queue_total,
        usage=update.usage,
        totals=update.totals,
    )


def in_order(picture: pictures.Picture) -> pictures.Picture:
    """The same picture, whatever the order of what has none."""
    holders = sorted(picture.holders, key=lambda holder: holder.id)
    health = {"bad": sorted(picture.bad), "drained": sorted(picture.drained)}
    return picture.model_copy(update={"holders": holders, **health})


def devices_of(layout: pictures.Layout, parts: list[pictures.Stretch]) -> set[Device]:
    """The devices of stretches, by an own way from the layout that a browser has."""
    chains = layout.views[0].chains
    found = []
    for chain, node, first, count in parts:
        indices = chains[chain].devices.get(node) or range(chains[chain].levels[chains[chain].node_level - 1].gpus)
        name = chains[chain].nodes[node].removesuffix(" (not in the spec)")
        found += [(name, list(indices)[leaf]) for leaf in range(first, first + count)]
    assert len(set(found)) == len(found), "a device is shown twice"
    return set(found)


def check_picture(
    picture: pictures.Picture,
    layout: pictures.Layout,
    spec: ClusterSpec,
    jobs: Sequence[EngineJob],
    bad: set[Device],
    kept: set[Device],
    beyond: bool,
) -> None:
    """Against a naive count over ``jobs``, all that have not ended.

    ``bad``, ``kept``: devices that are faulty, or kept from jobs for another reason. ``beyond``: whether jobs keep what
    the spec lacks.
    """
    known = set(spec.devices())
    shown = {holder.id: holder for holder in picture.holders}
    held: set[Device] = set()
    reserved: set[Device] = set()
    used: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    nodes = set()
    for job in jobs:
        assert (job.key in shown) == (job.placement is not None)
        if job.placement is None:
            continue
        holder, own = shown[job.key], set(job.placement.devices())
        assert devices_of(layout, holder.parts) == (own if beyond else own & known)
        assert len(holder.binding) == len(holder.parts)
        assert all(bool(text) is job.placement.guaranteed for text in holder.binding)
        assert holder.stopping is (DOING.get(job.state.value) == "stopping")
        if not job.holds:
            assert holder.kind == "reserved"
            reserved |= own
            continue
        assert not own & held, "a device is held twice"
        held |= own
        assert holder.kind == ("guaranteed" if job.guaranteed else "opportunistic")
        if job.guaranteed:
            used[job.vc] += len(own)
            nodes |= {node for node, _ in own}
        else:
            borrowed[job.vc] += len(own)
    assert len(shown) == len(picture.holders) == sum(job.placement is not None for job in jobs)
    there = known | held if beyond else known
    bad, kept = bad & there, (kept & there) - bad
    assert devices_of(layout, picture.bad) == bad
    assert devices_of(layout, picture.drained) == kept
    totals = picture.totals
    assert totals == pictures.Totals(
        gpus=len(there),
        guaranteed=sum(used.values()),
        opportunistic=sum(borrowed.values()),
        reserved=len((reserved - held) & known),
        bad=len(bad - held),
        drained=len(kept - held),
        bad_used=len(bad & held),
        drained_used=len(kept & held),
        fragmentation=len(nodes) / len({node for node, _ in known}),
    )
    counted = totals.guaranteed + totals.opportunistic + totals.reserved + totals.bad + totals.drained
    assert totals.gpus - counted == len(there - held - reserved - bad - kept), "what is idle does not add up"
    queued = [job for job in jobs if not job.holds]
    assert picture.queue_total == len(queued)
    assert sorted(row.id for row in picture.queue) == sorted(job.key for job in queued)
    assert all(row.why for row in picture.queue)
    waiting = Counter(job.vc for job in queued)
    vcs = [vc.name for vc in spec.virtual_clusters]
    assert [row.vc for row in picture.usage][: len(vcs)] == vcs, "others hold what they have borrowed, and no more"
    assert all(row.reserved == 0 and row.borrowed for row in picture.usage[len(vcs) :])
    for row in picture.usage:
        assert (row.used, row.borrowed, row.waiting) == (used[row.vc], borrowed[row.vc], waiting[row.vc])
        assert row.used <= row.reserved or bad
        assert 0 <= row.lent <= max(0, row.reserved - row.used)
    assert sum(row.lent for row in picture.usage) <= sum(borrowed.values())


def check_stays(life: Sequence[pictures.Stay], job: EngineJob, ended: float | None) -> None:
    """A life has no gaps and no overlaps, and its last stretch is what the job does; ``ended``: when it did."""
    for stay, following in pairwise(life):
        assert stay.end == following.start
        assert stay.model_copy(update={"start": following.start, "end": following.end}) != following
    assert all(stay.end is None or stay.end >= stay.start for stay in life)
    assert all(not stay.where for stay in life if stay.kind in ("waiting", "backoff", "held"))
    assert life[-1].end == ended
    if ended is None:
        lent = "guaranteed" if job.guaranteed else "opportunistic"
        assert life[-1].kind == DOING.get(job.state.value, lent)
        assert life[-1].where == where(job.placement)


def where(placement: Placement | None) -> str:
    """As a stretch of a life has it."""
    pods: Iterable[tuple[str, tuple[int, ...]]] = () if placement is None else placement.pods
    return ";".join(f"{node}:{','.join(map(str, devices))}" for node, devices in pods)
