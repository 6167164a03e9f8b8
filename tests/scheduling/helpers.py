"""An engine whose victims end at once, a harness for scenarios, and a tracker that follows the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hived.cluster import OPPORTUNISTIC, Cluster, Member, Placement, Request, Sharing
from hived.policies import YarnCS
from hived.scheduling import (
    Displaced,
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
    Stop,
)
from hived.scheduling.checks import check_scheduler
from hived.spec.compiled import ClusterSpec

from ..cluster.helpers import devices
from ..strategies import NODE, cluster_of, nodes_of_8, vc

LETTERS = {None: ".", Kind.GUARANTEED: "G", Kind.OPPORTUNISTIC: "O"}


def nodes(a: int, b: int = 0, c: int = 0) -> ClusterSpec:
    """Tenants a, b and c with the given numbers of nodes of 8 GPUs."""
    chain = nodes_of_8(a + b + c)
    return cluster_of(chain, *(vc(name, (chain, NODE, n)) for name, n in zip("abc", (a, b, c), strict=True) if n))


class Watching(Policy):
    """First come, first served; it records the displaced jobs."""

    name = "watching"

    def __init__(self, reaction: Reaction) -> None:
        self.reaction = reaction
        self.saw: list[tuple[str, str]] = []

    def react(self, event: Displaced) -> Reaction:
        self.saw.append((event.victim.job, event.by.job))
        return self.reaction


@dataclass
class TrackedJob:
    number: int
    request: Request  #: for guaranteed GPUs
    gpus: int
    outsized: bool  #: larger than its tenant's cluster
    never_runs: bool  #: too large for a loan as well
    kind: Kind | None = None
    placement: Placement | None = None

    @property
    def loan(self) -> Request:
        """Its request before its turn."""
        return replace(self.request, priority=OPPORTUNISTIC)


class Tracker:
    """The jobs and their placements, by the instructions alone; an instruction that cannot be carried out fails.

    It checks first come, first served: no job passes an earlier one of the same tenant.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, TrackedJob] = {}

    def apply(self, instructions: Sequence[Instruction]) -> None:
        for position, instruction in enumerate(instructions):
            job = self.jobs[instruction.job]
            match instruction:
                case Start(_, kind, placement):
                    assert job.kind is None, "only waiting jobs are started"
                    self._hold(job, kind, placement)
                case Reserve():
                    stops = instructions[position + 1 : position + 1 + len(instruction.victims)]
                    assert [type(stop) for stop in stops] == [Stop] * len(instruction.victims), "each victim is stopped"
                case Stop(_, by, _):
                    assert job.kind is Kind.OPPORTUNISTIC, "only opportunistic jobs are preempted"
                    taker = next(d for d in instructions[position:] if not isinstance(d, Stop))
                    assert isinstance(taker, Start)
                    assert (taker.job, taker.kind) == (by, Kind.GUARANTEED), (
                        "for the guaranteed job started right after"
                    )
                    assert devices(taker.placement) & devices(job.placement), "which needs some of its GPUs"
                    job.kind, job.placement = None, None
                case Promote():
                    assert job.kind is Kind.OPPORTUNISTIC, "only opportunistic jobs are promoted"
                    self._hold(job, Kind.GUARANTEED, job.placement)
                case Move():
                    assert job.kind is Kind.OPPORTUNISTIC, "only opportunistic jobs are moved"
                    taker = next(d for d in instructions[position + 1 :] if isinstance(d, Start))
                    assert (taker.job, taker.kind) == (job.number, Kind.GUARANTEED), "to guaranteed GPUs"
                    assert devices(taker.placement) != devices(job.placement), "to other GPUs"
                    job.kind, job.placement = None, None

    def _hold(self, job: TrackedJob, kind: Kind, placement: Placement | None) -> None:
        job.kind, job.placement = None, None
        for other in self.jobs.values():
            assert not devices(placement) & devices(other.placement), "GPUs are held once"
        for earlier in self.jobs.values():
            if earlier.never_runs or earlier.number > job.number or earlier is job:
                continue
            if (earlier.request.vc, earlier.outsized) == (job.request.vc, job.outsized):
                if kind is Kind.GUARANTEED:
                    assert earlier.kind is Kind.GUARANTEED, "no job is guaranteed before an earlier one"
                else:
                    assert earlier.kind is not None, "no job gets a loan while an earlier one waits"
        assert kind is Kind.OPPORTUNISTIC or not job.outsized
        job.kind, job.placement = kind, placement

    def running(self) -> list[int]:
        return [number for number, job in self.jobs.items() if job.kind is not None]


class Instant:
    """A scheduler with an engine whose victims end at once. Each event returns its instructions."""

    def __init__(self, cluster: Cluster, policy: Policy, early: bool = True) -> None:
        self.scheduler = Scheduler(cluster, policy, self._carry_out, explains=False)
        self.early = early
        self._issued: list[Instruction] = []

    def submit(self, number: int, vc: str, job: JobView) -> list[Instruction]:
        request = Request(job.job, vc, 0, (Member(1, job.gpus),), whole_nodes=True)
        self.scheduler.wait(Entry(number, request, job, self.early, job.gpus))
        return self._dispatch()

    def finish(self, numbers: Sequence[int]) -> list[Instruction]:
        for number in numbers:
            self.scheduler.release(self.scheduler.jobs[number])
        return self._dispatch()

    def _dispatch(self) -> list[Instruction]:
        self.scheduler.dispatch()
        issued, self._issued = self._issued, []
        return issued

    def _carry_out(self, instruction: Instruction) -> None:
        self._issued.append(instruction)
        if isinstance(instruction, (Stop, Move)):
            self.scheduler.release(self.scheduler.jobs[instruction.job], waits=True)


class Harness:
    """A scheduler over a cluster whose instructions are checked and tracked after every event."""

    def __init__(
        self, cluster: Cluster | Sharing, spec: ClusterSpec, policy: Policy | None = None, opportunistic: bool = True
    ) -> None:
        policy = policy or YarnCS()
        self.cluster = cluster if isinstance(cluster, Cluster) else Cluster(spec, cluster, Policies(policy).rank)
        self.engine = Instant(self.cluster, policy, opportunistic)
        self.scheduler = self.engine.scheduler
        self.tenants = tuple(vc.name for vc in spec.virtual_clusters)
        self.tracker = Tracker()
        self.instructions: list[Instruction] = []
        self.submitted = 0
        self._numbers: dict[str, int] = {}
        of_chain: dict[str, int] = {}
        for chain, node, _ in self.cluster.nodes():
            of_chain[chain] = self._numbers[node] = of_chain.get(chain, -1) + 1

    def submit(self, tenant: str | int, gpus: int) -> int:
        """A job arrives; its number."""
        vc = tenant if isinstance(tenant, str) else self.tenants[tenant]
        number = self.submitted
        self.submitted += 1
        request = Request(f"job-{number}", vc, 0, (Member(1, gpus),), whole_nodes=True)
        outsized = self.cluster.never_fits(request)
        never_runs = outsized and self.cluster.never_fits(replace(request, priority=OPPORTUNISTIC))
        self.tracker.jobs[number] = TrackedJob(number, request, gpus, outsized, never_runs)
        self.instructions = self.engine.submit(number, vc, JobView(request.group, gpus, number, number))
        self._check()
        return number

    def finish(self, *numbers: int) -> None:
        for number in numbers:
            del self.tracker.jobs[number]
        self.instructions = self.engine.finish(numbers)
        self._check()

    def _check(self) -> None:
        self.tracker.apply(self.instructions)
        check_scheduler(self.scheduler)
        assert set(self.scheduler.jobs) == set(self.tracker.jobs)

    def kinds(self, *numbers: int) -> str:
        """The kind of each job, in the given order: G, O, or a dot for a waiting job."""
        return "".join(LETTERS[self.tracker.jobs[number].kind] for number in numbers)

    def nodes(self, number: int) -> list[int]:
        return sorted({node for node, _ in self._at(self.tracker.jobs[number].placement)})

    def _at(self, placement: Placement | None) -> tuple[tuple[int, int], ...]:
        pods = () if placement is None else placement.pods
        return tuple((self._numbers[node], sum(1 << device for device in leaves)) for node, leaves in pods)

    @property
    def answer(self) -> list[tuple[object, ...]]:
        """The instructions of the last event, with numbers of nodes and masks of devices for placements."""
        rows: list[tuple[object, ...]] = []
        for instruction in self.instructions:
            match instruction:
                case Start(job, kind, placement):
                    rows.append(("start", job, LETTERS[kind], self._at(placement)))
                case Stop(job, by, keeps_work):
                    rows.append(("stop", job, by, keeps_work))
                case Promote(job):
                    rows.append(("promote", job))
                case Move(job, keeps_work):
                    rows.append(("move", job, keeps_work))
        return rows
