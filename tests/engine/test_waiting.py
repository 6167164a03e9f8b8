"""Every state in which a job waits means the same to whatever lists, counts and explains jobs, on both engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from hived.engine.dispatcher import Dispatcher
from hived.engine.explaining import Explainer
from hived.engine.job import EngineJob
from hived.engine.states import JOB_TABLE, Effect, JobEvent, JobState
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.local.explaining import JobExplainer
from hived.scheduling import Status
from hived.server.histories import STAYS
from hived.server.metrics import waiting_jobs

from ..engines.driver import Driver, job, shares
from ..kubernetes.pods import gang_of
from ..kubernetes.replica import racks

WHY = "somebody wants it so"


def path_to(state: JobState) -> list[JobEvent]:
    """The fewest events that lead a queued job to a state."""
    paths: deque[tuple[JobState, list[JobEvent]]] = deque([(JobState.QUEUED, [])])
    while paths[0][0] is not state:
        before, path = paths.popleft()
        paths += [(after, [*path, event]) for (of, event), (after, _) in JOB_TABLE.items() if of is before]
    return paths[0][1]


def lead(jobs: Dispatcher[Any, Any], job: EngineJob, state: JobState, start: Callable[[], object]) -> None:
    """Lead a queued job to a state that it waits in; ``start`` has it started."""
    for event in path_to(state):
        if event is JobEvent.STARTED:
            start()
            assert job.state is JobState.RUNNING
            continue
        assert JOB_TABLE[job.state, event][1] in (Effect.KEEP, Effect.RELEASE)
        jobs.becomes(job, event, None, 1.0, {"why": WHY, "cause": "moved", "at": 60.0})


def lead_back(jobs: Dispatcher[Any, Any], job: EngineJob) -> None:
    """Have a job that is aside wait for GPUs again."""
    back = next(event for (of, event), (to, _) in JOB_TABLE.items() if of is job.state and to is JobState.QUEUED)
    jobs.becomes(job, back, None, 2.0, {})


def shown(jobs: Dispatcher[Any, Any], explainer: Explainer[Any], job: EngineJob) -> dict[str, Any]:
    """What lists, counts and explanations say of the job."""
    counted = {kind: number for (vc, kind), number in waiting_jobs(jobs) if vc == job.vc}
    head, *lines = explainer.explain(job, None)
    what = "is held" if job.state is JobState.HELD else "waits"
    assert (job.vc in head, what in head) == (True, True)
    return {
        "listed": [other.name for other in jobs.waiting(10)],
        "counted": sum(counted.values()),
        "in line": job.entry.status is Status.WAITING,
        "reasons": [type(reason).__name__ for reason in explainer.reasons(job)],
        "lines": lines,
        "shortly": explainer.shortly(job),
        "stay": STAYS[job.state] != "waiting",
    }


#: of a job that is aside
SHOWN = {"in line": False, "reasons": [], "lines": [WHY], "shortly": [WHY], "stay": True}
ASIDE = [state for state in JobState if state.aside]


@pytest.mark.parametrize("state", ASIDE)
def test_aside_on_one_machine(state: JobState) -> None:
    engine = Driver()
    first, one, late = (engine.submit(job("vision", gpus)) for gpus in (4, 3, 4))
    jobs = engine.job_scheduler
    lead(jobs, one, state, lambda: engine.end(first))
    found = shown(jobs, JobExplainer(jobs), one)
    assert found == {**SHOWN, "listed": [late.name, one.name], "counted": 1}
    there = [other.name for other in (first, one, late) if not other.state.ended]
    assert jobs.stranded("vision", shares(("vision", 2)), jobs.cluster.spec) == there
    lead_back(jobs, one)
    assert (one.entry.status, late.entry.status) == (Status.WAITING, Status.WAITING)
    assert WHY not in JobExplainer(jobs).explain(one, None)


@pytest.mark.parametrize("state", ASIDE)
def test_aside_on_kubernetes(state: JobState) -> None:
    world = racks()
    pods = gang_of("one", 2, 4, "vision")
    world.create(*pods)
    jobs = world.gang_scheduler
    gang = jobs.gangs["t/one"]
    lead(jobs, gang, state, lambda: [world.ask(pod) for pod in pods])
    found = shown(jobs, GangExplainer(jobs), gang)
    assert found == {**SHOWN, "listed": ["t/one"], "counted": 0}
    lead_back(jobs, gang)
    assert WHY not in GangExplainer(jobs).explain(gang, None)
    lead(jobs, gang, state, lambda: jobs.dispatch(1.0))
    jobs.end(gang, 2.0)
    assert gang.state is JobState.ENDED


@pytest.mark.parametrize("state", [state for state in JobState if state.waits and not state.aside])
def test_any_other_that_waits_is_for_gpus(state: JobState) -> None:
    """In line, or with a reservation: the core says why, and it is counted by its reason."""
    engine = Driver()
    engine.submit(job("vision", 4))
    loan = engine.submit(job("vision", 4, priority=-1))
    one = engine.submit(job(*("speech", 2) if state is JobState.RESERVED else ("vision", 4)))
    assert (loan.state, one.state) == (JobState.STOPPING if one.reserved else JobState.RUNNING, state)
    jobs = engine.job_scheduler
    found = shown(jobs, JobExplainer(jobs), one)
    assert (found["listed"], found["counted"], found["in line"]) == ([one.name], 1, not one.reserved)
    assert found["reasons"] == ["WaitingForPreemption" if one.reserved else "VcExhausted"]
    assert found["stay"] is one.reserved
