"""A desk to submit jobs at, and a book that follows the decisions and knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hived.cluster import Kind, Part, SharedCluster
from hived.policies import Decision, Move, Policy, Preempt, Promote, Request, Scheduler, Start, YarnCS
from hived.spec.compiled import ClusterSpec

Scheme = Callable[[ClusterSpec], SharedCluster]


@dataclass
class Line:
    """A job in the book."""

    number: int
    tenant: int
    gpus: int
    outsized: bool  #: larger than its tenant's cluster
    hopeless: bool  #: and than any that could be lent
    kind: Kind | None = None
    parts: Sequence[Part] = field(default=())


class Book:
    """Who runs where, by the decisions alone; a decision that cannot be carried out fails the test.

    Knows first come, first served: nobody passes an earlier job of the same tenant.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, Line] = {}

    def write(self, decisions: Sequence[Decision]) -> None:
        """Carry out the answer to one event."""
        for position, decision in enumerate(decisions):
            job = self.jobs[decision.job]
            match decision:
                case Start(_, kind, parts):
                    assert job.kind is None, "only who waits is started"
                    self._hold(job, kind, parts)
                case Preempt(_, by, _):
                    assert job.kind is Kind.OPPORTUNISTIC, "only opportunistic jobs are preempted"
                    taker = next(d for d in decisions[position:] if not isinstance(d, Preempt))
                    assert taker.job == by, "for the job that is guaranteed right after"
                    assert isinstance(taker, Move) or (isinstance(taker, Start) and taker.kind is Kind.GUARANTEED)
                    assert any(
                        mine[:2] == theirs[:2] and mine.mask & theirs.mask
                        for mine in taker.parts
                        for theirs in job.parts
                    ), "which needs some of its GPUs"
                    job.kind, job.parts = None, ()
                case Promote():
                    assert job.kind is Kind.OPPORTUNISTIC, "only who runs opportunistically is promoted"
                    self._hold(job, Kind.GUARANTEED, job.parts)
                case Move(_, parts, _):
                    assert job.kind is Kind.OPPORTUNISTIC, "only who runs opportunistically is moved"
                    assert set(parts) != set(job.parts), "to other GPUs"
                    self._hold(job, Kind.GUARANTEED, parts)

    def _hold(self, job: Line, kind: Kind, parts: Sequence[Part]) -> None:
        job.kind, job.parts = None, ()
        for other in self.jobs.values():
            for chain, node, mask in other.parts:
                assert not any(p.chain == chain and p.node == node and p.mask & mask for p in parts), "GPUs held once"
        for earlier in self.jobs.values():
            if earlier.hopeless or earlier.number > job.number or earlier is job:
                continue
            if (earlier.tenant, earlier.outsized) == (job.tenant, job.outsized):
                if kind is Kind.GUARANTEED:
                    assert earlier.kind is Kind.GUARANTEED, "nobody is guaranteed before an earlier job"
                else:
                    assert earlier.kind is not None, "nobody borrows while an earlier job runs nowhere"
        assert kind is Kind.OPPORTUNISTIC or not job.outsized
        job.kind, job.parts = kind, parts

    def running(self) -> list[int]:
        """Numbers of the jobs that hold GPUs."""
        return [number for number, job in self.jobs.items() if job.kind is not None]


class Desk:
    """A scheduler over a cluster, one job after another, every answer checked and written into the book."""

    def __init__(
        self, scheme: Scheme, spec: ClusterSpec, policy: Policy | None = None, opportunistic: bool = True
    ) -> None:
        self.cluster = scheme(spec)
        self.scheduler = Scheduler(self.cluster, policy or YarnCS(), opportunistic)
        self.book = Book()
        self.said: list[Decision] = []
        self.submitted = 0

    def submit(self, tenant: str | int, gpus: int) -> int:
        """A job arrives; its number."""
        who = list(self.cluster.tenants).index(tenant) if isinstance(tenant, str) else tenant
        number = self.submitted
        self.submitted += 1
        outsized = not self.cluster.view(who).can_ever_fit(gpus)
        hopeless = outsized and not self.cluster.can_ever_lend(gpus)
        self.book.jobs[number] = Line(number, who, gpus, outsized, hopeless)
        self.said = self.scheduler.submit(number, who, Request(f"job-{number}", gpus, number, number))
        self._check()
        return number

    def finish(self, *numbers: int) -> None:
        """Running jobs end, all at one instant."""
        for number in numbers:
            del self.book.jobs[number]
        self.said = self.scheduler.finish(numbers)
        self._check()

    def _check(self) -> None:
        self.book.write(self.said)
        self.scheduler.validate()
        assert set(self.scheduler.jobs) == set(self.book.jobs)

    def kind(self, number: int) -> Kind | None:
        """How a job runs; None: it waits."""
        return self.book.jobs[number].kind

    def kinds(self, *numbers: int) -> str:
        """How jobs run: G, O or a dot for who waits, in the order asked for."""
        letters = {None: ".", Kind.GUARANTEED: "G", Kind.OPPORTUNISTIC: "O"}
        return "".join(letters[self.kind(number)] for number in numbers)

    def nodes(self, number: int) -> list[int]:
        """Where a job runs."""
        return sorted(part.node for part in self.book.jobs[number].parts)
