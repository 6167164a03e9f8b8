"""Any small cluster and any small trace, as the text of their files; any policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from hypothesis import strategies as st

from hived.cells import HostClass
from hived.policies import policy_names
from hived.scheduling import Displaced, JobView, Policy, Reaction
from hived.simulator.traces import Trace

from .helpers import Row, spec_text, trace_of, trace_text


@dataclass(frozen=True)
class Case:
    """A spec and a trace for its tenants."""

    spec: str
    trace: str


@st.composite
def specs(draw: st.DrawFn) -> tuple[str, list[str]]:
    """One or two chains of racks, nodes and cells in nodes; tenants with cells of any level, as many as fit."""
    types: dict[str, tuple[str, int]] = {}
    nodes: list[str] = []
    cells: list[dict[str, Any]] = []
    free: dict[str, list[int]] = {}  # per chain and level: cells not reserved
    paths: dict[str, list[str]] = {}
    devices = draw(st.sampled_from([["V100"], ["V100", "V100"], ["V100", "K80"]]))
    for number, device in enumerate(devices):
        fanouts = draw(st.sampled_from([(2, 2), (2, 2, 2), (4, 4), (1, 4), (3,), (2, 2, 2, 2)]))
        racks = draw(st.sampled_from([None, None, 2, 3]))
        names = [device, *(f"C{number}-{level}" for level in range(1, len(fanouts))), f"NODE{number}"]
        if racks:
            names.append(f"RACK{number}")
        for child, name, fanout in zip(names, names[1:], [*fanouts, racks or 0], strict=False):
            types[name] = (child, fanout)
        nodes.append(f"NODE{number}")
        tops = draw(st.integers(1, 3))
        for top in range(tops):
            if racks:
                children = [{"cellAddress": f"c{number}-n{top * racks + n}"} for n in range(racks)]
                cells.append({"cellType": names[-1], "cellChildren": children})
            else:
                cells.append({"cellType": names[-1], "cellAddress": f"c{number}-n{top}"})
        free[names[-1]] = [0] * (len(names) - 1) + [tops]
        paths[names[-1]] = names
    tenants: dict[str, dict[str, int]] = {f"t{n}": {} for n in range(draw(st.integers(1, 3)))}
    for _ in range(draw(st.integers(1, 6))):
        chain = draw(st.sampled_from(sorted(free)))
        level = draw(st.integers(0, len(paths[chain]) - 1))
        if _take(free[chain], level, [types[name][1] for name in paths[chain][1:]]):
            tenant = tenants[draw(st.sampled_from(sorted(tenants)))]
            kind = ".".join(reversed(paths[chain][level:]))
            tenant[kind] = tenant.get(kind, 0) + 1
    return spec_text(types, cells, tenants, nodes), sorted(tenants)


def _take(free: list[int], level: int, fanouts: list[int]) -> bool:
    """Reserve a cell, a larger one split for it where need be."""
    for above in range(level, len(free)):
        if free[above]:
            free[above] -= 1
            for split in range(above - 1, level - 1, -1):
                free[split] += fanouts[split] - 1
            return True
    return False


@st.composite
def cases(draw: st.DrawFn, max_jobs: int = 40) -> Case:
    """Many jobs in little time, so that they meet: the same instants, no duration, too large for anything."""
    spec, tenants = draw(specs())
    unit = draw(st.sampled_from([1000, 1000, 250, 1]))
    job = st.tuples(
        st.sampled_from(tenants),
        st.integers(0, 12),
        st.one_of(st.integers(1, 15), st.integers(0, 60)),
        st.sampled_from([1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 20, 200]),
    )
    jobs = draw(st.lists(job, min_size=1, max_size=max_jobs))
    rows: list[Row] = [
        (f"j{n}", tenant, _seconds(submit * unit), _seconds(duration * unit), gpus)
        for n, (tenant, submit, duration, gpus) in enumerate(jobs)
    ]
    return Case(spec, trace_text(rows))


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"


@st.composite
def prioritised(draw: st.DrawFn, max_jobs: int = 30) -> tuple[Case, Trace]:
    """A cluster and a trace with several priorities."""
    case = draw(cases(max_jobs))
    trace = trace_of(case.trace)
    levels = draw(st.lists(st.sampled_from([0, 0, 0, 5, 1000]), min_size=len(trace.jobs), max_size=len(trace.jobs)))
    jobs = tuple(job._replace(priority=level) for job, level in zip(trace.jobs, levels, strict=True))
    return case, replace(trace, jobs=jobs)


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


def policies(but: tuple[str, ...] = ()) -> st.SearchStrategy[str | Policy]:
    """Those by name ``but`` some, with limits that small traces reach, and any."""
    named = [*policy_names(), "tiresias:limits=3/11/40", "greedy:patience=4"]
    return st.one_of(st.sampled_from([name for name in named if name not in but]), made_up_policies())
