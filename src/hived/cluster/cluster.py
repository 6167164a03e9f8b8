"""The public face of the core: a cluster that answers requests, and carries its answers out.

    answer = cluster.schedule(request)      Bind | Preempt | Wait, nothing has changed
    cluster.commit(answer)                  now it has

Between the two the caller may do what takes time (start processes, delete pods). A decision that is no longer right by
then is refused. Everything else is an event that happened: groups end, nodes turn bad, the spec changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from hived.cells import LevelSafety, assert_safe
from hived.errors import InputError, RequestError
from hived.spec import SpecPath, load_spec, spec_from_dict
from hived.spec.compiled import ClusterSpec

from . import journal, looking, recovery
from .answers import again, offer, plan_for, refuse_another
from .decisions import Bind, Decision, Preempt, Wait
from .demands import Demand
from .dooming import see_bad
from .groups import Group
from .health import leaf_state, set_health
from .inspecting import Inspection
from .looking import GroupStatus, PlanAnswer
from .names import Names
from .obstacles import reasons
from .offers import Offers
from .plans import Plan
from .reasons import PreemptedBy, Reason
from .reconfiguring import reconfigured
from .recovery import Reconfiguration, Record
from .replanning import replanned
from .requests import Request
from .state import State
from .states import GroupEvent, GroupState, LeafState
from .suggested import Suggested, nodes_named

#: how many groups that were preempted and have ended are remembered, for explain
REMEMBERED = 10_000

MOST_SECONDS = 2**53  #: up to which a float tells one second from the next

T = TypeVar("T")


class Cluster:
    """Virtual clusters on a physical one: who may run where, now (HiveD, OSDI'20).

    A request costs O(levels + pods) where it fits at once; nothing depends on the size of the cluster. One caller at
    a time; the same calls give the same answers, always.

    Every method that takes something of the caller's raises :class:`~hived.errors.RequestError` (an
    :class:`~hived.errors.InputError`) naming the field that is wrong, and has changed nothing then.
    """

    def __init__(self, spec: ClusterSpec, log: Callable[[str], None] | None = None) -> None:
        """``log`` is called with one line of JSON for every call that asks or changes something (see ``replay``).

        Raises :class:`~hived.errors.InfeasibleError` when the virtual clusters do not fit the physical one. O(cells).
        """
        self._state = State(spec)
        self._names: Names | None = None
        self._preempted: dict[str, tuple[Reason, ...]] = {}
        self._offers = Offers()
        self._log = log
        if log is not None:
            log(journal.to_line(journal.Opened(spec)))

    @classmethod
    def load(cls, path: SpecPath, log: Callable[[str], None] | None = None) -> Cluster:
        """The cluster of a YAML spec. Raises :class:`~hived.errors.SpecError` with file and line."""
        return cls(load_spec(path), log)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any] | ClusterSpec, log: Callable[[str], None] | None = None) -> Cluster:
        """The cluster of a spec as a dictionary (the YAML's structure), or compiled already."""
        return cls(_compiled(spec), log)

    @property
    def spec(self) -> ClusterSpec:
        """What it was made from, or last reconfigured to."""
        return self._state.spec

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
        if self._log is None:
            return self._schedule(request, suggested_nodes, now, excluded_nodes)
        suggested_nodes, excluded_nodes = _in_order(suggested_nodes), _in_order(excluded_nodes) or ()
        arguments: tuple[Any, ...] = (request, suggested_nodes, now, *([excluded_nodes] if excluded_nodes else []))
        decision = self._logged("schedule", arguments, lambda: self._schedule(*arguments))
        # what is no collection of names was refused, and these are tuples now
        self._write(journal.Scheduled(request, suggested_nodes, now, decision, excluded_nodes))  # type: ignore[arg-type]
        return decision

    def _schedule(
        self,
        request: Request,
        suggested_nodes: Collection[str] | None,
        now: float,
        excluded_nodes: Collection[str] = (),
    ) -> Decision:
        state = self._state
        state.step_back()
        demand = state.demands.of(request)
        if type(now) not in (int, float) or not -MOST_SECONDS <= now <= MOST_SECONDS:
            raise RequestError("now", f"seconds, not {now!r}")
        group = state.groups.get(request.group)
        if group is not None:
            refuse_another(group, request)
            if group.running:
                return again(state, group)
            return self._schedule_again(group, demand, self._suggested(suggested_nodes, excluded_nodes), now)
        suggested = self._suggested(suggested_nodes, excluded_nodes)
        plan = plan_for(state, request, demand, suggested)
        if plan is not None:
            return self._offered(plan, now)
        wait = Wait(request.group, reasons(state, request, demand, suggested))
        state.wait(request, wait.reasons, now)
        return wait

    def _schedule_again(self, group: Group, demand: Demand, suggested: Suggested | None, now: float) -> Decision:
        """The answer for a group that has reserved: there, elsewhere by now, or nowhere on the suggested nodes."""
        plan = replanned(self._state, group, demand, suggested)
        if plan is None:
            return again(self._state, group)
        if isinstance(plan, Plan):
            return self._offered(plan, now)
        self._state.withdraw(group, plan)
        return Wait(group.name, plan)

    def _offered(self, plan: Plan, now: float) -> Bind | Preempt:
        plan.now = now
        decision = offer(self._state, plan)
        self._offers.remember(decision, plan)
        return decision

    def _suggested(self, names: Collection[str] | None, excluded: Collection[str]) -> Suggested | None:
        """The nodes that may be used, None for all. O(names)."""
        if names is None and (excluded == () or excluded == frozenset()):
            return None
        suggested = None if names is None else _names_of_nodes("suggested_nodes", names)
        others = _names_of_nodes("excluded_nodes", excluded)
        return nodes_named(suggested, others, self._state.floors, self._by_name().numbers)

    def _by_name(self) -> Names:
        if self._names is None:
            self._names = Names(self._state.floors)
        return self._names

    def plan(
        self, request: Request, suggested_nodes: Collection[str] | None = None, excluded_nodes: Collection[str] = ()
    ) -> PlanAnswer:
        """What :meth:`schedule` would answer, by the same code, with nothing remembered: a question, not a request.

        A request that is wrong "never" fits, with :class:`~hived.cluster.reasons.Misconfigured` as the reason.
        """
        self._state.step_back()
        return looking.plan(self._state, request, lambda: self._suggested(suggested_nodes, excluded_nodes))

    # -- carrying out -------------------------------------------------------------------------------------------------

    def commit(self, decision: Decision) -> None:
        """Make a decision real: the group of a Bind runs, that of a Preempt has its placement reserved.

        A Wait changes nothing, nor does a decision that has been carried out already. Refused when the cluster has
        changed since, so that the answer would be another now: schedule again.
        """
        if self._log is None:  # the hot path
            self._commit(decision)
            return
        self._logged("commit", (decision,), lambda: self._commit(decision))
        self._write(journal.Committed(decision))

    def _commit(self, decision: Decision) -> None:
        if isinstance(decision, Wait):
            return
        if not isinstance(decision, (Bind, Preempt)):
            raise RequestError("decision", f"expected what schedule() answered, not {decision!r}")
        state = self._state
        group = state.groups.get(decision.group)
        if group is not None and (group.running or decision.placement == group.placement):
            self._commit_again(group, decision)
            return
        plan = self._offers.plan(decision)
        if plan.version != state.version:  # which rises under a new spec too
            state.step_back()
            plan = self._still(decision, plan)
        if group is not None:
            state.move(group, plan)
        else:
            state.admit(plan)
        self._offers.forget(decision.group)

    def _commit_again(self, group: Group, decision: Bind | Preempt) -> None:
        """A decision about a group that has its placement: it starts now, or nothing is left to do."""
        if group.placement is None or decision.placement.pods != group.placement.pods:
            raise RequestError("decision", f"{group.name!r} has another placement by now; schedule it again")
        self._state.step_back()
        if isinstance(decision, Bind) and group.state is GroupState.PREEMPTING:
            if group.victims:
                left = ", ".join(sorted(victim.name for victim in group.victims))
                raise RequestError("decision", f"{group.name!r} still waits for {left} to be released")
            self._state.bind(group)

    def _still(self, decision: Bind | Preempt, plan: Plan) -> Plan:
        """The plan of today, if it comes to the same decision. Raises :class:`RequestError` otherwise."""
        state = self._state
        try:
            demand = state.demands.of(plan.request)
            suggested = self._suggested(*plan.suggested)
            group = state.groups.get(decision.group)
            if group is not None:
                again = replanned(state, group, demand, suggested)
            else:
                again = plan_for(state, plan.request, demand, suggested)
        except RequestError as error:
            raise RequestError("decision", f"out of date: {error}") from None
        if isinstance(again, Plan) and offer(state, again) == decision:
            again.now = plan.now
            return again
        state.step_back()
        raise RequestError(
            "decision", f"out of date: the cluster has changed since {decision.group!r} got it; schedule it again"
        )

    def release(self, group: str) -> None:
        """``group`` has ended, or was preempted: its leaf cells are free, or go to who has reserved them."""
        if self._log is None:  # the hot path
            self._release(group)
            return
        self._logged("release", (group,), lambda: self._release(group))
        self._write(journal.Released(group))

    def _release(self, name: str) -> None:
        state = self._state
        group = state.groups.get(name) if isinstance(name, str) else None
        if group is None:
            self._refuse_unknown(name, "nothing to release")
        state.step_back()
        self._offers.forget(name)
        self._preempted.pop(name, None)
        if group.preempted_by:
            self._preempted[name] = tuple(
                PreemptedBy(by.name, state.tenants[by.tenant], by.priority, group.priority, True)
                for by in group.preempted_by
            )
            if len(self._preempted) > REMEMBERED:
                del self._preempted[next(iter(self._preempted))]
        state.end(group)

    def cancel(self, group: str) -> None:
        """Withdraw a group that waits or is preempting; what it has reserved goes back to who had it."""
        self._logged("cancel", (group,), lambda: self._cancel(group))
        self._write(journal.Cancelled(group))

    def _cancel(self, name: str) -> None:
        state = self._state
        if isinstance(name, str) and name in state.waiting:
            state.step_back()
            state.waiting.pop(name).happens(GroupEvent.END)
            self._offers.forget(name)
            return
        group = state.groups.get(name) if isinstance(name, str) else None
        if group is None:
            self._refuse_unknown(name, "nothing to cancel")
        if group.running:
            raise RequestError("group", f"{name!r} runs; release() ends it")
        state.step_back()
        state.end(group)

    def _refuse_unknown(self, name: object, what: str) -> NoReturn:
        waits = isinstance(name, str) and name in self._state.waiting
        hint = "it waits, and holds nothing; cancel() withdraws it" if waits else f"no such group; {what}"
        raise RequestError("group", f"{name!r}: {hint}")

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_node_health(self, node: str, healthy: bool) -> None:
        """All devices of ``node`` are bad, or healthy, from now on. Who runs there runs on. O(its cells)."""
        self._logged("set_node_health", (node, healthy), lambda: self._set_health(node, None, healthy))
        self._write(journal.NodeHealth(node, healthy))

    def set_device_health(self, node: str, device: int, healthy: bool) -> None:
        """One device of ``node`` is bad, or healthy, from now on. Who runs there runs on."""
        self._logged("set_device_health", (node, device, healthy), lambda: self._set_health(node, device, healthy))
        self._write(journal.DeviceHealth(node, device, healthy))

    def _set_health(self, node: str, device: int | None, healthy: bool) -> None:
        self._state.step_back()
        set_health(self._state, self._by_name(), node, device, healthy)

    # -- restart and reconfiguration ----------------------------------------------------------------------------------

    def records(self) -> tuple[Record, ...]:
        """Every group that runs: ``(group, request, placement)``, by name. What :meth:`recover` needs. O(groups)."""
        return looking.records(self._state)

    def recover(self, records: Iterable[Record]) -> Reconfiguration:
        """Take over groups that run already, as :meth:`records` gave them or in any other order: the same state.

        Under the spec that they started with, all is as it was. Under another, what its VC's cells cannot stand under
        runs on as opportunistic, and is reported. Groups that had only reserved are not among them: they ask again.
        All or nothing. O(sum of pods * levels).
        """
        try:
            given = tuple((group, request, placement) for group, request, placement in records)
        except (TypeError, ValueError):
            raise RequestError("records", "expected (group, request, placement) for each group") from None
        self._state.step_back()
        report = self._logged("recover", (given,), lambda: recovery.recover(self._state, self._by_name(), given))
        self._write(journal.Recovered(given))
        return report

    def reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> Reconfiguration:
        """Carry on under a new spec; every group runs on where it is (work-preserving, HiveD section 4).

        What fits its VC's new cells stays guaranteed; the rest becomes opportunistic, preempted only when needed.
        Reservations end, their groups wait again. Health is kept by name. Raises what :meth:`from_spec` raises, and
        nothing has changed then. O(cells + groups).
        """
        self._state.step_back()
        compiled = _compiled(spec)

        def carry_out() -> Reconfiguration:
            self._state, report = reconfigured(self._state, compiled)
            self._names = None
            return report

        report = self._logged("reconfigure", (compiled,), carry_out)
        self._write(journal.Reconfigured(compiled))
        return report

    # -- looking ------------------------------------------------------------------------------------------------------

    def groups(self) -> tuple[str, ...]:
        """Names of all groups that run, have reserved or wait, in that order."""
        return (*self._state.groups, *self._state.waiting)

    def group(self, name: str) -> GroupStatus:
        """A group as it is now. Raises :class:`RequestError` when there is none of that name."""
        return looking.status(self._state, name)

    def explain(self, group: str) -> str:
        """Why ``group`` waits, where it runs, whom it waits for, or who preempted it: for people. Lines of text."""
        return looking.explain(self._state, self._preempted, group)

    def leaf_state(self, node: str, device: int) -> LeafState:
        """What one device is doing: free, used, reserving or reserved."""
        return leaf_state(self._state, self._by_name(), node, device)

    def doomed(self) -> tuple[tuple[str, str, str, str], ...]:
        """The reserved cells that are *doomed bad*: VC, chain, cell type, and the first node of where they stand."""
        self._settle()
        return looking.doomed(self._state)

    def unavailable(self) -> dict[str, int]:
        """Per VC: how many of its reserved leaf cells it could not have now if it asked first. O(VCs + bad).

        Safety is of the spec, and says nothing of this: no other VC can take what is reserved, and hardware can.
        """
        self._settle()
        return looking.unavailable(self._state)

    def unavailable_to_all(self) -> int:
        """How many reserved leaf cells are too many for all VCs to have at once, since some are bad. O(VCs + bad)."""
        self._settle()
        return looking.unavailable_to_all(self._state)

    def inspect(self, vc: str | None = None) -> Inspection:
        """All physical and virtual cells as they are now; with ``vc``, the virtual ones of that VC alone.

        Raises :class:`RequestError` when there is no such VC. O(nodes + groups); see :class:`Inspection` for its parts.
        """
        self._settle()
        return Inspection(self._state, vc)

    def check_safety(self) -> tuple[LevelSafety, ...]:
        """Sharing safety, as numbers: per chain and level reserved, allocated, free, obtainable, and the margin.

        Raises :class:`~hived.errors.InvariantError` if a margin is negative (HiveD, equations 1 and 2). O(levels).
        """
        self._state.step_back()
        rows = self._state.safety()
        assert_safe(rows)
        return rows

    def validate(self) -> None:
        """Re-derive everything; :class:`~hived.errors.InvariantError` where something is off. O(cluster): for tests."""
        self._state.validate()

    def snapshot(self) -> tuple[object, ...]:
        """The whole state as plain values, equal exactly for equal states. O(cells in use + groups)."""
        self._settle()
        return looking.snapshot(self._state)

    def _settle(self) -> None:
        self._state.step_back()
        see_bad(self._state)

    # -- the event log ------------------------------------------------------------------------------------------------

    def _logged(self, call: str, arguments: tuple[object, ...], work: Callable[[], T]) -> T:
        """Do the work; if it is refused, write that down."""
        if self._log is None:
            return work()
        try:
            return work()
        except InputError as error:
            self._log(journal.to_line(journal.Refused.of(call, arguments, error)))
            raise

    def _write(self, event: journal.Event) -> None:
        if self._log is not None:
            self._log(journal.to_line(event))


def _compiled(spec: Mapping[str, Any] | ClusterSpec) -> ClusterSpec:
    if isinstance(spec, ClusterSpec):
        return spec
    if not isinstance(spec, Mapping):
        raise InputError(f"a spec is a dictionary or a ClusterSpec, not {type(spec).__name__}; load() reads a file")
    return spec_from_dict(dict(spec))


def _in_order(names: Collection[str] | None) -> Collection[str] | None:
    """Names as the log has them; what is no collection of names stays as it is."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        return tuple(sorted(names, key=str))
    return names


def _names_of_nodes(field: str, names: Collection[str]) -> frozenset[str]:
    """``names``, each once. Raises :class:`RequestError` where they are none."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise RequestError(field, f"names of nodes, not {names!r}")
    listed = names if isinstance(names, frozenset) else tuple(names)
    if not all(issubclass(kind, str) for kind in set(map(type, listed))):
        raise RequestError(field, f"names of nodes, not {listed!r}")
    return frozenset(listed)
