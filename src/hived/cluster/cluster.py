"""The public interface of the core: a cluster that decides requests, and commits its decisions.

    answer = cluster.schedule(request)      Bind | Preempt | Wait, the state is unchanged
    cluster.commit(answer)                  the state changes

Between the two the caller may do slow work (start processes, delete pods). A decision that is out of date by then is
refused. All other methods report events: groups end, nodes turn bad, the spec changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

from hived.cells import LevelSafety, Rank, assert_safe
from hived.cluster.explain.diagnose import can_lend, never, reasons
from hived.cluster.explain.queries import GroupStatus, PlanAnswer
from hived.cluster.explain.sentences import in_lines
from hived.errors import InputError, RequestError, ensure
from hived.spec import SpecPath, load_spec, spec_from_dict
from hived.spec.compiled import ClusterSpec

from . import guaranteed, opportunistic, placing, recovery
from .checks import check_state
from .decisions import Bind, Decision, Placement, PodPlacement, Preempt, Record, VirtualLeaves, Wait
from .demands import Demand
from .explain import queries
from .explain.reasons import Misconfigured, NeverFits, Reason
from .groups import Group
from .guests import Leaves
from .node_index import NodeIndex, leaf_state, set_health
from .parts import Part
from .placement_request import ANYWHERE, Anywhere, Beside, OnHosts, OnIdle, Over, PlacementConstraint, PlacementRequest
from .pool import packed
from .preemption import select_victims
from .promotion import promoted, stays_in_place
from .recovery import Reconfiguration
from .requests import COMMITTED, EVERY_NODE, Provenance, Request
from .rescheduling import rescheduled
from .sharing import BindingKind, Sharing
from .state import State
from .states import GroupEvent, GroupState, LeafState
from .suggested import Suggested
from .trade import TradeEffect, planned, trade

#: how many groups that ended by preemption are remembered, for explain
MAX_PREEMPTED = 10_000

MAX_SECONDS = 2**53  #: up to which a float distinguishes consecutive seconds


class Cluster:
    """Virtual clusters on a physical cluster: the placement of groups on leaf cells (HiveD, OSDI'20).

    A request costs O(levels + pods) where it fits at once, independent of the size of the cluster. One caller at a
    time; the same calls always give the same answers.

    Every method with arguments raises :class:`~hived.errors.RequestError` (an :class:`~hived.errors.InputError`), which
    names the wrong field, and has changed nothing then.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        sharing: Sharing = Sharing.HIVED,
        rank: Rank = packed,
        binding: BindingKind = BindingKind.DYNAMIC,
        ranks: Mapping[str, Rank] | None = None,
    ) -> None:
        """``sharing``: the sharing scheme; ``rank``: the order in which guaranteed groups prefer hosts, ``ranks``: that
        of the VCs that have another. O(cells).

        ``binding``: when virtual cells are bound; only ``Sharing.HIVED`` binds any, so the others ignore it.
        Raises :class:`~hived.errors.InfeasibleError` when the VCs' cells are to be bound, and do not fit.
        """
        spec.check()
        self._state = State(spec, Sharing(sharing), rank, BindingKind(binding), ranks)
        self._index: NodeIndex | None = None
        self._preempted: dict[str, tuple[Reason, ...]] = {}
        # the answer of the open transaction, and the group that the transaction has admitted
        self._open: tuple[Bind | Preempt, Group] | None = None

    @classmethod
    def load(cls, path: SpecPath, *more: Any) -> Self:
        """The cluster of a YAML spec; ``more``: further arguments. Raises :class:`~hived.errors.SpecError`."""
        return cls(load_spec(path), *more)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any] | ClusterSpec, *more: Any) -> Self:
        """The cluster of a spec: a dictionary (the YAML's structure), or a compiled spec; ``more``: as above."""
        return cls(compiled_spec(spec), *more)

    @property
    def sharing(self) -> Sharing:
        """The sharing scheme of its tenants."""
        return self._state.sharing

    @property
    def binding(self) -> BindingKind:
        """When its virtual cells are bound."""
        return self._state.binding

    @property
    def spec(self) -> ClusterSpec:
        """The present spec: the first one, or that of the last reconfiguration."""
        return self._state.spec

    @property
    def version(self) -> int:
        """Number of committed changes; answers stay the same while it does."""
        return self._state.version

    @property
    def spares_work(self) -> bool:
        """Whether loans make room that lose the least work."""
        return self._state.spares_work

    def spare_work(self, spares: bool) -> None:
        """Have loans make room that lose the least work, rather than those with the fewest GPUs (:mod:`.sparing`)."""
        self._state.spare_work(spares)

    # -- asking and answering -----------------------------------------------------------------------------------------

    def schedule(
        self,
        request: Request,
        suggested_nodes: Collection[str] | None = None,
        now: float = 0.0,
        excluded_nodes: Collection[str] = (),
    ) -> Decision:
        """Decide a request: a placement, with its victims if any, or the reasons why the group has to wait.

        ``suggested_nodes``: the only nodes it may use; ``excluded_nodes``: nodes it may not use (unknown names are
        ignored); ``now``: seconds by the caller's clock, kept as the start of waiting or running. The state is
        unchanged, except that a waiting group is queued with its reasons. For a running group the answer is its
        placement. For a preempting one it is its reservation with the remaining victims, or another placement where it
        could start at once or its reservation is not suggested any more; without such a placement, its reservation
        ends, and it waits.
        """
        decision = self._decided(request, suggested_nodes, now, excluded_nodes)
        if isinstance(decision, Wait):
            state = self._state
            known = state.groups.get(request.group)
            if known is None:
                state.wait(request, decision.reasons, now)
                state.undo.commit()
            else:
                state.lose_reservation(known, decision.reasons)
                self._commit()
        return decision

    def _decided(
        self, request: Request, suggested_nodes: Collection[str] | None, now: float, excluded_nodes: Collection[str]
    ) -> Decision:
        """Decide a request; a placement leaves its transaction open."""
        _check_seconds(now)
        state = self._committed()
        state.now = now
        demand = state.demands.of(request)
        known = state.groups.get(request.group)
        if known is not None:
            known.refuse_another(request)
            if known.running:
                return known.answer()
        suggested, node_filter = None, EVERY_NODE
        if suggested_nodes is not None or excluded_nodes != ():
            suggested = self._suggested(suggested_nodes, excluded_nodes)
            node_filter = EVERY_NODE if suggested is None else suggested.node_filter
        placed: Group | tuple[Reason, ...] | None
        if known is None:
            placed = placing.admitted(state, request, demand, suggested, now)
            placed = placed or reasons(state, request, demand, suggested)
        else:
            placed = rescheduled(state, known, demand, suggested, now)
            if placed is None:
                return known.answer()
        if isinstance(placed, tuple):
            return Wait(request.group, placed)
        decision = placed.answer(Provenance("schedule", (request, node_filter[0], now, node_filter[1]), state.version))
        self._open = decision, placed
        return decision

    def place(self, asked: PlacementRequest, keep: bool = False) -> Bind | Preempt | None:
        """Decide a request as :meth:`schedule` does, for a new group; None, and nothing queued, where it has to wait.

        For a scheduler with queues of its own, which needs no reasons. ``keep``: commit the answer at once.
        """
        if not isinstance(asked, PlacementRequest):
            raise RequestError("asked", f"a PlacementRequest, not {asked!r}")
        request, constraint, now, near, excluded_nodes, demand = asked
        _check_seconds(now)
        state = self._committed()
        state.now = now
        demand = self._demand(request, demand)
        if request.group in state.groups:
            raise RequestError("group", f"{request.group!r} holds leaf cells already")
        parts = () if near is None else self._parts(near)
        suggested = None if not excluded_nodes else self._suggested(None, excluded_nodes)
        strategy = placing.anywhere if constraint is ANYWHERE else self._strategy(request, constraint, demand)
        group = placing.admitted(state, request, demand, suggested, now, parts, strategy)
        if group is None:
            return None
        if keep:
            self._commit(group)
            return group.answer(COMMITTED)
        excluded = () if suggested is None else suggested.node_filter[1]
        again = asked._replace(excluded_nodes=excluded, demand=None)  # a demand refers to the whole state
        decision = group.answer(Provenance("place", (again,), state.version))
        self._open = decision, group
        return decision

    def _strategy(self, request: Request, constraint: PlacementConstraint, demand: Demand) -> placing.PlacementStrategy:
        """How a request is placed under a constraint. Raises :class:`RequestError` if it is none for this request."""
        match constraint:
            case OnIdle() if request.opportunistic and not request.guest:
                return opportunistic.on_idle
            case OnHosts(hosts) if not request.opportunistic:
                return partial(guaranteed.on_hosts, hosts=hosts)
            case VirtualLeaves() if not request.opportunistic:
                return partial(guaranteed.on_leaves, at=constraint)
            case Beside(leaves) if request.guest:
                return partial(opportunistic.as_guest, beside=self._leaves(leaves))
            case Over(victims):
                preempting = opportunistic.preempting if request.opportunistic else guaranteed.preempting
                return partial(preempting, victims=self._candidates(request, demand, victims))
            case Anywhere():
                return placing.anywhere
        raise RequestError("constraint", f"{constraint!r} is none for {request.group!r}")

    def demand(self, request: Request) -> Demand:
        """Check a request, and compile it under this spec; requests that differ by name alone share it. O(members)."""
        return self._committed().demands.of(request)

    def promote(
        self,
        request: Request,
        at: VirtualLeaves | None = None,
        excluded_nodes: Collection[str] = (),
        demand: Demand | None = None,
    ) -> bool | None:
        """Make an opportunistic group guaranteed by ``request``, on its own leaf cells.

        ``True``: done. ``False``: its VC has room, but its cells cannot be bound there: it has to start elsewhere.
        None: its VC has no room. ``at``: the leaf cells of its VC
        that it takes, or none; ``excluded_nodes``, ``demand``: as in :class:`~.placement_request.PlacementRequest`.
        O(levels + pods).
        """
        group, again = self._promoted(request, at, excluded_nodes, demand)
        if again is None:
            return None
        stays = stays_in_place(again, group)
        if stays:
            self._commit(again)
        return stays

    def promotable(self, request: Request, demand: Demand | None = None) -> bool | None:
        """What :meth:`promote` would answer. A dry run, at the same cost."""
        group, again = self._promoted(request, None, (), demand)
        if again is None:
            return None
        stays = stays_in_place(again, group)
        if stays:
            self._state.undo.rollback()
        return stays

    def _promoted(
        self, request: Request, at: VirtualLeaves | None, excluded_nodes: Collection[str], demand: Demand | None
    ) -> tuple[Group, Group | None]:
        """A group that runs on a loan, and it at its turn: in an open transaction where it stays in place."""
        state, demand = self._committed(), self._demand(request, demand)
        group = state.groups.get(request.group)
        if request.opportunistic or group is None or group.guaranteed or not group.running:
            raise RequestError("group", f"{request.group!r} does not run as an opportunistic group")
        suggested = None if not excluded_nodes else self._suggested(None, excluded_nodes)
        return group, promoted(state, group, request, demand, suggested, at)

    def refused(self, request: Request, at: VirtualLeaves) -> tuple[tuple[int, int], ...]:
        """The leaf cells ``at`` which hardware keeps from being bound: hosts of the VC, with one bit each.

        Whether groups of the VC hold some of them makes no difference. A dry run. O(pods).
        """
        state = self._refreshed()
        demand = state.demands.of(request)
        if not state.ever_bad or all(choice.where != at.pool for choice in demand.choices):
            return ()
        return state.pools[demand.tenant][at.pool].refused(at.spots)

    def select_victims(
        self,
        request: Request,
        candidates: Sequence[str],
        excluded_nodes: Collection[str] = (),
        demand: Demand | None = None,
    ) -> tuple[str, ...] | None:
        """The victims, among running groups of its VC, that a request needs to start. Nothing changes.

        ``candidates``: groups of the VC, of the priority of the request or a lower one, in the order in which a policy
        preempts them: guaranteed groups for a guaranteed request, loans for an opportunistic one. The shortest prefix
        that suffices is taken, and every group is then spared whose leaf cells are not needed. (): the request can
        start without victims. None: all candidates do not suffice. A group that is being preempted already is no
        candidate. The group of the request has no leaf cells, or runs on a loan, which counts as given up.
        ``excluded_nodes``, ``demand``: as in :class:`~.placement_request.PlacementRequest`.
        O(candidates + (log victims + victims) * (victims + what placing the request costs)).
        """
        state, demand = self._committed(), self._demand(request, demand)
        known = state.groups.get(request.group)
        if known is not None and (known.guaranteed or not known.running):
            raise RequestError("group", f"{request.group!r} does not wait for leaf cells of its VC")
        groups = self._candidates(request, demand, candidates)
        victims = select_victims(state, request, demand, self._suggested(None, excluded_nodes), groups)
        return None if victims is None else tuple([group.name for group in victims])

    def _candidates(self, request: Request, demand: Demand, names: Sequence[str]) -> list[Group]:
        """The running groups of its VC that a request may preempt, but for those being preempted already."""
        groups = [self._holding(name, "nothing to preempt") for name in names]
        for group in groups:
            of_vc = group.tenant == demand.tenant and group.running
            if not of_vc or group.guaranteed is request.opportunistic or group.priority > request.priority:
                kind = "opportunistic" if request.opportunistic else "guaranteed"
                what = f"no running {kind} group of {request.vc!r} with a priority of at most {request.priority}"
                raise RequestError("victims", f"{group.name!r} is {what}")
        return [group for group in groups if group.state is GroupState.ALLOCATED]

    def can_lend(self, request: Request, demand: Demand | None = None) -> bool:
        """Whether an opportunistic request would start on idle leaf cells now. O(classes of nodes + pods).

        ``demand``: as in :class:`~.placement_request.PlacementRequest`.
        """
        return can_lend(self._committed(), self._demand(request, demand))

    def free_gpus(self, demand: Demand) -> int:
        """Healthy leaf cells that the VC of a demand has free (under a quota: what is left of it). O(its pools)."""
        return sum([pool.total() for pool in self._refreshed().pools[demand.tenant]])

    @property
    def idle_gpus(self) -> int:
        """Healthy leaf cells that are neither used nor reserved. O(chains + nodes that changed)."""
        return sum([nodes.idle_gpus for nodes in self._committed().chains])

    def never_fits(self, request: Request) -> bool:
        """Whether a request would have to wait even in an empty, healthy VC (or cluster). O(1) from the second call."""
        state = self._committed()
        return never(state, request, state.demands.of(request)) is not None

    def within_quota(self, request: Request) -> bool:
        """Whether a request fits its tenant's free quota, and so waits for other tenants; ``False`` without quotas."""
        if self.sharing is not Sharing.QUOTA or request.opportunistic:
            return False
        state = self._committed()
        demand = state.demands.of(request)
        pools = state.pools[demand.tenant]
        return any(sum([need.gpus for need in c.needs]) <= pools[c.where].total() for c in demand.choices)

    def opportunistic_gpus(self, vc: str) -> int:
        """Leaf cells that the opportunistic groups of a VC use or have reserved. O(chains)."""
        state = self._state
        return sum(state.opportunistic_gpus[state.tenant_numbers[vc]].values())

    def loans_changed(self) -> list[str]:
        """The VCs whose :meth:`opportunistic_gpus` may have changed since this was last asked. O(these)."""
        state = self._state
        if not state.loans_changed:
            return []
        changed = [state.tenants[tenant] for tenant in state.loans_changed]
        state.loans_changed.clear()
        return changed

    def _demand(self, request: Request, demand: Demand | None) -> Demand:
        """The compiled request: ``demand``, if it is of this spec."""
        demands = self._state.demands
        return demand if isinstance(demand, Demand) and demand.by is demands and request.group else demands.of(request)

    def _parts(self, placement: Placement) -> tuple[Part, ...]:
        index = self._node_index()
        return tuple([part for pod in placement.pods for part in index.parts(*pod, placement.chain)[0]])

    def _leaves(self, beside: Sequence[PodPlacement]) -> Leaves:
        """Leaf cells by name, as parts; each name is looked up once."""
        index = self._node_index()
        return lambda start, end: [part for pod in beside[start:end] for part in index.parts_of(pod)]

    def _suggested(self, names: Collection[str] | None, excluded: Collection[str]) -> Suggested | None:
        """The nodes that a request may use, None for all. O(names)."""
        if names is None and (excluded == () or excluded == frozenset()):
            return None
        suggested = None if names is None else _names_of_nodes("suggested_nodes", names)
        others = _names_of_nodes("excluded_nodes", excluded)
        found = Suggested((suggested, others), self._node_index())
        return found if found.restricts else None

    def _node_index(self) -> NodeIndex:
        if self._index is None:
            self._index = NodeIndex(self._state.chains)
        return self._index

    def plan(
        self, request: Request, suggested_nodes: Collection[str] | None = None, excluded_nodes: Collection[str] = ()
    ) -> PlanAnswer:
        """What :meth:`schedule` would answer, by the same code, as a dry run: the request is not queued.

        A wrong request "never" fits, with :class:`~hived.cluster.explain.reasons.Misconfigured` as the reason.
        """
        try:
            decision = self._decided(request, suggested_nodes, 0.0, excluded_nodes)
        except RequestError as error:
            why = (Misconfigured(error.field, error.message),)
            return PlanAnswer("never", Wait(str(getattr(request, "group", "")), why), why)
        self._committed()
        if isinstance(decision, Wait):
            hopeless = isinstance(decision.reasons[0], NeverFits)
            return PlanAnswer("never" if hopeless else "waits", decision, decision.reasons)
        return PlanAnswer("now", decision, ())

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """A context in which requests are committed, groups end, hardware breaks and heals, and nothing is for good.

        At its end everything is as it was, but for :attr:`version`; what was not committed before it is out of date.
        The spec cannot change in it, and no groups are recovered. O(groups waiting + doomed cells + steps in it).
        """
        state, preempted = self._committed(), dict(self._preempted)
        try:
            with state.what_if():
                yield
        finally:
            self._open, self._preempted = None, preempted

    # -- committing ---------------------------------------------------------------------------------------------------

    def commit(self, decision: Decision) -> None:
        """Commit a decision: the group of a Bind runs, the placement of a Preempt is reserved.

        A Wait changes nothing, nor does a decision that is committed already. The last answer is committed as it is; an
        earlier one is decided again, and has to come out the same. It is refused when the cluster has changed since:
        schedule again.
        """
        opened = self._open
        if opened is not None and (opened[0] is decision or opened[0] == decision):
            self._open = None
            self._commit(opened[1])
            return
        if isinstance(decision, Wait):
            return
        if not isinstance(decision, (Bind, Preempt)):
            raise RequestError("decision", f"expected what schedule() answered, not {decision!r}")
        state = self._committed()
        known = state.groups.get(decision.group)
        if known is not None and (known.running or decision.placement == known.placement):
            self._commit_again(known, decision)
            return
        group = self._decided_again(decision)
        self._open = None
        self._commit(group)

    def _commit_again(self, group: Group, decision: Bind | Preempt) -> None:
        """Commit a decision about a placed group: it starts, if its victims have ended, or nothing is left to do."""
        promotes = decision.placement.guaranteed and group.request.opportunistic
        if group.placement is None or decision.placement.pods != group.placement.pods or promotes:
            raise RequestError("decision", f"{group.name!r} has another placement by now; schedule it again")
        others = [v.name for v in group.victims if isinstance(decision, Preempt) and v.name not in decision.victims]
        if others:
            raise RequestError(
                "decision", f"{group.name!r} waits for others by now ({', '.join(others)}); schedule it again"
            )
        if isinstance(decision, Bind) and group.state is GroupState.PREEMPTING:
            if group.victims:
                left = ", ".join(sorted(victim.name for victim in group.victims))
                raise RequestError("decision", f"{group.name!r} still waits for {left} to be released")
            self._state.bind(group)
            self._commit()

    def _decided_again(self, decision: Bind | Preempt) -> Group:
        """Place the group of an answer before the last one by that answer. Raises :class:`RequestError`."""
        state, provenance = self._state, decision.provenance
        if provenance is not None and provenance.version == state.version:
            again = getattr(Cluster, provenance.method)(self, *provenance.arguments)
            if self._open is not None and again == decision:
                return self._open[1]
            self._committed()
        raise RequestError(
            "decision", f"out of date: {decision.group!r} has not got it since the cluster changed; schedule it again"
        )

    def release(self, group: str) -> None:
        """Release the leaf cells of a group that has ended or was preempted; reserved ones stay with the preemptor."""
        self._end(self._holding(group, "nothing to release"))

    def _end(self, group: Group) -> None:
        state = self._state
        if self._preempted and group.running:
            self._preempted.pop(group.name, None)
        if group.preempted_by:
            self._preempted[group.name] = queries.preemption_reasons(self._state, group, ended=True)
            if len(self._preempted) > MAX_PREEMPTED:
                del self._preempted[next(iter(self._preempted))]
        state.end(group)
        self._commit()

    def hold(self, group: str, loan: bool) -> bool:
        """Have a guest hold its idle leaf cells as a ``loan``, or a loan give them up and stay as a guest.

        The cells of a loan are taken last by other groups; where one is a victim, it stays as their guest by this. Only
        for requests with the guest option. ``False``, and nothing changed: it is so already, or other groups have some
        of the leaf cells, or guests there that its VC does not accept. O(pods + groups there).
        """
        held = self._holding(group, "nothing to hold")
        if not held.running or held.guaranteed or not held.request.guest or held.guest is not loan:
            return False
        if self._state.guests_on[held.chain] is None or not self._state.hold(held, loan):
            return False
        self._commit()
        return True

    def cancel(self, group: str) -> None:
        """Withdraw a waiting or preempting group; its reserved leaf cells stay with the groups that run there."""
        state = self._committed()
        if isinstance(group, str) and group in state.waiting:
            state.waiting.pop(group).transition(GroupEvent.END)
            return
        ended = self._holding(group, "nothing to cancel")
        if ended.running:
            raise RequestError("group", f"{group!r} runs; release() ends it")
        self._end(ended)

    def _holding(self, name: str, what: str) -> Group:
        """The running or preempting group of that name. Raises :class:`RequestError`."""
        state = self._committed()
        group = state.groups.get(name) if isinstance(name, str) else None
        if group is None:
            waits = isinstance(name, str) and name in state.waiting
            hint = "it waits, and holds nothing; cancel() withdraws it" if waits else f"no such group; {what}"
            raise RequestError("group", f"{name!r}: {hint}")
        return group

    def _commit(self, group: Group | None = None) -> None:
        """Commit the open transaction; ``group``: the one that it has admitted."""
        state = self._state
        state.version += 1
        state.undo.commit()
        if group is not None and state.waiting:
            state.waiting.pop(group.name, None)

    def evicted(self) -> tuple[str, ...]:
        """Names of the guests evicted since the last call: groups that do not accept them got their leaf cells."""
        state = self._committed()
        evicted = tuple(state.evicted)
        state.evicted.clear()
        return evicted

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_node_health(self, node: str, healthy: bool) -> None:
        """Mark all devices of ``node`` bad or healthy. Groups there run on. O(its cells)."""
        self._set_health(node, None, healthy)

    def set_device_health(self, node: str, device: int, healthy: bool) -> None:
        """Mark one device of ``node`` bad or healthy. Groups there run on."""
        self._set_health(node, device, healthy)

    def _set_health(self, node: str, device: int | None, healthy: bool) -> None:
        state = self._committed()
        set_health(state, self._node_index(), node, device, healthy)
        self._commit()

    # -- restart and reconfiguration ----------------------------------------------------------------------------------

    def records(self) -> tuple[Record, ...]:
        """Every running group, sorted by name: the input of :meth:`recover`. O(groups)."""
        return queries.records(self._committed())

    def recover(self, records: Iterable[Record | tuple[str, Request, Placement]]) -> Reconfiguration:
        """Take over running groups from the output of :meth:`records`; their order does not affect the state.

        Under the spec that they started with, the state is the same. Under another, a group whose leaf cells cannot be
        bound to its VC's cells becomes opportunistic, and is reported. Preempting groups have no records: the caller
        schedules them again. All or nothing. O(sum of pods * levels).
        """
        given = as_records(records)
        state = self._for_good("recover")
        state.forget_doomed()  # else which groups are guaranteed would depend on the queries before
        report = recovery.recover(state, self._node_index(), given)
        self._commit()
        return report

    def reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> Reconfiguration:
        """Replace the spec; every group runs on where it is (work-preserving, HiveD section 4).

        A group that fits its VC's new cells stays guaranteed; others become opportunistic, preempted only when needed.
        Reservations end, and their groups are requeued. Health is kept by name. Raises the errors of :meth:`from_spec`,
        and nothing has changed then. O(cells + groups).
        """
        state = self._for_good("reconfigure")
        self._state, report = recovery.reconfigured(state, compiled_spec(spec))
        self._index = None
        self._commit()
        return report

    def trade(self, spec: Mapping[str, Any] | ClusterSpec) -> TradeEffect | None:
        """Replace the spec by one in which VCs have traded cells. None: nothing changed, it takes :meth:`reconfigure`.

        All VCs together have as many unpinned cells of each level as before, and all else is the same; the sharing
        scheme is ``hived``, with late bindings. Groups lose their guarantees as in a reconfiguration; only those of VCs
        that trade get another chance, and reservations stay. It takes a reconfiguration where a VC gives cells that it
        uses while some of its groups wait for victims, or with cells of several levels. Raises the errors of
        :meth:`from_spec`. O(VCs), and for those that trade O(cells + groups).
        """
        effect = trade(self._for_good("trade"), compiled_spec(spec))
        if effect is not None:
            self._commit()
        return effect

    def would_downgrade(self, spec: Mapping[str, Any] | ClusterSpec) -> tuple[str, ...]:
        """The groups that this spec would make opportunistic. Nothing changes.

        It costs what looking at the VCs that trade does where :meth:`trade` suffices, else O(cells + groups).
        """
        changes = planned(self._committed(), compiled_spec(spec))
        if changes is not None:
            return tuple(sorted([group.name for change in changes for group in change.losers]))
        return tuple([name for name, _ in self.would_reconfigure(spec).downgraded])

    def would_reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> Reconfiguration:
        """What :meth:`reconfigure` would answer, and the errors that it would raise. Nothing changes. O(as that)."""
        return recovery.reconfigured(self._committed(), compiled_spec(spec))[1]

    # -- queries ------------------------------------------------------------------------------------------------------

    def groups(self) -> tuple[str, ...]:
        """Names of all groups: running and preempting ones in order of arrival, then waiting ones in line."""
        state = self._committed()
        return (*[group.name for group in state.by_age()], *state.waiting)

    def nodes(self) -> Iterator[tuple[str, str, int]]:
        """Every node: the name of its chain, its own, and its leaf cells. O(nodes)."""
        for nodes in self._state.chains:
            for name, shape in zip(nodes.names, nodes.shapes, strict=True):
                yield nodes.hierarchy.spec.name, name, shape.leaves

    def leaves(self) -> Iterator[PodPlacement]:
        """Every leaf cell, in the order of the nodes. O(leaf cells)."""
        for nodes in self._state.chains:
            for node, (name, shape) in enumerate(zip(nodes.names, nodes.shapes, strict=True)):
                for device in nodes.devices(node, shape.full):
                    yield PodPlacement(name, (device,))

    def hosts(self, vc: str) -> Iterator[tuple[tuple[int, int], int, int]]:
        """The hosts of a VC, each the numbers of its chain and its own, with its healthy and its free leaf cells.

        Those of pinned cells are left out. Under a quota they are the nodes of the cluster, the same for all VCs, and
        the quota may allow fewer leaf cells. O(hosts).
        """
        state = self._committed()
        for pool in state.pools[state.tenant_numbers[vc]]:
            if pool.pinned is None:
                space, bad, chain = pool.space(), pool.binding.bad, pool.nodes.number
                for host, shape in enumerate(pool.virtual.shapes):
                    yield (chain, host), (shape.full & ~bad[host]).bit_count(), space.free[host].bit_count()

    def cells_in_use(self, vc: str) -> dict[tuple[str, int], int]:
        """How many of its reserved cells a VC uses, by chain and level; without pinned ones. O(hosts in use * levels).

        Those with a guaranteed group, or reserved by one that waits for its victims (equation 1's *a* for one VC).
        """
        state = self._committed()
        used: dict[tuple[str, int], int] = {}
        for pool in state.pools[state.tenant_numbers[vc]]:
            if pool.pinned is None and self.sharing is not Sharing.QUOTA:
                virtual, chain = pool.virtual, pool.nodes.chain.spec.name
                for cell in {virtual.reserved_cell(host) for host in pool.held}:
                    level = virtual.cells[cell].level
                    used[chain, level] = used.get((chain, level), 0) + 1
        return used

    def hosts_of(self, group: str) -> tuple[tuple[tuple[int, int], int], ...]:
        """The hosts of a guaranteed group as in :meth:`hosts`, each once, with its leaf cells there. O(pods)."""
        held = self._state.groups[group]
        pool = self._state.pool_of(held)
        if pool is None:
            return ()
        chain = pool.nodes.number
        found: dict[int, int] = {}
        for host, mask in held.spots:
            found[host] = found.get(host, 0) + mask.bit_count()
        return tuple([((chain, host), gpus) for host, gpus in found.items()])

    def virtual_leaves(self, group: str) -> VirtualLeaves:
        """The leaf cells of its VC that a guaranteed group has; for :meth:`place` in another cluster. O(1)."""
        held = self._holding(group, "it has no leaf cells of its VC")
        if not held.guaranteed:
            raise RequestError("group", f"{group!r} is opportunistic, and has no leaf cells of its VC")
        return VirtualLeaves(held.pool, held.spots, held.level, held.relaxed)

    def group(self, name: str) -> GroupStatus:
        """The status of a group. Raises :class:`RequestError` when there is none of that name."""
        return queries.status(self._committed(), name)

    def explain(self, group: str) -> str:
        """Explain a group for people: its reasons to wait, its placement, victims or preemptor. Lines of text."""
        return in_lines(self.explained(group))

    def explained(self, group: str, pod: Callable[[int], str] = "pod {}: ".format) -> list[str]:
        """The same as a list of lines. ``pod``: the prefix of the line of each pod, counted from 1."""
        return queries.explain(self._committed(), self._preempted, group, pod)

    def leaf_state(self, node: str, device: int) -> LeafState:
        """The state of one device: free, used, reserving or reserved."""
        return leaf_state(self._committed(), self._node_index(), node, device)

    def doomed(self) -> tuple[tuple[str, str, str, str], ...]:
        """The *doomed bad* reserved cells: VC, chain, cell type, and the first node of the physical cell."""
        return queries.doomed(self._refreshed())

    def unavailable(self) -> dict[str, int]:
        """Per VC: how many of its reserved leaf cells it could not get now if it asked first. O(VCs + bad).

        Sharing safety does not cover this: no other VC can take reserved cells, but they can turn bad.
        """
        return queries.unavailable(self._refreshed())

    def unavailable_to_all(self) -> int:
        """How many reserved leaf cells all VCs together could not get now, because of bad hardware. O(VCs + bad)."""
        return queries.unavailable_to_all(self._refreshed())

    def check_safety(self) -> tuple[LevelSafety, ...]:
        """The terms of sharing safety: per chain and level reserved, allocated, free, obtainable, and the margin.

        Raises :class:`~hived.errors.InvariantError` if a margin is negative (HiveD, equations 1 and 2). O(levels).
        """
        rows = self._committed().safety()
        assert_safe(rows)
        return rows

    def validate(self) -> None:
        """Re-derive the whole state; :class:`~hived.errors.InvariantError` on a difference. O(cluster): for tests."""
        check_state(self._refreshed())

    def snapshot(self) -> tuple[object, ...]:
        """The whole state as plain values, equal exactly for equal states. O(cells in use + groups)."""
        return queries.snapshot(self._refreshed())

    def state_now(self) -> State:
        """The present state, read-only: for readers of all of it (:mod:`hived.inspection`)."""
        return self._refreshed()

    def _committed(self) -> State:
        """The state, with a transaction rolled back that was not committed, or left open by a call that raised."""
        state = self._state
        if state.undo.is_open:
            self._open = None
            state.undo.rollback()
        return state

    def _for_good(self, call: str) -> State:
        """The same, for a call that no log takes back. Raises :class:`~hived.errors.InvariantError` in a what-if."""
        state = self._committed()
        ensure(not state.undo.is_what_if, f"{call}() is for good, and nothing is in what_if()")
        return state

    def _refreshed(self) -> State:
        """The same, with doomed cells brought up to date."""
        state = self._committed()
        state.refresh_doomed()
        return state


def compiled_spec(spec: Mapping[str, Any] | ClusterSpec) -> ClusterSpec:
    """Compile a spec given as a dictionary; a compiled spec is returned as it is. Raises :class:`InputError`."""
    if isinstance(spec, ClusterSpec):
        spec.check()
        return spec
    if not isinstance(spec, Mapping):
        raise InputError(f"a spec is a dictionary or a ClusterSpec, not {type(spec).__name__}; load() reads a file")
    return spec_from_dict(dict(spec))


def fitting(spec: ClusterSpec, vc: str) -> Callable[[Request], bool]:
    """What tells whether a request is valid and would start in a VC of a spec, empty and healthy. O(its cells)."""
    alone = tuple([of for of in spec.virtual_clusters if of.name == vc and (of.cells or of.pinned)])
    cluster = Cluster(replace(spec, virtual_clusters=alone, withheld=()), Sharing.PRIVATE) if alone else None

    def fits(request: Request) -> bool:
        try:
            return cluster is not None and not cluster.never_fits(request)
        except RequestError:
            return False

    return fits


def as_records(records: Iterable[Record | tuple[str, Request, Placement]]) -> tuple[Record, ...]:
    """Convert records to the form that :meth:`Cluster.recover` reads. Raises :class:`RequestError`."""
    try:
        return tuple(Record(*record) for record in records)
    except TypeError:
        raise RequestError("records", "expected (group, request, placement) for each group") from None


def _check_seconds(now: float) -> None:
    if type(now) not in (int, float) or not -MAX_SECONDS <= now <= MAX_SECONDS:
        raise RequestError("now", f"seconds, not {now!r}")


def _names_of_nodes(field: str, names: Collection[str]) -> frozenset[str]:
    """The set of ``names``. Raises :class:`RequestError` for anything but names."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise RequestError(field, f"names of nodes, not {names!r}")
    listed = names if isinstance(names, frozenset) else tuple(names)
    if not all(issubclass(kind, str) for kind in set(map(type, listed))):
        raise RequestError(field, f"names of nodes, not {listed!r}")
    return frozenset(listed)
