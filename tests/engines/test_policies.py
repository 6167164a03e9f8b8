"""Policies by name, live: of the spec's virtual clusters, and what becomes of a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hived.cli.up import _with_policies
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job, JobState
from hived.errors import InputError, PolicyError, RequestError
from hived.events.replay import replay
from hived.policies import by_vc
from hived.spec.compiled import ClusterSpec

from .living import Lives, ended, other_spec, shell, state

STAYS = "exec sleep 600"
BROKEN = """
from hived.scheduling import Policy

class Broken(Policy):
    name = "broken"

    def order(self, job):
        return (1 / (job.gpus - 2),)
"""


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


def spec(policy: str) -> ClusterSpec:
    """One tenant with eight GPUs, and its policy."""
    one = other_spec(("vision", 8))
    return replace(one, virtual_clusters=(replace(one.virtual_clusters[0], policy=policy),))


async def fills(engine: Engine) -> tuple[Job, Job, Job]:
    """A job of six GPUs, one of four that does not fit, and one of two that does."""
    first = engine.submit(shell("vision", STAYS, 6))
    await state(engine, first, JobState.RUNNING)
    large, small = engine.submit(shell("vision", STAYS, 4)), engine.submit(shell("vision", STAYS, 2))
    return first, large, small


@pytest.mark.parametrize(("policy", "passes"), [("greedy", True), ("greedy:patience=0", False), ("", False)])
def test_a_virtual_cluster_has_the_policy_of_its_spec(lives: Lives, policy: str, passes: bool) -> None:
    lives.spec = spec(policy)

    async def story(engine: Engine) -> tuple[JobState, JobState]:
        _, large, small = await fills(engine)
        await asyncio.sleep(0.1)
        return engine.find(str(large.id)).state, engine.find(str(small.id)).state

    large, small = lives.live(story)
    assert (large, small.holds) == (JobState.QUEUED, passes)


def test_a_new_spec_brings_its_policy_to_jobs_that_wait(lives: Lives) -> None:
    lives.spec = spec("")

    async def story(engine: Engine) -> JobState:
        _, _, small = await fills(engine)
        await asyncio.sleep(0.05)
        assert engine.find(str(small.id)).state is JobState.QUEUED
        with pytest.raises(InputError, match=r"unknown policy 'gredy'.*did you mean greedy"):
            engine.reconfigure(spec("gredy"))
        engine.reconfigure(spec("greedy"))
        return (await state(engine, small, JobState.RUNNING)).state

    assert lives.live(story) is JobState.RUNNING


def test_a_new_spec_comes_where_a_virtual_cluster_has_no_jobs_any_more(lives: Lives) -> None:
    lives.spec = other_spec(("vision", 4), ("speech", 4))

    async def story(engine: Engine) -> JobState:
        await ended(engine, engine.submit(shell("vision", "true", 1)))
        stays = engine.submit(shell("speech", STAYS, 1))
        await state(engine, stays, JobState.RUNNING)
        engine.job_scheduler.scheduler.mark_dirty("vision")
        engine.reconfigure(other_spec(("vision", 2), ("speech", 6)))
        return (await ended(engine, engine.submit(shell("vision", "true", 2))))[0].state

    assert lives.live(story) is JobState.SUCCEEDED


def test_a_policy_that_orders_by_duration_gets_the_time_limit_and_refuses_jobs_without_one(lives: Lives) -> None:
    lives.spec = spec("sjf")

    async def story(engine: Engine) -> list[Job]:
        with pytest.raises(RequestError, match="sjf, orders jobs by their duration: give a time limit"):
            engine.submit(shell("vision", "true", 1))
        first = engine.submit(shell("vision", "sleep 0.3", 8, time_limit_s=50.0))
        await state(engine, first, JobState.RUNNING)
        long, short = (engine.submit(shell("vision", "true", 8, time_limit_s=limit)) for limit in (300.0, 30.0))
        return await ended(engine, long, short)

    long, short = lives.live(story)
    starts = [event.job for event in lives.events() if event.kind == "started"]
    assert starts.index(short.id) < starts.index(long.id)


def test_jobs_without_a_time_limit_come_last_where_the_policy_is_a_later_one(lives: Lives) -> None:
    lives.spec = spec("")

    async def story(engine: Engine) -> list[Job]:
        first = engine.submit(shell("vision", "sleep 0.3", 8))
        await state(engine, first, JobState.RUNNING)
        unknown, limited = (
            engine.submit(shell("vision", "true", 8)),
            engine.submit(shell("vision", "true", 8, time_limit_s=30.0)),
        )
        engine.reconfigure(spec("sjf"))
        return await ended(engine, unknown, limited)

    unknown, limited = lives.live(story)
    starts = [event.job for event in lives.events() if event.kind == "started"]
    assert starts.index(limited.id) < starts.index(unknown.id)


def test_a_loan_goes_to_a_job_of_an_earlier_queue_of_its_tenant(lives: Lives) -> None:
    """Both jobs are opportunistic; the first has attained its limit when the second comes or soon after."""
    first, *others = other_spec(("vision", 1), ("speech", 7)).virtual_clusters
    lives.spec = replace(
        other_spec(("vision", 1), ("speech", 7)),
        virtual_clusters=(replace(first, policy="tiresias:limits=3"), *others),
    )

    async def story(engine: Engine) -> tuple[Job, Job]:
        long = engine.submit(shell("vision", "exec sleep 1.2", 7, priority=-1))
        await state(engine, long, JobState.RUNNING)
        short = engine.submit(shell("vision", "exec sleep 0.1", 7, priority=-1))
        assert engine.find(str(short.id)).state is JobState.QUEUED
        later, earlier = await ended(engine, long, short)
        return later, earlier

    long, short = lives.live(story)
    assert (long.state, short.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert (long.resumes, short.resumes) == (1, 0)


def test_a_policy_that_raises_ends_the_engine_and_the_next_one_takes_the_jobs_over(
    lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_policy.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    lives.spec = spec("broken_policy:Broken")

    async def breaks(engine: Engine) -> Exception:
        await state(engine, engine.submit(shell("vision", STAYS, 1)), JobState.RUNNING)
        assert engine.failed is not None
        with pytest.raises(PolicyError):
            engine.submit(shell("vision", "true", 2))
        return engine.failed.result()

    error = lives.live(breaks, killed=True)
    assert isinstance(error, PolicyError)
    assert str(error).startswith("policy broken, job job-2, at ")
    assert str(error).endswith("order raises ZeroDivisionError: division by zero")
    lives.spec = spec("")

    async def goes_on(engine: Engine) -> tuple[JobState, JobState]:
        later = engine.submit(shell("vision", "true", 2))
        await ended(engine, later)
        return engine.find("1").state, engine.find(str(later.id)).state

    assert lives.live(goes_on) == (JobState.RUNNING, JobState.SUCCEEDED)


def test_the_event_log_has_the_policies_and_replays_with_their_ranks(lives: Lives) -> None:
    from hived.cluster import Cluster
    from hived.scheduling import Policies

    lives.spec = spec("fifo")

    async def story(engine: Engine) -> None:
        jobs = [engine.submit(shell("vision", "true", gpus)) for gpus in (1, 2, 4, 1)]
        await ended(engine, *jobs)

    def make(spec: ClusterSpec) -> Cluster:
        policies = Policies(by_vc(spec)["vision"], by_vc(spec))
        return Cluster(spec, rank=policies.rank, ranks=policies.ranks)

    lives.live(story)
    assert replay(lives.lines(), make).spec.virtual_clusters[0].policy == "fifo"


def test_the_policies_of_a_start_go_over_those_of_the_spec_and_of_the_last_start() -> None:
    def named(changed: ClusterSpec) -> dict[str, str]:
        return {vc.name: vc.policy for vc in changed.virtual_clusters}

    plain = other_spec(("a", 2), ("b", 2), ("c", 4))
    own = replace(
        plain, virtual_clusters=(replace(plain.virtual_clusters[0], policy="fifo"), *plain.virtual_clusters[1:])
    )
    assert named(_with_policies(own, [], None)) == {"a": "fifo", "b": "", "c": ""}
    assert named(_with_policies(own, ["b=greedy"], None)) == {"a": "fifo", "b": "greedy", "c": ""}
    given = _with_policies(own, ["b=tiresias:limits=10/20", "greedy"], None)
    assert named(given) == {"a": "greedy", "b": "tiresias:limits=10/20", "c": "greedy"}
    assert named(_with_policies(plain, [], given)) == named(given)
    assert named(_with_policies(plain, ["c=sjf"], given)) == named(given) | {"c": "sjf"}
    with pytest.raises(InputError, match="no tenant 'd'"):
        _with_policies(plain, ["d=greedy"], None)
    with pytest.raises(InputError, match="did you mean sjf"):
        _with_policies(plain, ["a=sjff"], None)
    gone = _with_policies(plain, ["greedy"], None)
    gone = replace(gone, virtual_clusters=tuple(replace(vc, policy="gone:P") for vc in gone.virtual_clusters))
    with pytest.raises(InputError, match=r"No module named 'gone'.*choose another: hived up --policy NAME"):
        _with_policies(plain, [], gone)
    for last, spec_ in ((gone, plain), (None, gone)):
        assert named(_with_policies(spec_, ["sjf"], last)) == {"a": "sjf", "b": "sjf", "c": "sjf"}
