"""What people and programs see of a cluster: groups, explanations, doomed cells, the whole state as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hived.cluster.decisions import Bind, Decision, Placement, Record, Wait
from hived.cluster.nodes import Nodes
from hived.cluster.pool import Pool, reserved_in
from hived.cluster.reasons import PreemptedBy, Reason, WaitingForPreemption
from hived.cluster.sharing import Sharing
from hived.cluster.state import State
from hived.cluster.states import GroupState
from hived.errors import RequestError

from .sentences import explained, in_lines, say


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group as it is now."""

    name: str
    vc: str
    priority: int  #: of the request
    state: GroupState
    guaranteed: bool  #: whether it stands in cells of its VC; ``False`` for one that was downgraded
    placement: Placement | None  #: None while it waits
    victims: tuple[str, ...]  #: while preempting: who still has to go
    preempted_by: tuple[str, ...]  #: while being preempted: for whom
    reasons: tuple[Reason, ...]  #: while it waits: why
    since: float  #: when it asked (while it waits) or last got its placement, by the caller's clock: seconds
    jobs: tuple[str, ...]  #: on its allocation, in the order in which they came; the first is called like the group
    guest: bool = False  #: whether it runs beside the owners of its leaf cells


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What a request would come to now."""

    #: it could start now (after ending others, where the decision is a Preempt), it would wait, or it never fits
    outcome: Literal["now", "waits", "never"]
    decision: Decision
    reasons: tuple[Reason, ...]  #: why it would wait or never fits; () where it could start

    def __str__(self) -> str:
        return in_lines(explained(self.decision))


def status(state: State, name: str) -> GroupStatus:
    """A group as it is now. Raises :class:`RequestError` when there is none of that name."""
    _check_name(name)
    group = state.groups.get(name)
    jobs = state.jobs.get(name, (name,))
    if group is None:
        waiting = state.waiting.get(name)
        if waiting is None:
            raise RequestError("group", f"{name!r}: no such group")
        request = waiting.request
        return GroupStatus(
            name,
            request.vc,
            request.priority,
            waiting.state,
            False,
            None,
            (),
            (),
            waiting.reasons,
            waiting.since,
            jobs,
        )
    victims = tuple(victim.name for victim in group.victims)
    return GroupStatus(
        name,
        group.request.vc,
        group.request.priority,
        group.state,
        group.guaranteed,
        group.placement,
        victims,
        tuple(other.name for other in group.preempted_by),
        (WaitingForPreemption(victims),) if victims else (),
        group.since,
        jobs,
        group.guest,
    )


def _check_name(group: object) -> None:
    if not isinstance(group, str):
        raise RequestError("group", f"a name, not {group!r}")


def explain(
    state: State, preempted: Mapping[str, tuple[Reason, ...]], group: str, pod: Callable[[int], str]
) -> list[str]:
    """Why a group waits, where it runs, or whom it waits for; who preempted it, where it has ended (``preempted``)."""
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
            lines.append("- it is a guest there, and waits again when one of its GPUs has no owner any more")
        if group in state.jobs:
            lines.append(f"jobs on its allocation: {', '.join(state.jobs[group])}")
        for by in holds.preempted_by:
            vc = state.tenants[by.tenant]
            lines.append(say(PreemptedBy(by.name, vc, by.priority, holds.priority, False)))
        return lines
    waiting = state.waiting.get(group)
    before = preempted.get(group, ())
    if waiting is not None:
        return explained(Wait(group, (*waiting.reasons, *before)))
    if before:
        return [f"{group} has ended:", *map(say, before)]
    raise RequestError("group", f"{group!r}: no such group")


def doomed(state: State) -> tuple[tuple[str, str, str, str], ...]:
    """The doomed cells: VC, chain, cell type, and the first node of where they stand. O(doomed + VCs)."""
    found = []
    owners: dict[object, int] = {pool.binding: pool.tenant for of_tenant in state.pools for pool in of_tenant}
    for nodes in state.chains:
        hierarchy = nodes.hierarchy
        for binding, cell in nodes.doomed:
            if cell not in binding.anchored:
                continue
            level = binding.virtual.cells[cell].level
            node = binding.bound[cell] * hierarchy.gpus[level] // hierarchy.node_size
            vc = state.tenants[owners[binding]]
            found.append((vc, hierarchy.spec.name, hierarchy.name(level), nodes.names[node]))
    return tuple(found)


def unavailable(state: State) -> dict[str, int]:
    """Per VC: leaf cells of its own that it cannot have now, since they are bad. O(VCs + its hosts with bad ones)."""
    if state.sharing is Sharing.QUOTA:
        return {vc: _beyond_quota(of_tenant) for vc, of_tenant in zip(state.tenants, state.pools, strict=True)}
    return {
        vc: sum(t.binding.bad[host].bit_count() for t in of_tenant for host in t.binding.sick)
        for vc, of_tenant in zip(state.tenants, state.pools, strict=True)
    }


def _beyond_quota(pools: Iterable[Pool]) -> int:
    """Leaf cells of a tenant's quotas for which too few healthy ones are left."""
    accounts: dict[object, list[Pool]] = {}
    for pool in pools:
        accounts.setdefault(pool.account, []).append(pool)
    return sum(max(0, of_one[0].gpus - _healthy(p.nodes for p in of_one)) for of_one in accounts.values())


def _healthy(chains: Iterable[Nodes]) -> int:
    """Healthy leaf cells of some chains, each counted once."""
    return sum(nodes.gpus - sum(nodes.bad[n].bit_count() for n in nodes.sick) for nodes in dict.fromkeys(chains))


def unavailable_to_all(state: State) -> int:
    """Leaf cells that the VCs reserved and cannot all have at once now, since too many are bad. O(VCs + bad nodes)."""
    found = 0
    if state.sharing is Sharing.QUOTA:
        types: dict[str, list[Pool]] = {}
        for pool in (pool for of_tenant in state.pools for pool in of_tenant):
            types.setdefault(pool.nodes.hierarchy.spec.leaf_type, []).append(pool)
        return sum(max(0, reserved_in(pools) - _healthy(p.nodes for p in pools)) for pools in types.values())
    for nodes in state.chains:
        pools = [t for of_tenant in state.pools for t in of_tenant if t.nodes is nodes]
        alone = sum(t.binding.bad[host].bit_count() for t in pools for host in t.binding.sick)
        bad = sum(nodes.bad[node].bit_count() for node in nodes.sick)
        healthy = nodes.gpus - bad
        found += max(alone, sum(t.gpus for t in pools) - healthy)
    return found


def records(state: State) -> tuple[Record, ...]:
    """Every group that runs, by name. O(groups)."""
    groups = state.groups
    found = []
    for name in sorted(groups):
        group = groups[name]
        if group.running and group.placement is not None:
            found.append(Record(name, group.request, group.placement, state.jobs.get(name, ())))
    return tuple(found)


def snapshot(state: State) -> tuple[object, ...]:
    """The whole state as plain values. O(cells in use + groups)."""
    held = tuple(
        (
            name,
            group.request,
            group.state.value,
            group.guaranteed,
            group.guest,
            group.placement,
            tuple(sorted(victim.name for victim in group.victims)),
        )
        for name, group in sorted(state.groups.items())
    )
    waiting = tuple((name, waiting.request) for name, waiting in sorted(state.waiting.items()))
    cells = tuple(
        (nodes.hierarchy.spec.name, tuple(sorted(nodes.owners)), tuple(_set_masks(nodes.bad))) for nodes in state.chains
    )
    return held, waiting, cells, state.safety(), tuple(sorted(state.jobs.items()))


def _set_masks(masks: Sequence[int]) -> list[tuple[int, int]]:
    """The masks that are not 0, with their places."""
    return [(place, mask) for place, mask in enumerate(masks) if mask]
