"""A scheduler with an engine whose victims end later: reservations, moves, and jobs that start early."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hived.cluster import OPPORTUNISTIC, Cluster, Member, Placement, Request, Sharing
from hived.cluster.explain.reasons import NeverFits
from hived.policies import SJF, SRTF, Greedy, Tiresias, YarnCS
from hived.scheduling import (
    Downgrade,
    Entry,
    Instruction,
    JobView,
    Kind,
    Move,
    Policies,
    Policy,
    Promote,
    Reaction,
    Reserve,
    Scheduler,
    Start,
    Status,
    Stop,
    Unreserve,
    Unschedulable,
)
from hived.scheduling.checks import check_scheduler

from .helpers import Watching, nodes


class SlowEngine:
    """An engine whose jobs end when the test ends them; ``at_once``: as in the simulator, victims leave at once."""

    def __init__(self, a: int, b: int = 0, c: int = 0, policy: Policy | None = None, at_once: bool = False) -> None:
        self.policies = Policies(policy or YarnCS())
        cluster = Cluster(nodes(a, b, c), Sharing.HIVED, self.policies.rank)
        self.scheduler = Scheduler(cluster, self.policies, self._carry_out, explains=not at_once)
        self.at_once, self.now = at_once, 0.0
        self.instructions: list[Instruction] = []
        self._jobs = 0

    def submit(
        self,
        vc: str,
        gpus: int,
        priority: int = 0,
        early: bool = False,
        lazy: bool = False,
        duration: float | None = None,
        excluded: frozenset[str] = frozenset(),
    ) -> Entry:
        self._jobs += 1
        name = f"job-{self._jobs}"
        request = Request(name, vc, priority, (Member(1, gpus),), lazy_preemption=lazy)
        entry = Entry(self._jobs, request, JobView(name, gpus, self._jobs, self._jobs, duration=duration), early)
        self.scheduler.exclude(entry, excluded)
        self.scheduler.wait(entry)
        self.dispatch()
        return entry

    def end(self, entry: Entry, waits: bool = False) -> None:
        """End a job and release its GPUs."""
        self.scheduler.release(entry, waits, self.now)
        self.dispatch()

    def dispatch(self) -> None:
        self.instructions.clear()
        self.scheduler.dispatch(self.now)
        check_scheduler(self.scheduler)

    def _carry_out(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        job = self.scheduler.jobs[instruction.job]
        if isinstance(instruction, Unreserve):
            self.scheduler.wait(job)
        if self.at_once and isinstance(instruction, Stop | Move) and job.holds:
            self.scheduler.release(job, True, self.now)

    def reconfigure(self, a: int, b: int = 0, c: int = 0) -> None:
        self.scheduler.cluster.reconfigure(nodes(a, b, c))
        for entry in self.scheduler.reconfigured():
            self.scheduler.wait(entry)
        self.dispatch()

    @property
    def issued(self) -> list[Instruction]:
        """The instructions of the last dispatch, without holds."""
        return [one for one in self.instructions if not isinstance(one, Unschedulable)]


def where(entry: Entry) -> Placement:
    assert entry.placement is not None
    return entry.placement


# -- reservations -------------------------------------------------------------------------------------------------


def test_gpus_are_reserved_until_victims_have_ended() -> None:
    engine = SlowEngine(1, 1)
    loan = engine.submit("a", 16, OPPORTUNISTIC)
    assert loan.status is Status.WAITING, "a pod is on one node"
    loans = [engine.submit("a", 8, OPPORTUNISTIC) for _ in range(2)]
    owner = engine.submit("b", 8)
    (victim,) = [one for one in loans if where(one).pods[0].node == where(owner).pods[0].node]
    assert engine.issued == [
        Reserve(owner.number, where(owner), (victim.name,)),
        Stop(victim.number, owner.number, True),
    ]
    engine.dispatch()
    assert not engine.issued, "it waits for its victim"
    engine.end(victim, waits=True)
    assert engine.issued == [Start(owner.number, Kind.GUARANTEED, where(owner))]
    assert victim.status is Status.WAITING


def test_reservation_is_taken_by_a_higher_priority() -> None:
    engine = SlowEngine(1, 1)
    loans = [engine.submit("a", 8, OPPORTUNISTIC) for _ in range(2)]
    low, high = engine.submit("b", 8), engine.submit("b", 8, 5)
    assert Unreserve(low.number, high.number) in engine.issued
    assert (low.status, high.status) == (Status.WAITING, Status.RESERVED)
    for loan in loans:
        engine.end(loan)
    assert (low.status, high.status) == (Status.WAITING, Status.GUARANTEED)


def test_job_that_never_fits_is_tried_once() -> None:
    """It waits for another spec."""
    engine = SlowEngine(1, 1)
    never = engine.submit("a", 9)
    (held,) = engine.instructions
    assert isinstance(held, Unschedulable)
    assert held.job == never.number
    assert isinstance(held.reasons[0], NeverFits)
    assert engine.scheduler.in_turn(5) == [never]
    engine.submit("a", 8)
    assert not [one for one in engine.instructions if isinstance(one, Unschedulable)]


def test_downgraded_job_goes_on_on_a_loan() -> None:
    """And is not early for that."""
    engine = SlowEngine(1, 1)
    lazy, other = engine.submit("a", 8, lazy=True), engine.submit("b", 8)
    engine.end(other)
    high = engine.submit("a", 8, 5)
    assert Downgrade(lazy.number, high.number) in engine.issued
    assert lazy.status is Status.LENT
    engine.end(high)
    assert lazy.status is Status.LENT, "only the end of a reservation restores it"


# -- loans that a new spec has made: they stay while that harms nobody ---------------------------------------------


def stays(
    policy: Policy | None = None, at_once: bool = False, durations: Sequence[float | None] = (None, None, None)
) -> tuple[SlowEngine, Entry, list[Entry]]:
    """One that runs on a loan on the second node, though the first, its VC's own, has room; and the job beside that."""
    engine = SlowEngine(2, 0, policy=policy, at_once=at_once)
    jobs = [engine.submit("a", 4, duration=duration) for duration in durations]
    engine.reconfigure(1, 1)
    (loan,) = [job for job in jobs if job.status is Status.LENT]
    return engine, loan, [job for job in jobs if job is not loan]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy", [YarnCS, Greedy], ids=lambda policy: policy.__name__)
def test_loan_moves_for_who_waits_behind_it(policy: type[Policy], at_once: bool) -> None:
    engine, loan, (first, _) = stays(policy(), at_once)
    engine.end(first)
    assert (loan.status, engine.issued) == (Status.LENT, []), "nobody else could use these cells"
    behind = engine.submit("a", 4)
    assert engine.issued[0] == Move(loan.number, True)
    if not at_once:
        engine.end(loan, waits=True)
    assert (loan.status, behind.status) == (Status.GUARANTEED, Status.WAITING), "it was first"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy", [YarnCS, Greedy], ids=lambda policy: policy.__name__)
def test_loan_that_is_taken_is_first_in_line(policy: type[Policy], at_once: bool) -> None:
    engine, loan, (first, _) = stays(policy(), at_once)
    engine.end(first)
    engine.submit("b", 8)
    if not at_once:
        engine.end(loan, waits=True)
    assert loan.status is Status.GUARANTEED


def test_loan_stays_for_who_could_not_start() -> None:
    engine, loan, (first, other) = stays()
    engine.end(first)
    nodes_of_all = frozenset({where(loan).pods[0].node, where(other).pods[0].node})
    barred = engine.submit("a", 4, excluded=nodes_of_all)
    assert engine.issued == []
    behind = engine.submit("a", 4)
    assert engine.issued == [Move(loan.number, True)], "one that may wait for ever hides nobody"
    engine.end(loan, waits=True)
    assert [job.status for job in (loan, barred, behind)] == [Status.GUARANTEED, Status.WAITING, Status.WAITING]


def test_loan_stays_for_who_needs_more() -> None:
    engine, loan, (first, _) = stays()
    engine.end(first)
    larger, behind = engine.submit("a", 8), engine.submit("a", 4)
    assert [job.status for job in (loan, larger, behind)] == [Status.LENT, Status.WAITING, Status.WAITING]


def test_loan_stays_for_who_finds_no_node() -> None:
    """Enough is free, on two nodes."""
    engine = SlowEngine(3, 0)
    jobs = [engine.submit("a", 2) for _ in range(9)]
    engine.reconfigure(2, 1)
    (loan,) = [job for job in jobs if job.status is Status.LENT]
    by_node = {where(job).pods[0].node: job for job in jobs if job is not loan}
    for job in by_node.values():
        engine.end(job)
    waits = engine.submit("a", 4)
    assert (loan.status, waits.status) == (Status.LENT, Status.WAITING)


@pytest.mark.parametrize("early", [False, True])
def test_loan_keeps_no_other_loan_from_its_turn(early: bool) -> None:
    """One behind it can be guaranteed: who is first gives way rather than keep it from that."""
    engine = SlowEngine(4, 0)
    halves = [engine.submit("a", 4) for _ in range(2)]
    whole = engine.submit("a", 8)
    pair = [engine.submit("a", 4) for _ in range(2)]
    last = engine.submit("a", 4, early=early)
    engine.reconfigure(2, 1, 1)
    assert [job.status for job in (*halves, whole, *pair, last)] == [Status.GUARANTEED] * 3 + [Status.LENT] * 3
    engine.end(pair[1])
    engine.submit("b", 4)  # beside the first of the pair, whose cells can be bound there no more
    engine.end(whole)
    assert engine.issued == [Move(pair[0].number, True)]
    engine.end(pair[0], waits=True)
    assert pair[0].status is Status.GUARANTEED
    assert last.status is (Status.MOVING if early else Status.LENT), "it has its own turn now, elsewhere"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("policy", [SRTF, Tiresias], ids=lambda policy: policy.__name__)
def test_loan_preempts_nobody_while_it_runs(policy: type[Policy], at_once: bool) -> None:
    """Whatever its policy: all three have GPUs."""
    _, loan, others = stays(policy(), at_once, (1000.0, 900.0, 100.0))
    assert (loan.status, [other.status for other in others]) == (Status.LENT, [Status.GUARANTEED] * 2)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 9)) for seed in range(200)])
@pytest.mark.parametrize("policy", [YarnCS, SJF, Greedy], ids=lambda policy: policy.__name__)
def test_nobody_is_overlooked(policy: type[Policy], seed: int) -> None:
    """Whatever happens, also to the spec: who has its turn has it at once, and not when its VC is looked at again."""
    choose = random.Random(seed)
    engine = SlowEngine(3, 0, 0, policy(), at_once=choose.random() < 0.5)
    specs = [(3, 0, 0), (2, 1, 0), (1, 1, 1), (1, 2, 0), (2, 0, 1)]
    for _ in range(50):
        jobs = list(engine.scheduler.jobs.values())
        held = [job for job in jobs if job.holds]
        match choose.randrange(10):
            case 0 | 1 | 2 | 3:
                vc = choose.choice(sorted(vc.name for vc in engine.scheduler.cluster.spec.virtual_clusters))
                gpus, priority = choose.choice((1, 2, 4, 4, 8)), choose.choice((0, 0, 0, 0, OPPORTUNISTIC))
                engine.submit(vc, gpus, priority, duration=choose.choice((10.0, 100.0, 1000.0)))
            case 4 | 5 | 6 if held:
                moving = [job for job in held if job.status is Status.MOVING]
                job = choose.choice(moving or held)
                engine.end(job, waits=bool(moving) or choose.random() < 0.2)
            case 7:
                engine.reconfigure(*choose.choice(specs))
            case _ if jobs:
                waiting = [job for job in jobs if job.status in (Status.WAITING, Status.RESERVED)]
                for job in waiting[:1]:
                    engine.scheduler.withdraw(job)
                engine.dispatch()
        for vc in engine.scheduler.queues:
            engine.scheduler.mark_dirty(vc)
        engine.dispatch()
        turns = [one for one in engine.issued if isinstance(one, Start | Reserve | Promote | Move)]
        assert not [one for one in turns if engine.scheduler.jobs[one.job].request.priority >= 0]


# -- jobs that start early ----------------------------------------------------------------------------------------


def test_early_job_is_promoted_at_its_turn() -> None:
    engine = SlowEngine(1, 1)
    own, early = engine.submit("a", 8), engine.submit("a", 8, early=True)
    assert engine.issued == [Start(early.number, Kind.OPPORTUNISTIC, where(early))]
    behind = engine.submit("a", 4)
    assert engine.scheduler.ahead(behind, 5) == (1, [early])
    engine.end(own)
    assert engine.issued == [Promote(early.number)]
    assert (early.status, behind.status) == (Status.GUARANTEED, Status.WAITING)


def moving(behind: int, policy: Policy | None = None) -> tuple[SlowEngine, Entry, Entry, Entry]:
    """At its turn an early job moves to the other half of the node of ``half``; one of ``behind`` GPUs is behind it."""
    engine = SlowEngine(1, 1, policy=policy)
    half, other_half = engine.submit("a", 4), engine.submit("a", 4)
    early, last = engine.submit("a", 4, early=True), engine.submit("a", behind)
    engine.end(other_half)
    assert engine.issued == [Move(early.number, True)]
    assert (early.status, last.status) == (Status.MOVING, Status.WAITING), "its cells are kept for it"
    return engine, half, early, last


def test_early_job_that_moves_keeps_its_turn() -> None:
    engine, half, early, behind = moving(4)
    former = where(early)
    engine.dispatch()
    assert not engine.issued
    engine.end(early, waits=True)
    assert engine.issued == [Start(early.number, Kind.GUARANTEED, where(early))]
    assert where(early).pods[0].node == where(half).pods[0].node != former.pods[0].node
    assert behind.status is Status.WAITING


def test_early_job_that_ends_while_it_moves() -> None:
    """Its turn is the next one's."""
    engine, _, early, behind = moving(4)
    engine.end(early)
    assert engine.issued == [Start(behind.number, Kind.GUARANTEED, where(behind))]


def test_nobody_passes_onto_kept_cells() -> None:
    engine, _, early, _ = moving(2, Greedy())
    engine.end(early, waits=True)
    assert early.status is Status.GUARANTEED


def test_stopped_early_job_has_no_turn() -> None:
    """It is requeued at its place."""
    engine = SlowEngine(1, 1)
    own, early, behind = engine.submit("a", 8), engine.submit("a", 8, early=True), engine.submit("a", 8)
    engine.scheduler.leaving(early)
    engine.end(own)
    assert (early.status, behind.status) == (Status.LEAVING, Status.GUARANTEED)
    engine.end(early, waits=True)
    assert early.status is Status.LENT, "no job of its VC waits before it"
    engine.end(behind)
    assert engine.issued == [Promote(early.number)]


@pytest.mark.parametrize("first", ["it ends", "its turn comes"])
def test_preempted_early_job_has_its_turn(first: str) -> None:
    """After its end it starts again; before, its preemption is not needed any more."""
    engine = SlowEngine(1, 1)
    own, early = engine.submit("a", 8), engine.submit("a", 8, early=True)
    owner = engine.submit("b", 8)
    assert Stop(early.number, owner.number, True) in engine.issued
    if first == "it ends":
        engine.end(early, waits=True)
        assert (early.status, owner.status) == (Status.WAITING, Status.GUARANTEED)
        engine.end(own)
        assert engine.issued == [Start(early.number, Kind.GUARANTEED, where(early))]
    else:
        engine.end(own)
        assert engine.issued == [Start(owner.number, Kind.GUARANTEED, where(owner)), Promote(early.number)]


def test_preempted_early_job_does_not_move() -> None:
    """Its turn comes on other GPUs while it is being stopped for another tenant: it starts there afterwards."""
    engine = SlowEngine(1, 1)
    half, other_half = engine.submit("a", 4), engine.submit("a", 4)
    early, owner = engine.submit("a", 4, early=True), engine.submit("b", 8)
    assert Stop(early.number, owner.number, True) in engine.issued
    engine.end(other_half)
    assert (engine.issued, early.status) == ([], Status.LENT)
    engine.end(early, waits=True)
    assert (early.status, owner.status) == (Status.GUARANTEED, Status.GUARANTEED)
    assert where(early).pods[0].node == where(half).pods[0].node


def test_early_job_larger_than_its_vc_blocks_no_other() -> None:
    engine = SlowEngine(1, 1)
    engine.end(engine.submit("a", 8))
    too_many = Entry(99, Request("wide", "a", 0, (Member(2, 8),)), JobView("wide", 16, 99, 99), early=True)
    engine.scheduler.wait(too_many)
    engine.dispatch()
    assert too_many.status is Status.LENT
    assert engine.submit("a", 8).status is Status.RESERVED, "its VC's cells are not the wide one's"


# -- orders that change -------------------------------------------------------------------------------------------


class Turns(Watching):
    """An order that may change: by a number per job, then by submission."""

    def __init__(self) -> None:
        super().__init__(Reaction.SUSPEND)
        self.changed: dict[str, int] = {}

    def order(self, job: JobView) -> tuple[float, ...]:
        return (self.changed.get(job.job, 0), *super().order(job))


def test_order_changes_for_waiting_and_early_jobs() -> None:
    policy = Turns()
    engine = SlowEngine(1, 1, policy=policy)
    own, early, first, second = (engine.submit("a", 8, early=early) for early in (False, True, False, False))
    assert (early.status, engine.scheduler.ahead(second, 5)[1]) == (Status.LENT, [early, first])
    for entry, place in ((early, 2), (first, 3)):
        policy.changed[entry.name] = place
        engine.scheduler.rekey(entry)
    engine.dispatch()
    assert engine.scheduler.ahead(first, 5)[1] == [second, early]
    engine.end(own)
    assert second.status is Status.GUARANTEED
    engine.end(second)
    assert (early.status, first.status) == (Status.GUARANTEED, Status.WAITING)


def test_job_in_no_queue_has_the_new_order_later() -> None:
    """Its policy changed meanwhile."""
    engine = SlowEngine(1, 1)
    pauses = engine.submit("a", 8, duration=50.0)
    engine.end(pauses)
    engine.policies.assign({"a": SJF()})
    engine.scheduler.reconfigured()
    running, long = engine.submit("a", 8, duration=10.0), engine.submit("a", 8, duration=100.0)
    engine.scheduler.wait(pauses)
    engine.dispatch()
    engine.end(running)
    assert (pauses.status, long.status) == (Status.GUARANTEED, Status.WAITING)
    assert pauses.view.duration == 50.0


def test_victim_of_its_own_vc_stays_a_victim() -> None:
    """Until it has ended."""
    engine = SlowEngine(2, 1, policy=Tiresias((80.0,)))
    own = [engine.submit("a", 8, 5) for _ in range(2)]
    lent = engine.submit("a", 8, early=True)
    engine.now = 20.0
    engine.dispatch()
    new = engine.submit("a", 8, early=True)
    assert engine.issued == [Stop(lent.number, new.number, True)], "it has attained the limit"
    for one in own:
        engine.end(one)
        assert not [one for one in engine.issued if one.job == lent.number]
    assert new.status is Status.GUARANTEED
    engine.end(lent, waits=True)
    assert lent.status is Status.GUARANTEED


class Impatient(SJF):
    """Shortest first; a job that does not fit lets others pass for 100 seconds."""

    patience = 100.0


def test_job_out_of_patience_is_not_passed() -> None:
    """Though a newer one of its kind is before it."""
    engine = SlowEngine(1, 1, policy=Impatient())
    halves = [engine.submit("a", 4, duration=1.0) for _ in range(2)]
    old = engine.submit("a", 8, duration=20.0)
    engine.now = 110.0
    engine._jobs = 105
    newer = engine.submit("a", 8, duration=10.0)
    small = engine.submit("a", 4, duration=30.0)
    engine.end(halves[0])
    assert [one.status for one in (old, newer, small)] == [Status.WAITING] * 3
    engine.end(halves[1])
    engine.end(newer)
    assert (old.status, small.status) == (Status.GUARANTEED, Status.WAITING)


# -- past bugs: an index went wrong -------------------------------------------------------------------------------


def test_excluded_nodes_leave_no_ended_job_in_line() -> None:
    engine = SlowEngine(1, 1, policy=Tiresias((80.0,)))
    own, lent = engine.submit("a", 8, 5), engine.submit("a", 8, early=True)
    assert lent.status is Status.LENT
    engine.scheduler.exclude(lent, frozenset({"node-0"}))
    engine.end(lent)
    assert list(engine.scheduler.queues["a"].line) == []
    engine.end(own)


def test_job_that_is_stopped_for_good_is_no_victim() -> None:
    engine = SlowEngine(1, 1, policy=Tiresias((80.0,)))
    loan = engine.submit("a", 8, OPPORTUNISTIC)
    engine.scheduler.leaving(loan)
    engine.dispatch()
    for vc in "ba":
        engine.submit(vc, 8)
    engine.now = 20.0
    engine.submit("a", 8, OPPORTUNISTIC)
    engine.end(loan)


def test_marked_vc_may_be_gone_in_the_next_spec() -> None:
    engine = SlowEngine(1, 1)
    running, waits = engine.submit("a", 8), engine.submit("a", 8)
    engine.scheduler.withdraw(waits)
    engine.scheduler.release(running)
    engine.scheduler.cluster.reconfigure(nodes(0, 2))
    engine.scheduler.reconfigured()
    engine.dispatch()
