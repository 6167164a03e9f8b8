"""Policies by name, live: of the spec's virtual clusters, and what becomes of a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hived.cli.up import _with_policies
from hived.engine.dispatcher import VAIN_RUNS
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.errors import InputError, PolicyError, RequestError
from hived.spec.compiled import ClusterSpec

from .driver import Driver, job, shares, states
from .living import STAYS, Lives, ended, record_faults, running, shell

BROKEN = """
from hived.scheduling import Policy

class Broken(Policy):
    name = "broken"

    def order(self, job):
        return (1 / (job.gpus - 2),)
"""


def spec(policy: str) -> ClusterSpec:
    """One tenant with eight GPUs, and its policy."""
    one = shares(("vision", 8))
    return replace(one, virtual_clusters=(replace(one.virtual_clusters[0], policy=policy),))


@pytest.mark.parametrize("policy", ["greedy", "greedy:patience=0", ""])
def test_vc_has_the_policy_of_its_spec(policy: str) -> None:
    """And what waits has that of a new spec."""
    engine = Driver(spec(policy))
    jobs = [engine.submit(job("vision", gpus)) for gpus in (6, 4, 2)]
    assert states(*jobs) == f"running queued {'running' if policy == 'greedy' else 'queued'}"
    with pytest.raises(InputError, match=r"unknown policy 'gredy'.*did you mean greedy"):
        engine.reconfigure(spec("gredy"))
    engine.reconfigure(spec("greedy"))
    assert states(*jobs) == "running queued running"


def test_policy_without_progress_is_told() -> None:
    """Once in a row of short runs; a long run begins another row, and a higher priority is no policy's doing."""
    engine = Driver(spec("tests.policies:Swaps"))
    one, other = (engine.submit(job("vision", 8)) for _ in range(2))

    def swap(seconds: float = 2.0) -> None:
        runs = one if states(one) == "running" else other
        engine.wait(seconds)
        assert states(runs) == "stopping"
        engine.gone(runs)

    def told() -> list[str]:
        return [event_text(event) for event in engine.events if event.kind == "no_progress"]

    for _ in range(2 * VAIN_RUNS - 2):
        swap()
    assert told() == []
    swap()
    (line,) = told()
    assert line.startswith(f"policy swaps of vision has displaced {one.name} 20 times in a row, each time after less")
    for _ in range(2 * VAIN_RUNS):
        swap()
    assert len(told()) == 2, "of either job"
    engine.check_record()


@pytest.mark.parametrize("later", [False, True], ids=["from the start", "by a new spec"])
def test_order_by_time_limits(later: bool) -> None:
    """Jobs without a time limit come last where the policy is a later one."""
    engine = Driver(spec("" if later else "sjf"))
    first = engine.submit(job("vision", 8, time_limit_s=50.0))
    long = engine.submit(job("vision", 8, time_limit_s=None if later else 300.0))
    short = engine.submit(job("vision", 8, time_limit_s=30.0))
    if later:
        engine.reconfigure(spec("sjf"))
    engine.end(first)
    assert states(long, short) == "queued running"


def test_order_by_time_limits_needs_them(lives: Lives) -> None:
    lives.spec = spec("sjf")

    async def story(engine: Engine) -> None:
        with pytest.raises(RequestError, match="sjf, orders jobs by their duration: give a time limit"):
            engine.submit(shell("vision", "true", 1))

    lives.live(story)


def test_loan_goes_to_a_job_of_an_earlier_queue() -> None:
    """Both jobs are opportunistic, of one tenant; the first has attained its limit when the second comes."""
    plain = shares(("vision", 1), ("speech", 7))
    first, *others = plain.virtual_clusters
    engine = Driver(replace(plain, virtual_clusters=(replace(first, policy="tiresias:limits=3"), *others)))
    long = engine.submit(job("vision", 7, priority=-1))
    short = engine.submit(job("vision", 7, priority=-1))
    assert states(long, short) == "running queued"
    engine.wait(1.2)
    engine.gone(long)
    assert states(long, short) == "queued running"
    engine.end(short)
    assert (states(long), long.resumes, short.resumes) == ("running", 1, 0)


def test_policy_that_raises_ends_the_engine(lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes the jobs over."""
    (tmp_path / "broken_policy.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    lives.spec = spec("broken_policy:Broken")

    async def breaks(engine: Engine) -> Exception:
        await running(engine, shell("vision", STAYS, 1))
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
        (later,) = await ended(engine, engine.submit(shell("vision", "true", 2)))
        return engine.find("1").state, later.state

    assert lives.live(goes_on) == (JobState.RUNNING, JobState.SUCCEEDED)


def test_event_log_replays_with_the_policies_ranks(lives: Lives) -> None:
    lives.spec = spec("fifo")

    async def story(engine: Engine) -> None:
        await ended(engine, *(engine.submit(shell("vision", "true", gpus)) for gpus in (1, 2, 4, 1)))

    lives.live(story)
    with lives.store() as store:
        assert record_faults(store)[0] == []


def test_policies_of_a_start_go_over_those_before() -> None:
    """Those of the spec, and of the last start."""

    def named(changed: ClusterSpec) -> dict[str, str]:
        return {vc.name: vc.policy for vc in changed.virtual_clusters}

    plain = shares(("a", 2), ("b", 2), ("c", 4))
    first, *others = plain.virtual_clusters
    own = replace(plain, virtual_clusters=(replace(first, policy="fifo"), *others))
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
    gone = replace(plain, virtual_clusters=tuple(replace(vc, policy="gone:P") for vc in plain.virtual_clusters))
    with pytest.raises(InputError, match=r"No module named 'gone'.*choose another: hived up --policy NAME"):
        _with_policies(plain, [], gone)
    for last, now in ((gone, plain), (None, gone)):
        assert named(_with_policies(now, ["sjf"], last)) == {"a": "sjf", "b": "sjf", "c": "sjf"}
