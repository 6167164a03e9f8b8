"""The public face of the core: a cluster that answers requests, and carries its answers out.

    answer = cluster.schedule(request)      Bind | Preempt | Wait, nothing has changed
    cluster.commit(answer)                  now it has

Between the two the caller may do what takes time (start processes, delete pods). A decision that is no longer right by
then is refused. Everything else is an event that happened: groups end, nodes turn bad, the spec changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

from hived.cells import LevelSafety, Rank, assert_safe
from hived.cluster.explain.diagnose import can_lend, never, reasons
from hived.cluster.explain.queries import GroupStatus, PlanAnswer
from hived.cluster.explain.sentences import in_lines
from hived.errors import InputError, RequestError
from hived.spec import SpecPath, load_spec, spec_from_dict
from hived.spec.compiled import ClusterSpec

from . import recovery
from .decisions import Bind, Decision, Placement, Preempt, Record, Wait
from .demands import Demand
from .explain import queries as looking
from .groups import Group
from .names import Names, leaf_state, set_health
from .parts import Part
from .placing import admitted, moved, replanned
from .pool import packed
from .reasons import Misconfigured, NeverFits, Reason, Suspended
from .recovery import Reconfiguration
from .requests import EVERY_NODE, KEPT, Asked, Request
from .sharing import Sharing
from .state import State
from .states import GroupEvent, GroupState, LeafState
from .suggested import Suggested

#: how many groups that were preempted and have ended are remembered, for explain
REMEMBERED = 10_000

MOST_SECONDS = 2**53  #: up to which a float tells one second from the next


class Cluster:
    """Virtual clusters on a physical one: who may run where, now (HiveD, OSDI'20).

    A request costs O(levels + pods) where it fits at once; nothing depends on the size of the cluster. One caller at
    a time; the same calls give the same answers, always.

    Every method that takes something of the caller's raises :class:`~hived.errors.RequestError` (an
    :class:`~hived.errors.InputError`) naming the field that is wrong, and has changed nothing then.
    """

    def __init__(self, spec: ClusterSpec, sharing: Sharing = Sharing.HIVED, rank: Rank = packed) -> None:
        """``sharing``: how tenants share; ``rank``: which host a guaranteed group goes to. O(cells).

        Raises :class:`~hived.errors.InfeasibleError` when the VCs' cells are to be bound, and do not fit.
        """
        self._state = State(spec, sharing, rank)
        self._names: Names | None = None
        self._preempted: dict[str, tuple[Reason, ...]] = {}
        # the answer that a commit would keep, and its group as the open transaction has admitted it
        self._open: tuple[Bind | Preempt, Group] | None = None

    @classmethod
    def load(cls, path: SpecPath, *more: Any) -> Self:
        """The cluster of a YAML spec, and what else the class takes. Raises :class:`~hived.errors.SpecError`."""
        return cls(load_spec(path), *more)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any] | ClusterSpec, *more: Any) -> Self:
        """The cluster of a spec as a dictionary (the YAML's structure), or compiled already; ``more``: as above."""
        return cls(compiled_spec(spec), *more)

    @property
    def sharing(self) -> Sharing:
        """How its tenants share."""
        return self._state.sharing

    @property
    def spec(self) -> ClusterSpec:
        """What it was made from, or last reconfigured to."""
        return self._state.spec

    @property
    def version(self) -> int:
        """Number of the changes that were kept so far: the same answers until it is another."""
        return self._state.version

    # -- asking and answering -----------------------------------------------------------------------------------------

    def schedule(
        self,
        request: Request,
        suggested_nodes: Collection[str] | None = None,
        now: float = 0.0,
        excluded_nodes: Collection[str] = (),
    ) -> Decision:
        """Where the group of ``request`` can run now; whom that costs; or why it has to wait.

        ``suggested_nodes``: it may only go there; ``excluded_nodes``: and not there (names the cluster does not know
        are ignored); ``now``: seconds by the caller's clock, kept as the time since when it waits or runs. Nothing
        changes, except that a group that has to wait is remembered with its reasons. Asked again for a group that runs,
        the answer is its placement; for one that is preempting, what it has reserved and who still has to go, or
        another placement, where it could start at once or its reservation is not suggested any more. Without one, its
        reservation ends, and it waits.
        """
        decision = self._decided(request, suggested_nodes, now, excluded_nodes)
        if isinstance(decision, Wait):
            state = self._state
            known = state.groups.get(request.group)
            if known is None:
                state.wait(request, decision.reasons, now)
                state.undo.keep()
            else:
                state.lose_reservation(known, decision.reasons)
                self._keep()
        return decision

    def _decided(
        self, request: Request, suggested_nodes: Collection[str] | None, now: float, excluded_nodes: Collection[str]
    ) -> Decision:
        """The answer to a request; where it is a placement, that is open."""
        _check_seconds(now)
        state = self._settled()
        demand = state.demands.of(request)
        known = state.groups.get(request.group)
        if known is not None:
            known.refuse_another(request)
            if known.running:
                return known.answer()
        suggested, given = None, EVERY_NODE
        if suggested_nodes is not None or excluded_nodes != ():
            suggested = self._suggested(suggested_nodes, excluded_nodes)
            given = EVERY_NODE if suggested is None else suggested.given
        placed: Group | tuple[Reason, ...] | None
        if known is None:
            placed = admitted(state, request, demand, suggested, now) or reasons(state, request, demand, suggested)
        else:
            placed = replanned(state, known, demand, suggested, now)
            if placed is None:
                return known.answer()
        if isinstance(placed, tuple):
            return Wait(request.group, placed)
        decision = placed.answer(Asked("schedule", (request, given[0], now, given[1]), state.version))
        self._open = decision, placed
        return decision

    def place(
        self,
        request: Request,
        now: float = 0.0,
        near: Placement | None = None,
        idle: bool = False,
        excluded_nodes: Collection[str] = (),
        keep: bool = False,
        demand: Demand | None = None,
    ) -> Bind | Preempt | None:
        """What :meth:`schedule` answers for a group that holds nothing; None, and nothing remembered, where it waits.

        For a scheduler that keeps its own queues and asks for no reasons. ``near``: where the group ran until now, and
        would stay; ``idle``: an opportunistic group starts on idle leaf cells or not at all; ``excluded_nodes``: as
        :meth:`schedule`; ``keep``: what is answered is committed at once; ``demand``: what :meth:`demand` answers for
        this request, or for one that differs by name alone, which then is not checked again: one of another request
        gets another's leaf cells.
        """
        _check_seconds(now)
        state = self._settled()
        demand = self._demand(request, demand)
        if request.group in state.groups:
            raise RequestError("group", f"{request.group!r} holds leaf cells already")
        at = () if near is None else self._parts(near)
        suggested = None if not excluded_nodes else self._suggested(None, excluded_nodes)
        group = admitted(state, request, demand, suggested, now, at, idle)
        if group is None:
            return None
        if keep:
            self._keep(group)
            return group.answer(KEPT)
        excluded = () if suggested is None else suggested.given[1]
        decision = group.answer(Asked("place", (request, now, near, idle, excluded), state.version))
        self._open = decision, group
        return decision

    def move(self, request: Request, now: float = 0.0, excluded_nodes: Collection[str] = ()) -> Bind | Preempt | None:
        """Where a group that runs could be instead, as if its own leaf cells were free; None: nowhere.

        A guaranteed one goes where its VC has room, an opportunistic one to idle leaf cells (or, as a guest, beside
        others); nobody of its VC ends for it. It stays where it is as far as that allows. With a guaranteed request an
        opportunistic group is *promoted*, on its very leaf cells if its VC's can be bound there. ``excluded_nodes``:
        not there. A commit gives the old leaf cells up: the group runs on the new ones at once or, where loans of
        others are its victims, waits for these as any group that preempts. It costs what placing it costs.
        """
        _check_seconds(now)
        state = self._settled()
        demand = state.demands.of(request)
        group = state.groups.get(request.group)
        if group is None or not group.running:
            raise RequestError("group", f"{request.group!r} does not run")
        if request.opportunistic or group.guaranteed:
            group.refuse_another(request)
        suggested = self._suggested(None, excluded_nodes)
        again = moved(state, group, request, demand, suggested, now)
        if again is None:
            return None
        if (again.placement, again.spots) == (group.placement, group.spots):
            state.undo.rollback()
            return group.answer()
        excluded = () if suggested is None else suggested.given[1]
        decision = again.answer(Asked("move", (request, now, excluded), state.version))
        self._open = decision, again
        return decision

    def demand(self, request: Request) -> Demand:
        """What a request comes to under this spec, checked: one for all that differ by name alone. O(members)."""
        return self._settled().demands.of(request)

    def promote(self, request: Request, demand: Demand | None = None) -> bool | None:
        """Make an opportunistic group guaranteed, as ``request`` asks, on the very leaf cells that it has.

        ``True``: it is. ``False``: its VC has room, but its cells cannot be bound there: it would have to :meth:`move`.
        None: its VC has no room. ``demand``: as :meth:`place`. O(levels + pods).
        """
        state, demand = self._settled(), self._demand(request, demand)
        group = state.groups.get(request.group)
        if request.opportunistic or group is None or group.guaranteed or not group.running:
            raise RequestError("group", f"{request.group!r} does not run as an opportunistic group")
        again = moved(state, group, request, demand, None, group.since, in_place=True)
        if again is None:
            return None
        stays = again.parts == group.parts
        if stays:
            self._keep(again)
        return stays

    def can_lend(self, request: Request, demand: Demand | None = None) -> bool:
        """Whether an opportunistic request would start on idle leaf cells now. O(classes of nodes + pods).

        ``demand``: as :meth:`place`.
        """
        return can_lend(self._settled(), self._demand(request, demand))

    @property
    def idle_gpus(self) -> int:
        """Healthy leaf cells that nobody has or has reserved. O(chains + nodes that changed)."""
        return sum([nodes.idle_gpus for nodes in self._settled().chains])

    def never_fits(self, request: Request) -> bool:
        """Whether it would have to wait in an empty, healthy VC (or cluster) too. O(1) once asked."""
        state = self._settled()
        return never(state, request, state.demands.of(request)) is not None

    def within_quota(self, request: Request) -> bool:
        """Whether leaf cells of other tenants may be all that a guaranteed request waits for: under a quota alone."""
        if self.sharing is not Sharing.QUOTA:
            return False
        state = self._settled()
        demand = state.demands.of(request)
        pools = state.pools[demand.tenant]
        return any(sum([need.gpus for need in c.needs]) <= pools[c.where].total() for c in demand.choices)

    def opportunistic_gpus(self, vc: str) -> int:
        """Leaf cells that the opportunistic groups of a VC have, or have reserved. O(chains)."""
        state = self._state
        return sum(state.opportunistic_gpus[state.tenants.index(vc)].values())

    def _demand(self, request: Request, demand: Demand | None) -> Demand:
        """What a request comes to: ``demand``, if it is of this spec."""
        demands = self._state.demands
        return demand if isinstance(demand, Demand) and demand.by is demands and request.group else demands.of(request)

    def _parts(self, placement: Placement) -> tuple[Part, ...]:
        names = self._by_name()
        return tuple([part for pod in placement.pods for part in names.parts(*pod, placement.chain)[0]])

    def _suggested(self, names: Collection[str] | None, excluded: Collection[str]) -> Suggested | None:
        """The nodes that may be used, None for all. O(names)."""
        if names is None and (excluded == () or excluded == frozenset()):
            return None
        suggested = None if names is None else _names_of_nodes("suggested_nodes", names)
        others = _names_of_nodes("excluded_nodes", excluded)
        found = Suggested((suggested, others), self._by_name())
        return found if found.restricts else None

    def _by_name(self) -> Names:
        if self._names is None:
            self._names = Names(self._state.chains)
        return self._names

    def plan(
        self, request: Request, suggested_nodes: Collection[str] | None = None, excluded_nodes: Collection[str] = ()
    ) -> PlanAnswer:
        """What :meth:`schedule` would answer, by the same code, with nothing remembered: a question, not a request.

        A request that is wrong "never" fits, with :class:`~hived.cluster.reasons.Misconfigured` as the reason.
        """
        try:
            decision = self._decided(request, suggested_nodes, 0.0, excluded_nodes)
        except RequestError as error:
            why = (Misconfigured(error.field, error.message),)
            return PlanAnswer("never", Wait(str(getattr(request, "group", "")), why), why)
        self._settled()
        if isinstance(decision, Wait):
            hopeless = isinstance(decision.reasons[0], NeverFits)
            return PlanAnswer("never" if hopeless else "waits", decision, decision.reasons)
        return PlanAnswer("now", decision, ())

    # -- carrying out -------------------------------------------------------------------------------------------------

    def commit(self, decision: Decision) -> None:
        """Make a decision real: the group of a Bind runs, that of a Preempt has its placement reserved.

        A Wait changes nothing, nor does a decision that has been carried out already. The last answer is kept as it
        is; one before it is decided again, and has to come to the same. Refused when the cluster has changed since:
        schedule again.
        """
        opened = self._open
        if opened is not None and (opened[0] is decision or opened[0] == decision):
            self._open = None
            self._keep(opened[1])
            return
        if isinstance(decision, Wait):
            return
        if not isinstance(decision, (Bind, Preempt)):
            raise RequestError("decision", f"expected what schedule() answered, not {decision!r}")
        state = self._settled()
        known = state.groups.get(decision.group)
        asked = decision.asked
        moves = asked is not None and asked.call == "move" and asked.version == state.version
        if known is not None and not moves and (known.running or decision.placement == known.placement):
            self._commit_again(known, decision)
            return
        group = self._decided_again(decision)
        self._open = None
        self._keep(group)

    def _commit_again(self, group: Group, decision: Bind | Preempt) -> None:
        """A decision about a group that has its placement: it starts now, or nothing is left to do."""
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
            self._keep()

    def _decided_again(self, decision: Bind | Preempt) -> Group:
        """The group of an answer that is not the last one, placed as that has it. Raises :class:`RequestError`."""
        state, asked = self._state, decision.asked
        if asked is not None and asked.version == state.version:
            again = getattr(Cluster, asked.call)(self, *asked.arguments)
            if self._open is not None and again == decision:
                return self._open[1]
            self._settled()
        raise RequestError(
            "decision", f"out of date: {decision.group!r} has not got it since the cluster changed; schedule it again"
        )

    def release(self, group: str) -> None:
        """``group`` has ended, or was preempted: its leaf cells are free, or go to who has reserved them."""
        self._end(self._holding(group, "nothing to release"))

    def _end(self, group: Group) -> None:
        state = self._state
        if self._preempted and group.running:
            self._preempted.pop(group.name, None)
        if group.preempted_by:
            self._preempted[group.name] = looking.preemption_reasons(self._state, group, ended=True)
            if len(self._preempted) > REMEMBERED:
                del self._preempted[next(iter(self._preempted))]
        state.end(group)
        if state.jobs:
            state.set_jobs(group.name, ())
        self._keep()

    def suspend(self, group: str) -> None:
        """A group that runs gives its leaf cells up, to whoever has reserved them, and waits from now on.

        It keeps its request, its place in line, and the time since when it ran. Scheduled again, it starts again.
        """
        suspended = self._holding(group, "nothing to suspend")
        if not suspended.running:
            raise RequestError("group", f"{group!r} has only reserved; cancel() withdraws it")
        self._state.suspend(
            suspended, (Suspended(suspended.gpus), *looking.preemption_reasons(self._state, suspended, ended=True))
        )
        self._keep()

    def cancel(self, group: str) -> None:
        """Withdraw a group that waits or is preempting; what it has reserved goes back to who had it."""
        state = self._settled()
        if isinstance(group, str) and group in state.waiting:
            self._withdraw(group)
            return
        ended = self._holding(group, "nothing to cancel")
        if ended.running:
            raise RequestError("group", f"{group!r} runs; release() ends it")
        self._end(ended)

    def _withdraw(self, waiting: str) -> None:
        self._state.waiting.pop(waiting).happens(GroupEvent.END)
        self._state.set_jobs(waiting, ())

    # -- jobs on an allocation ----------------------------------------------------------------------------------------

    def join(self, group: str, job: str) -> None:
        """``job`` runs on the allocation of ``group`` too, and takes no leaf cells for it.

        The first job on an allocation is called like the group; who sees to it that they get on is the caller's affair.
        Suspended and moved, an allocation keeps its jobs; it ends with the last of them.
        """
        held = self._holding(group, "nothing to join")
        state, jobs = self._state, self._state.jobs.get(group, (group,))
        if not held.running:
            raise RequestError("group", f"{group!r} has only reserved; jobs join it once it runs")
        if not isinstance(job, str) or not job:
            raise RequestError("job", f"a name, not {job!r}")
        on = group if job in jobs else state.joined.get(job)
        if on is not None or (job != group and (job in state.groups or job in state.waiting)):
            has = "is a group of its own" if on is None else f"is on the allocation of {on!r} already"
            raise RequestError("job", f"{job!r} {has}; it has to end first there")
        state.set_jobs(group, (*jobs, job))
        self._keep()

    def leave(self, group: str, job: str) -> None:
        """``job`` has ended on the allocation of ``group``, which ends with its last one, as if it were released."""
        state = self._settled()
        waits = isinstance(group, str) and group in state.waiting
        held = None if waits else self._holding(group, "nothing to leave")
        jobs = state.jobs.get(group, (group,))
        if job not in jobs:
            raise RequestError("job", f"{job!r} is not on the allocation of {group!r}; there are {', '.join(jobs)}")
        if len(jobs) > 1:
            state.set_jobs(group, tuple(other for other in jobs if other != job))
            self._keep()
        elif held is None:
            self._withdraw(group)
        else:
            self._end(held)

    def _holding(self, name: str, what: str) -> Group:
        """The group of that name that runs or has reserved."""
        state = self._settled()
        group = state.groups.get(name) if isinstance(name, str) else None
        if group is None:
            waits = isinstance(name, str) and name in state.waiting
            hint = "it waits, and holds nothing; cancel() withdraws it" if waits else f"no such group; {what}"
            raise RequestError("group", f"{name!r}: {hint}")
        return group

    def _keep(self, group: Group | None = None) -> None:
        """What was done stays; ``group``: that was admitted."""
        state = self._state
        state.version += 1
        state.undo.keep()
        if group is not None and state.waiting:
            state.waiting.pop(group.name, None)

    def evicted(self) -> tuple[str, ...]:
        """The guests that wait again since this was last asked, as the owner of their leaf cells has them no longer."""
        state = self._settled()
        evicted = tuple(state.evicted)
        state.evicted.clear()
        return evicted

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_node_health(self, node: str, healthy: bool) -> None:
        """All devices of ``node`` are bad, or healthy, from now on. Who runs there runs on. O(its cells)."""
        self._set_health(node, None, healthy)

    def set_device_health(self, node: str, device: int, healthy: bool) -> None:
        """One device of ``node`` is bad, or healthy, from now on. Who runs there runs on."""
        self._set_health(node, device, healthy)

    def _set_health(self, node: str, device: int | None, healthy: bool) -> None:
        state = self._settled()
        set_health(state, self._by_name(), node, device, healthy)
        self._keep()

    # -- restart and reconfiguration ----------------------------------------------------------------------------------

    def records(self) -> tuple[Record, ...]:
        """Every group that runs: ``(group, request, placement)``, by name. What :meth:`recover` needs. O(groups)."""
        return looking.records(self._settled())

    def recover(self, records: Iterable[Record | tuple[str, Request, Placement]]) -> Reconfiguration:
        """Take over groups that run already, as :meth:`records` gave them or in any other order: the same state.

        Under the spec that they started with, all is as it was. Under another, what its VC's cells cannot stand under
        runs on as opportunistic, and is reported. Groups that had only reserved are not among them: they ask again.
        All or nothing. O(sum of pods * levels).
        """
        given = as_records(records)
        state = self._settled()
        report = recovery.recover(state, self._by_name(), given)
        self._keep()
        return report

    def reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> Reconfiguration:
        """Carry on under a new spec; every group runs on where it is (work-preserving, HiveD section 4).

        What fits its VC's new cells stays guaranteed; the rest becomes opportunistic, preempted only when needed.
        Reservations end, their groups wait again. Health is kept by name. Raises what :meth:`from_spec` raises, and
        nothing has changed then. O(cells + groups).
        """
        state = self._settled()
        self._state, report = recovery.reconfigured(state, compiled_spec(spec))
        self._names = None
        self._keep()
        return report

    # -- looking ------------------------------------------------------------------------------------------------------

    def groups(self) -> tuple[str, ...]:
        """Names of all groups that run, have reserved or wait, in that order."""
        state = self._settled()
        return (*[group.name for group in state.by_age()], *state.waiting)

    def nodes(self) -> Iterator[tuple[str, str, int]]:
        """Every node: the name of its chain, its own, and its leaf cells. O(nodes)."""
        for nodes in self._state.chains:
            for name, shape in zip(nodes.names, nodes.shapes, strict=True):
                yield nodes.hierarchy.spec.name, name, shape.leaves

    def group(self, name: str) -> GroupStatus:
        """A group as it is now. Raises :class:`RequestError` when there is none of that name."""
        return looking.status(self._settled(), name)

    def explain(self, group: str) -> str:
        """Why ``group`` waits, where it runs, whom it waits for, or who preempted it: for people. Lines of text."""
        return in_lines(self.explained(group))

    def explained(self, group: str, pod: Callable[[int], str] = "pod {}: ".format) -> list[str]:
        """The same line by line. ``pod``: what stands before the place of each pod, counted from 1."""
        return looking.explain(self._settled(), self._preempted, group, pod)

    def leaf_state(self, node: str, device: int) -> LeafState:
        """What one device is doing: free, used, reserving or reserved."""
        return leaf_state(self._settled(), self._by_name(), node, device)

    def doomed(self) -> tuple[tuple[str, str, str, str], ...]:
        """The reserved cells that are *doomed bad*: VC, chain, cell type, and the first node of where they stand."""
        return looking.doomed(self._seen())

    def unavailable(self) -> dict[str, int]:
        """Per VC: how many of its reserved leaf cells it could not have now if it asked first. O(VCs + bad).

        Safety is of the spec, and says nothing of this: no other VC can take what is reserved, and hardware can.
        """
        return looking.unavailable(self._seen())

    def unavailable_to_all(self) -> int:
        """How many reserved leaf cells are too many for all VCs to have at once, since some are bad. O(VCs + bad)."""
        return looking.unavailable_to_all(self._seen())

    def check_safety(self) -> tuple[LevelSafety, ...]:
        """Sharing safety, as numbers: per chain and level reserved, allocated, free, obtainable, and the margin.

        Raises :class:`~hived.errors.InvariantError` if a margin is negative (HiveD, equations 1 and 2). O(levels).
        """
        rows = self._settled().safety()
        assert_safe(rows)
        return rows

    def validate(self) -> None:
        """Re-derive everything; :class:`~hived.errors.InvariantError` where something is off. O(cluster): for tests."""
        self._settled().validate()

    def snapshot(self) -> tuple[object, ...]:
        """The whole state as plain values, equal exactly for equal states. O(cells in use + groups)."""
        return looking.snapshot(self._seen())

    def state_now(self) -> State:
        """The state as it stands, to be read and not changed: for what looks at all of it (:mod:`hived.inspection`)."""
        return self._seen()

    def _settled(self) -> State:
        """The state without what was offered and not committed, or left by a call that raised."""
        state = self._state
        if state.undo.log:
            self._open = None
            state.undo.rollback()
        return state

    def _seen(self) -> State:
        """The same, with what bad hardware has come to by now."""
        state = self._settled()
        state.see_bad()
        return state


def compiled_spec(spec: Mapping[str, Any] | ClusterSpec) -> ClusterSpec:
    """A spec as a dictionary, compiled; a compiled one as it is. Raises :class:`InputError`."""
    if isinstance(spec, ClusterSpec):
        return spec
    if not isinstance(spec, Mapping):
        raise InputError(f"a spec is a dictionary or a ClusterSpec, not {type(spec).__name__}; load() reads a file")
    return spec_from_dict(dict(spec))


def as_records(records: Iterable[Record | tuple[str, Request, Placement]]) -> tuple[Record, ...]:
    """Records as :meth:`Cluster.recover` reads them. Raises :class:`RequestError`."""
    try:
        return tuple(Record(*record) for record in records)
    except TypeError:
        raise RequestError("records", "expected (group, request, placement) for each group") from None


def _check_seconds(now: float) -> None:
    if type(now) not in (int, float) or not -MOST_SECONDS <= now <= MOST_SECONDS:
        raise RequestError("now", f"seconds, not {now!r}")


def _names_of_nodes(field: str, names: Collection[str]) -> frozenset[str]:
    """``names``, each once. Raises :class:`RequestError` where they are none."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise RequestError(field, f"names of nodes, not {names!r}")
    listed = names if isinstance(names, frozenset) else tuple(names)
    if not all(issubclass(kind, str) for kind in set(map(type, listed))):
        raise RequestError(field, f"names of nodes, not {listed!r}")
    return frozenset(listed)
