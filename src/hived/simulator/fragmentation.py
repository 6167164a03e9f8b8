"""Fragmentation: nodes in guaranteed use, and the GPUs of each tenant that cannot be had as whole nodes, and why.

*Fragmentation* (HiveD, OSDI'20, section 5.2) is the share of nodes that cannot give all their GPUs to one guaranteed
job, since some are in guaranteed use. :class:`Reservations` says whose doing that is. At any moment, and for each
tenant by itself, the GPUs that it reserved in whole nodes are the sum of

- *used*: held by its guaranteed jobs;
- *free*: in whole nodes that it could have now for further guaranteed jobs;
- *external*: in whole nodes that it could have as well if the guaranteed jobs of the other tenants were gone and its
  own stayed where they are: denied by the others;
- *internal*: the rest: idle, and kept from a job of a whole node by the tenant's own jobs, such as the idle GPUs of a
  node that its jobs use in part.

Loans count nowhere, since they give way. With ``whole``: its GPUs reserved in whole nodes; ``use``: GPUs of its
guaranteed jobs; ``nodes``: all GPUs of the nodes that these jobs use; ``idle``: all GPUs of the nodes that nobody's
guaranteed jobs use; all of a chain (private, hived) or of a device type (quota):

- private, hived: the tenant has its own nodes, and ``nodes`` of them are taken. ``used = use``,
  ``internal = nodes - use``, ``external = max(0, whole - nodes - idle)``. In a private cluster external is 0 by
  definition, under hived by sharing safety (theorem 1 of the paper).
- quota: the tenant has a number of GPUs, and any node. ``used = use``; ``left`` is the largest multiple of a node's
  size up to ``whole - use``, at most the GPUs of nodes without its jobs. ``external = max(0, left - idle)``,
  ``internal = whole - use - left``. Where nodes of a type differ in size, their greatest common divisor counts.

Cells below node level are no part of the sum: they never give a whole node. In a private cluster they are small nodes,
and left out with the jobs on them. Elsewhere, for a VC that reserves both (``small``: GPUs in such cells),
``used = use - small``, at least 0, and under quota ``left`` is up to ``whole + small - use``. Under hived a job on a
node may be in either kind, which ``runs.csv`` does not tell. There internal is a lower bound: jobs are taken to be in
the smaller cells, as many nodes as there are such cells, unless ``use`` is too much for them. External is one too:
every node with its jobs counts as one of its whole nodes. Pinned cells are left out, since no job of a trace names
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.cluster.sharing import Sharing
from hived.scheduling import Kind
from hived.spec.compiled import ChainSpec, ClusterSpec

from .experiment import NodeSizes
from .record import Record
from .shared_gpus import KINDS, in_use

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """Intervals with a weight each. (n,)"""

    start: Ints
    end: Ints
    weight: Ints

    def of(self, chosen: NDArray[np.bool_]) -> Spans:
        """The chosen ones."""
        return Spans(self.start[chosen], self.end[chosen], self.weight[chosen])


@dataclass(frozen=True, slots=True)
class Pods:
    """What every pod of every run held, in the order of ``record.runs``. Arrays (pods,) but for ``sizes`` (nodes,).

    Where jobs run by models and may share GPUs: what was in use on every node, each GPU once (:mod:`~.shared_gpus`).
    """

    sizes: Ints  #: GPUs of each node
    node: Ints  #: number of the node
    job: Ints  #: number in the trace; where GPUs are shared, of one of the jobs; guaranteed ones are all of its tenant
    held: Spans  #: and with how many GPUs
    guaranteed: NDArray[np.bool_]
    guests: Spans  #: GPUs on which guests run, which hold none, so that they are not among the others (n,)

    def runs(self) -> tuple[Ints, Ints]:
        """Job and length in time of each run, by the first of its pods."""
        first = np.ones(len(self.job), dtype=bool)
        first[1:] = (np.diff(self.job) != 0) | (np.diff(self.held.start) != 0)
        return self.job[first], (self.held.end - self.held.start)[first]


def pods_of(record: Record, sizes: NodeSizes) -> Pods:
    """The table of a record; ``sizes`` is of its cluster. O(pods); of GPUs that may be shared O(GPUs log GPUs)."""
    numbers = {node: number for number, node in enumerate(sizes)}
    flat = np.asarray(list(sizes.values()), dtype=np.int64)
    if record.alone:
        used = in_use(record, numbers)
        spans = Spans(used.start, used.end, used.gpus)
        own, guest = used.kind == KINDS.index(Kind.GUARANTEED), used.kind == KINDS.index(Kind.GUEST)
        return Pods(flat, used.node[~guest], used.job[~guest], spans.of(~guest), own[~guest], spans.of(guest))
    guaranteed = Kind.GUARANTEED
    rows = [
        (numbers[placement.chain, node], job, start, end, len(leaves), kind is guaranteed)
        for job, start, end, kind, placement, _, _ in record.runs
        for node, leaves in placement.pods
    ]
    node, job, start, end, gpus, own = np.asarray(rows, dtype=np.int64).reshape(-1, 6).T
    none = np.zeros(0, dtype=np.int64)
    return Pods(flat, node, job, Spans(start, end, gpus), own.astype(bool), Spans(none, none, none))


class _Steps(NamedTuple):
    """Running sums of changes, per key: constant from ``start`` to ``end``, which is later. (n,)"""

    key: Ints
    start: Ints
    end: Ints
    value: Ints  #: (columns, n)


def _steps(key: Ints, time: Ints, change: Ints) -> _Steps:
    """Sum ``change`` (columns, n) per key, over time. The changes of a key sum to 0. O(n log n)."""
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    value = np.cumsum(change[:, order], axis=1)  # each key ends at 0, so one running sum serves all
    end = np.append(time[1:], 0)
    lasts = np.append(key[1:] == key[:-1], False) & (end > time)
    return _Steps(key[lasts], time[lasts], end[lasts], value[:, lasts])


def _changes(*spans: Spans) -> tuple[Ints, Ints]:
    """The moments at which spans begin and end, and the change of the sum of the weights, a column for each of them."""
    time = np.concatenate([moment for one in spans for moment in (one.start, one.end)])
    change = np.zeros((len(spans), len(time)), dtype=np.int64)
    at = 0
    for column, one in enumerate(spans):
        number = len(one.start)
        change[column, at : at + number] = one.weight
        change[column, at + number : at + 2 * number] = -one.weight
        at += 2 * number
    return time, change


def node_use(pods: Pods) -> tuple[Spans, Spans]:
    """Intervals in which a node has GPUs in guaranteed use, and those in which some but not all are. Weights: 1.

    O(pods log pods).
    """
    held = pods.held.of(pods.guaranteed)
    node = pods.node[pods.guaranteed]
    steps = _steps(np.concatenate((node, node)), *_changes(held))
    used = steps.value[0]
    whole = Spans(steps.start, steps.end, np.ones(len(used), dtype=np.int64))
    return whole.of(used > 0), whole.of((used > 0) & (used < pods.sizes[steps.key]))


@dataclass(frozen=True, slots=True)
class _Pool:
    """Nodes that serve the same reservations. Arrays (tenants,)."""

    gpus: int  #: of its nodes, without those that are partly pinned
    node: int  #: GPUs of a node, or the greatest common divisor
    whole: Ints  #: GPUs reserved in whole nodes
    small: Ints  #: GPUs reserved in cells below node level
    cells: Ints  #: number of those


def _pools(spec: ClusterSpec, scheme: Sharing) -> tuple[list[_Pool], dict[str, int]]:
    """The pools, and the number of the pool of each chain."""
    if scheme is Sharing.QUOTA:
        groups: dict[str, list[ChainSpec]] = {}
        for chain in spec.chains:
            groups.setdefault(chain.leaf_type, []).append(chain)
        chains = list(groups.values())
    else:
        chains = [[chain] for chain in spec.chains]
    pools: list[_Pool] = []
    number: dict[str, int] = {}
    for group in chains:
        names = {chain.name: chain for chain in group}
        number |= dict.fromkeys(names, len(pools))
        reserved = np.zeros((3, len(spec.virtual_clusters)), dtype=np.int64)
        for tenant, vc in enumerate(spec.virtual_clusters):
            for cells in vc.cells:
                if cells.chain in names:
                    chain = names[cells.chain]
                    size = chain.levels[cells.level - 1].gpus
                    if size >= chain.gpus_per_node:
                        reserved[0, tenant] += size * cells.number
                    elif scheme is not Sharing.PRIVATE:  # where they are nodes of their own, left out with their jobs
                        reserved[1:, tenant] += size * cells.number, cells.number
        gpus = sum(chain.gpus - (scheme is Sharing.HIVED) * _pinned_gpus(spec, chain) for chain in group)
        pools.append(_Pool(gpus, gcd(*(chain.gpus_per_node for chain in group)), *reserved))
    return pools, number


def _pinned_gpus(spec: ClusterSpec, chain: ChainSpec) -> int:
    """GPUs of the nodes with pinned cells, whole or in part."""
    nodes = set()
    for pin in (pin for vc in spec.virtual_clusters for pin in vc.pinned if pin.chain == chain.name):
        size = chain.levels[pin.level - 1].gpus
        first, end = pin.index * size, (pin.index + 1) * size
        nodes |= set(range(first // chain.gpus_per_node, -(-end // chain.gpus_per_node)))
    return len(nodes) * chain.gpus_per_node


class _OfTenants(NamedTuple):
    """Intervals by tenant, with GPUs. (n,)"""

    tenant: Ints
    spans: Spans


@dataclass(frozen=True, slots=True)
class Reservations:
    """What the tenants' reservations in whole nodes are, over time: see above. By tenant, in the order of the spec."""

    gpus: Ints  #: reserved in whole nodes (tenants,)
    used: _OfTenants
    internal: _OfTenants
    external: _OfTenants

    def shares(self, until: int) -> Floats:
        """Mean share, until then, of each tenant's GPUs: used, free, internal, external. NaN: reserved none.

        (tenants, 4)
        """
        found = np.full((len(self.gpus), 4), np.nan)
        some = self.gpus > 0
        for column, part in ((0, self.used), (2, self.internal), (3, self.external)):
            length = np.maximum(np.minimum(part.spans.end, until) - part.spans.start, 0)
            area = np.bincount(part.tenant, part.spans.weight * length.astype(np.float64), len(self.gpus))
            found[some, column] = area[some] / (self.gpus[some] * until)
        found[:, 1] = np.maximum(1 - found[:, 0] - found[:, 2] - found[:, 3], 0)  # no -0.0 of rounding
        return found


def reservations(spec: ClusterSpec, record: Record, sizes: NodeSizes, pods: Pods, until: int) -> Reservations:
    """Split the reservations of the tenants, at least ``until`` then. O(pods log pods + tenants * pods)."""
    scheme = Sharing(record.scheme)
    pools, pool_of_chain = _pools(spec, scheme)
    tenants = {vc.name: number for number, vc in enumerate(spec.virtual_clusters)}
    horizon = max(record.end, until)
    size_of_chain = {chain.name: chain.gpus_per_node for chain in spec.chains}
    pool_of_node = np.asarray([pool_of_chain[chain] for chain, _ in sizes], dtype=np.int64)
    # a private cluster's nodes for cells below node level are no whole nodes
    whole_node = np.asarray([gpus >= size_of_chain[chain] for (chain, _), gpus in sizes.items()], dtype=bool)
    chosen = pods.guaranteed & whole_node[pods.node] if len(pods.node) else pods.guaranteed
    node, held = pods.node[chosen], pods.held.of(chosen)
    tenant = np.asarray([tenants[job.tenant] for job in record.jobs], dtype=np.int64)[pods.job[chosen]]
    pool = pool_of_node[node]
    _, busy_node, busy = _in_use(np.zeros_like(tenant), node, held, pods.sizes)
    own_tenant, own_node, own = _in_use(tenant, node, held, pods.sizes)
    columns: list[tuple[Ints, ...]] = []  # tenant, start, end, used, internal
    denied: list[tuple[Ints, ...]] = []  # tenant, start, end, GPUs
    for number, of in enumerate(pools):
        here, own_here = pool == number, pool_of_node[own_node] == number
        # from 0 to the horizon for everybody, with or without jobs
        everybody = np.arange(len(tenants))
        always = Spans(np.zeros_like(everybody), np.full_like(everybody, horizon), np.zeros_like(everybody))
        use, nodes = held.of(here), own.of(own_here)
        keys = np.concatenate([key for key in (tenant[here], own_tenant[own_here], everybody) for _ in range(2)])
        steps = _steps(keys, *_changes(use, nodes, always))
        used, taken, certain = _split(of, scheme, steps)
        columns.append((steps.key, steps.start, steps.end, used, taken - used))
        if scheme is not Sharing.PRIVATE:
            denied += _denied(of, steps, certain, busy.of(pool_of_node[busy_node] == number), horizon)
    by_tenant, start, end, used, internal = map(np.concatenate, zip(*columns, strict=True))
    lost_by, lost_start, lost_end, lost = (
        map(np.concatenate, zip(*denied, strict=True)) if denied else np.zeros((4, 0), dtype=np.int64)
    )
    return Reservations(
        np.sum([of.whole for of in pools], axis=0, dtype=np.int64),
        _OfTenants(by_tenant, Spans(start, end, used)),
        _OfTenants(by_tenant, Spans(start, end, internal)),
        _OfTenants(lost_by, Spans(lost_start, lost_end, lost)),
    )


def _in_use(tenant: Ints, node: Ints, held: Spans, sizes: Ints) -> tuple[Ints, Ints, Spans]:
    """The intervals in which a tenant holds GPUs of a node: tenant, node, and the node's size as the weight."""
    key = tenant * len(sizes) + node
    steps = _steps(np.concatenate((key, key)), *_changes(held))
    chosen = steps.value[0] > 0
    tenant, node = np.divmod(steps.key[chosen], max(1, len(sizes)))
    return tenant, node, Spans(steps.start[chosen], steps.end[chosen], sizes[node])


def _split(pool: _Pool, scheme: Sharing, steps: _Steps) -> tuple[Ints, Ints, Ints]:
    """Of the GPUs reserved in whole nodes: used; used or spoilt by the tenant's own jobs; left to it for certain."""
    whole, small, cells = pool.whole[steps.key], pool.small[steps.key], pool.cells[steps.key]
    use, nodes = steps.value[0], steps.value[1]
    used = np.clip(use - small, 0, whole)
    if scheme is Sharing.QUOTA:
        left = np.maximum(np.minimum(whole, whole + small - use), 0) // pool.node * pool.node
        left = np.minimum(left, pool.gpus - nodes)
        return used, whole - left, left
    least = np.maximum(nodes - cells * pool.node, -(-used // pool.node) * pool.node)
    return used, np.minimum(whole, least), np.maximum(whole - nodes, 0)


def _denied(pool: _Pool, steps: _Steps, certain: Ints, busy: Spans, horizon: int) -> list[tuple[Ints, ...]]:
    """Where less is idle than a tenant is left: tenant, start, end and GPUs, per tenant."""
    time, change = _changes(busy)
    level = _steps(np.zeros(len(time), dtype=np.int64), time, change)
    if not len(level.start):
        return []
    idle = pool.gpus - level.value[0]
    found: list[tuple[Ints, ...]] = []
    first = np.searchsorted(steps.key, np.arange(len(pool.whole) + 1))
    for tenant in np.flatnonzero(pool.whole):
        mine = slice(first[tenant], first[tenant + 1])
        left = certain[mine]
        tight = idle < left.max(initial=0)
        if not tight.any():
            continue
        # cut each tight interval where the tenant's own state changes
        start, end = level.start[tight], level.end[tight]
        moments = np.unique(np.concatenate((start, end, steps.start[mine])))
        moments = moments[moments < horizon]
        place = np.searchsorted(start, moments, side="right") - 1
        inside = (place >= 0) & (moments < end[np.maximum(place, 0)])
        moments, place = moments[inside], place[inside]
        until = np.minimum(end[place], np.append(moments[1:], horizon))
        short = left[np.searchsorted(steps.start[mine], moments, side="right") - 1] - idle[tight][place]
        lacks = short > 0
        found.append((np.full(int(lacks.sum()), tenant), moments[lacks], until[lacks], short[lacks]))
    return found
