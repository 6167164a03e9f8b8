"""Policies that hypothesis makes up: any order by what a job shows, any answers that are allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from hypothesis import strategies as st

from hived.cells import HostClass
from hived.scheduling import Displaced, JobView, Policy, Reaction

#: by what a policy may order, as (what, sign); a running job never comes after one that waits for being equal
_TERMS = ("gpus", "submitted", "sequence", "attained", "reviewed", "duration", "remaining", "queue", "odd", "name")


@dataclass(kw_only=True)
class MadeUp(Policy):
    """Every answer is a pure function of the question and of these fields."""

    terms: tuple[tuple[str, int], ...]
    preempts: bool
    patience: float
    resume_s: float
    slice_s: float | None  #: seconds of attained service between reviews; None: always
    ranking: str
    restarts: int  #: every so manyth job loses its work; 0: none
    relaxes: int  #: every so manyth job gives up its affinity; 0: none
    name: str = field(default="made-up")
    clairvoyant: bool = field(default=True)

    def order(self, job: JobView) -> tuple[float, ...]:
        return tuple(sign * self._term(job, what) for what, sign in self.terms)

    def _term(self, job: JobView, what: str) -> float:
        if what == "queue":
            return job.attained // (self.slice_s or 0.004)
        if what == "odd":
            return job.sequence % 3
        if what == "name":
            return sum(map(ord, job.tenant + job.job)) % 7
        return float(getattr(job, what))

    def review_after(self, job: JobView) -> float | None:
        return self.slice_s

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        if self.ranking == "packed":
            return super().rank(host, gpus)
        if self.ranking == "spread":
            return (-host.free.free,)
        if self.ranking == "whole":  # only hosts in no use
            return (0,) if host.guaranteed == 0 else None
        return ()

    def react(self, event: Displaced) -> Reaction:
        loses = self.restarts and event.victim.sequence % self.restarts == 0
        return Reaction.RESTART if loses else Reaction.SUSPEND

    def relax(self, job: JobView) -> bool:
        return bool(self.relaxes) and job.sequence % self.relaxes == 0


def made_up_policies() -> st.SearchStrategy[MadeUp]:
    """Policies under which every job ends: what a job has had only ever moves it one way."""
    return st.builds(
        MadeUp,
        terms=st.lists(st.tuples(st.sampled_from(_TERMS), st.sampled_from([1, 1, -1])), max_size=4).map(tuple),
        preempts=st.booleans(),
        patience=st.sampled_from([0.0, 3.0, inf]),
        resume_s=st.sampled_from([0.0, 0.0, 0.25]),
        slice_s=st.sampled_from([inf, 1.0, 7.5]),
        ranking=st.sampled_from(["packed", "packed", "spread", "whole", "any"]),
        restarts=st.sampled_from([0, 0, 2]),
        relaxes=st.sampled_from([0, 2]),
    )
