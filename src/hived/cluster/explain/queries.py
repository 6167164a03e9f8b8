"""Read-only queries on a cluster: groups, explanations, doomed cells, the whole state as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hived.cluster.decisions import Bind, Decision, Placement, Record, Wait
from hived.cluster.explain.reasons import PreemptedBy, Reason, WaitingForPreemption
from hived.cluster.groups import Group
from hived.cluster.pool import Pool, reserved_in
from hived.cluster.sharing import Sharing
from hived.cluster.state import State
from hived.cluster.states import GroupState
from hived.errors import RequestError

from .sentences import explained, in_lines, say


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The present status of a group."""

    name: str
    vc: str
    priority: int  #: of the request
    state: GroupState
    since: float  #: time of the request (while it waits) or of its placement, in seconds of the caller's clock
    reasons: tuple[Reason, ...]  #: while it waits: why
    guaranteed: bool = False  #: whether it is bound to cells of its VC; ``False`` for one that was downgraded
    placement: Placement | None = None  #: None while it waits
    victims: tuple[str, ...] = ()  #: while preempting: who still has to go
    preempted_by: tuple[str, ...] = ()  #: while being preempted: for whom
    guest: bool = False  #: whether it runs beside the owners of its leaf cells


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The answer to a what-if request."""

    #: it could start now (after its victims have ended, if the decision is a Preempt), would wait, or never fits
    outcome: Literal["now", "waits", "never"]
    decision: Decision
    reasons: tuple[Reason, ...]  #: why it would wait or never fits; () if it could start

    def __str__(self) -> str:
        return in_lines(explained(self.decision))


def status(state: State, name: str) -> GroupStatus:
    """The status of a group. Raises :class:`RequestError` if there is none of that name."""
    _check_name(name)
    group = state.groups.get(name)
    if group is None:
        waiting = state.waiting.get(name)
        if waiting is None:
            raise RequestError("group", f"{name!r}: no such group")
        request = waiting.request
        return GroupStatus(name, request.vc, request.priority, waiting.state, waiting.since, waiting.reasons)
    request, victims = group.request, tuple(victim.name for victim in group.victims)
    return GroupStatus(
        name,
        request.vc,
        request.priority,
        group.state,
        group.since,
        reasons=(WaitingForPreemption(victims),) if victims else (),
        guaranteed=group.guaranteed,
        placement=group.placement,
        victims=victims,
        preempted_by=tuple(other.name for other in group.preempted_by),
        guest=group.guest,
    )


def _check_name(group: object) -> None:
    if not isinstance(group, str):
        raise RequestError("group", f"a name, not {group!r}")


def explain(
    state: State, preempted: Mapping[str, tuple[Reason, ...]], group: str, pod: Callable[[int], str]
) -> list[str]:
    """Explain why a group waits, where it runs, its victims, or what preempted it if it has ended (``preempted``)."""
    _check_name(group)
    holds = state.groups.get(group)
    if holds is not None:
        answer = holds.answer()
        lines = explained(answer, runs=holds.running and isinstance(answer, Bind), pod=pod)
        if not holds.guaranteed and holds.request.priority >= 0:
            lines.append(
                "it asked to be guaranteed, and runs on as opportunistic: no cells of its VC stand under it now"
            )
        if holds.guest:
            lines.append("it is a guest there: it holds no cells, and makes room for groups whose VCs have no guests")
        return [*lines, *map(say, preemption_reasons(state, holds, ended=False))]
    waiting = state.waiting.get(group)
    before = preempted.get(group, ())
    if waiting is not None:
        return explained(Wait(group, (*waiting.reasons, *before)))
    if before:
        return [f"{group} has ended:", *map(say, before)]
    raise RequestError("group", f"{group!r}: no such group")


def preemption_reasons(state: State, victim: Group, ended: bool) -> tuple[Reason, ...]:
    """Why a running group is preempted, one reason per preemptor; ``ended``: it ends now."""
    return tuple(
        PreemptedBy(by.name, state.tenants[by.tenant], by.priority, victim.priority, ended)
        for by in victim.preempted_by
    )


def doomed(state: State) -> tuple[tuple[str, str, str, str], ...]:
    """The doomed cells: VC, chain, cell type, and first node of the physical cell. O(doomed + VCs)."""
    found = []
    owners: dict[object, int] = {pool.binding: pool.tenant for of_tenant in state.pools for pool in of_tenant}
    for chain in state.chain_bindings:
        nodes, hierarchy = chain.nodes, chain.nodes.hierarchy
        for binding, cell in chain.doomed:
            if cell not in binding.anchored:
                continue
            level = binding.virtual.cells[cell].level
            node = binding.bound[cell] * hierarchy.gpus[level] // hierarchy.node_size
            vc = state.tenants[owners[binding]]
            found.append((vc, hierarchy.spec.name, hierarchy.names[level], nodes.names[node]))
    return tuple(found)


def unavailable(state: State) -> dict[str, int]:
    """Per VC: leaf cells of its reservation that are unavailable because they are bad. O(VCs + hosts with bad ones)."""
    if state.sharing is Sharing.QUOTA:  # by how many the healthy leaf cells fall short of its quotas
        found = [_short(_alike(of_tenant, lambda pool: pool.account)) for of_tenant in state.pools]
    else:
        found = [_bad(of_tenant) for of_tenant in state.pools]
    return dict(zip(state.tenants, found, strict=True))


def unavailable_to_all(state: State) -> int:
    """Reserved leaf cells that are unavailable to all VCs together because of bad ones. O(VCs + bad nodes)."""
    pools = [pool for of_tenant in state.pools for pool in of_tenant]
    if state.sharing is Sharing.QUOTA:
        return _short(_alike(pools, lambda pool: pool.nodes.hierarchy.spec.leaf_type))
    return sum(max(_bad(of_chain), _short([of_chain])) for of_chain in _alike(pools, lambda pool: pool.nodes))


def _alike(pools: Iterable[Pool], kind: Callable[[Pool], object]) -> list[list[Pool]]:
    """Pools grouped by kind."""
    found: dict[object, list[Pool]] = {}
    for pool in pools:
        found.setdefault(kind(pool), []).append(pool)
    return list(found.values())


def _bad(pools: Iterable[Pool]) -> int:
    """Bad leaf cells under the hosts of some pools."""
    return sum(pool.binding.bad[host].bit_count() for pool in pools for host in pool.binding.bad_hosts)


def _short(kinds: Iterable[Sequence[Pool]]) -> int:
    """Shortage per kind of pools, summed: reserved leaf cells beyond the healthy ones of their chains."""
    short = 0
    for pools in kinds:
        chains = dict.fromkeys(pool.nodes for pool in pools)
        healthy = sum(nodes.gpus - sum(nodes.bad[node].bit_count() for node in nodes.bad_nodes) for nodes in chains)
        short += max(0, reserved_in(pools) - healthy)
    return short


def records(state: State) -> tuple[Record, ...]:
    """Records of all running groups, by name. O(groups)."""
    return tuple(
        Record(name, group.request, group.placement)
        for name, group in sorted(state.groups.items())
        if group.running and group.placement is not None
    )


def snapshot(state: State) -> tuple[object, ...]:
    """The whole state as plain values. O(cells in use + groups)."""
    held = []
    for name, group in sorted(state.groups.items()):
        victims = tuple(sorted(victim.name for victim in group.victims))
        held.append((name, group.request, group.state.value, group.guaranteed, group.guest, group.placement, victims))
    waiting = tuple((name, waiting.request) for name, waiting in sorted(state.waiting.items()))
    cells = []
    for chain in state.chain_bindings:
        nodes = chain.nodes
        bad = tuple((node, mask) for node, mask in enumerate(nodes.bad) if mask)
        cells.append((nodes.hierarchy.spec.name, tuple(sorted(chain.owners)), bad))
    return tuple(held), waiting, tuple(cells), state.safety()
