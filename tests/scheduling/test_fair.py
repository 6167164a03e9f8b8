"""Fair share: users of a virtual cluster are in the order of what they have had of late."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st

from hived.cluster import Cluster
from hived.engine.holdings import Holding, Use
from hived.engines.local.store import Store
from hived.errors import InputError
from hived.installed import form
from hived.policies import Fair, make_policy
from hived.scheduling.checks import check_scheduler
from hived.scheduling.decayed_use import REVIEW_S, DecayedUse
from hived.simulator import Sharing
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.spec import parse_spec
from hived.spec.compiled import ClusterSpec

from ..engines.driver import Driver, job, shares, states
from ..simulator.helpers import nodes_of_8
from ..strategies import given_in_tiers

GPUS = 16


def run(jobs: list[TraceJob], policy: str, sharing: Sharing = Sharing.PRIVATE) -> Record:
    """A run on two nodes of one tenant, checked after every event."""
    cluster = Cluster(parse_spec(nodes_of_8(2, {"a": 2}), "any"), sharing)
    return simulate(cluster, make_policy(policy), jobs, after_event=check_scheduler)


def crowd(seed: int, users: int, jobs: int) -> list[TraceJob]:
    """Jobs of some minutes for a few GPUs each, of users who are not alike: the first submits most."""
    rng = Random(seed)
    ranks = [1 / (user + 1) for user in range(users)]
    rows = sorted((rng.randint(0, 3000), rng.randint(60, 600), rng.randint(1, 4)) for _ in range(jobs))
    return [
        TraceJob(f"j{n}", "a", at * 1000, lasts * 1000, gpus, "pass", f"u{rng.choices(range(users), ranks)[0]}")
        for n, (at, lasts, gpus) in enumerate(rows)
    ]


def used(record: Record, jobs: list[TraceJob], at: int, half_life_s: float) -> dict[str, float]:
    """Decayed GPU seconds by user at a moment, summed of small steps of the runs so far."""
    found: dict[str, float] = defaultdict(float)
    for one in record.runs:
        end = min(one.end, at)
        if end > one.start:
            steps = 200
            width = (end - one.start) / steps / 1000
            mids = [(at - one.start) / 1000 - (step + 0.5) * width for step in range(steps)]
            weight = sum(exp(-log(2) * age / half_life_s) for age in mids) * width
            found[jobs[one.job].user] += one.gpus * weight
    return found


@pytest.mark.parametrize(("half_life", "seed"), [(300, 1), (3600, 2), (1e9, 3)])
def test_user_with_the_least_is_next(half_life: float, seed: int) -> None:
    """Of those who wait; but for what could be had since the ranks were reviewed."""
    jobs = crowd(seed, 5, 200)
    record = run(jobs, f"fair:half_life={half_life}:patience=0")
    starts = {one.job: one.start for one in record.runs}
    decided = 0
    for number, start in starts.items():
        others = {
            other.user
            for n, other in enumerate(jobs)
            if other.submit_ms < start < starts[n] and other.user != jobs[number].user
        }
        has = used(record, jobs, start, half_life)
        for user in others:
            decided += 1
            assert has[jobs[number].user] <= has[user] + 1.5 * REVIEW_S * GPUS, (number, user, start)
    assert decided > 100


def test_two_users_have_halves_whatever_they_submit() -> None:
    """As one submits ten times as many jobs as the other, and all at once."""
    jobs = [TraceJob(f"x{n}", "a", 0, 200_000, 2, "pass", "ann") for n in range(500)]
    jobs += [TraceJob(f"y{n}", "a", 1000 + n, 200_000, 2, "pass", "bob") for n in range(50)]
    record = run(jobs, "fair:patience=0")
    bob = max(one.end for one in record.runs if jobs[one.job].user == "bob")
    has = used(record, jobs, bob, inf)
    assert has["bob"] == pytest.approx(50 * 200 * 2)
    assert has["ann"] == pytest.approx(has["bob"], abs=2 * 200 * GPUS)  # what all GPUs do at a time, twice
    first_come = run(jobs, "yarn-cs")
    alone = max(one.end for one in first_come.runs if jobs[one.job].user == "bob")
    assert alone > 4 * bob


def test_old_use_counts_less() -> None:
    """Ann has had a day of all GPUs, a hundred half-lives ago; bob an hour of them just now."""
    jobs = [
        TraceJob("long", "a", 0, 86_400_000, 16, "pass", "ann"),
        TraceJob("hour", "a", 446_400_000, 3_600_000, 16, "pass", "bob"),
        TraceJob("bob", "a", 446_401_000, 1_000, 16, "pass", "bob"),
        TraceJob("ann", "a", 446_402_000, 1_000, 16, "pass", "ann"),
    ]
    for half_life, first in ((3600, "ann"), (1e9, "bob")):
        record = run(jobs, f"fair:half_life={half_life}")
        starts = {jobs[one.job].job_id: one.start for one in record.runs}
        assert min("ann", "bob", key=starts.__getitem__) == first


@st.composite
def _jobs(draw: st.DrawFn) -> list[TraceJob]:
    row = st.tuples(st.integers(0, 400), st.integers(0, 200), st.integers(1, 16), st.sampled_from("xyz"),
                    st.sampled_from([0, 0, 5]), st.sampled_from(["", "", "guaranteed", "opportunistic"]))  # fmt: skip
    rows = sorted(draw(st.lists(row, min_size=1, max_size=40)), key=lambda one: one[0])
    return [
        TraceJob(f"j{n}", draw(st.sampled_from("ab")), at * 1000, lasts * 1000, gpus, "pass", user, "", level, mode)
        for n, (at, lasts, gpus, user, level, mode) in enumerate(rows)
    ]


@given_in_tiers(60, 600, _jobs(), st.sampled_from(list(Sharing)), st.sampled_from([0, 50, 86_400]))
def test_counts_hold_after_every_event(jobs: list[TraceJob], sharing: Sharing, patience: int) -> None:
    cluster = Cluster(parse_spec(nodes_of_8(3, {"a": 2, "b": 1}), "any"), sharing)
    simulate(cluster, make_policy(f"fair:half_life=90:patience={patience}"), jobs, after_event=check_scheduler)


def test_wrong_half_life_is_refused() -> None:
    for wrong in ("0", "-5", "week", "nan"):
        with pytest.raises(InputError, match=r"policy fair: half_life is .* must be seconds above 0"):
            make_policy(f"fair:half_life={wrong}")


def machine(policy: str) -> ClusterSpec:
    one = shares(("vision", 8))
    return replace(one, virtual_clusters=(replace(one.virtual_clusters[0], policy=policy),))


def test_job_scheduler_goes_by_it_and_says_so() -> None:
    engine = Driver(machine("fair:half_life=3600:patience=0"))
    first = engine.submit(job("vision", 8, user="ann"))
    engine.wait(1000)
    ann, bob = (engine.submit(job("vision", 8, user=user)) for user in ("ann", "bob"))
    text = engine.explain(ann)
    assert f"1 job of its VC is ahead of it in line: {bob.name}" in text
    assert (
        "users of vision with less come first: ann has had 2.0 GPU hours of late, of which half count after 1 h" in text
    )
    engine.end(first)
    assert states(ann, bob) == "queued running"


def test_new_policy_begins_with_what_was_had() -> None:
    """The store knows who has had what, also of the time under another policy."""
    engine = Driver(machine("yarn-cs"), past_use=lambda vc, half_life: ({"bob": 1e6}, 1000.0))
    first = engine.submit(job("vision", 8, user="cat"))
    bob, ann = (engine.submit(job("vision", 8, user=user)) for user in ("bob", "ann"))
    engine.reconfigure(machine("fair"))
    engine.end(first)
    assert states(bob, ann) == "queued running"


@pytest.mark.parametrize("half_life", [3600.0, inf])
def test_store_sums_decayed_use(tmp_path: Path, half_life: float) -> None:
    store = Store(tmp_path)
    rows = [
        Holding(1, "ann", "vision", Use.GUARANTEED, 4, 1000.0, 5000.0),
        Holding(2, "ann", "vision", Use.OPPORTUNISTIC, 2, 9000.0, None),
        Holding(3, "bob", "vision", Use.GUEST, 1, 100.0, 200.0),
        Holding(4, "cat", "speech", Use.GUARANTEED, 8, 100.0, 200.0),
        Holding(None, "", "vision", Use.RESERVED, 8, 0.0, None),
    ]
    store.keep((), (), holdings=rows)
    at = 10_000.0

    def weight(start: float, end: float) -> float:
        steps = 10_000
        width = (end - start) / steps
        total: float = sum(0.5 ** ((at - start - (n + 0.5) * width) / half_life) * width for n in range(steps))
        return total

    found = store.decayed_use("vision", half_life, at)
    assert found == pytest.approx({
        "ann": 4 * weight(1000, 5000) + 2 * weight(9000, at), "bob": weight(100, 200),
    })  # fmt: skip
    store.close()


def test_fair_is_a_policy_with_the_week_of_slurm() -> None:
    assert (Fair().half_life_s, make_policy("fair").patience) == (604_800.0, 86_400.0)


def test_rank_is_of_now_where_nobody_had_waited() -> None:
    """A job that ended a moment ago, with nobody in line, had put the look at the ranks off."""
    engine = Driver(machine("fair:half_life=36000:patience=0"))
    first, small = engine.submit(job("vision", 7, user="ann")), engine.submit(job("vision", 1, user="cat"))
    engine.wait(9995)
    engine.end(small)
    engine.wait(3)
    ann, bob = (engine.submit(job("vision", 8, user=user)) for user in ("ann", "bob"))
    engine.end(first)
    assert states(ann, bob) == "queued running"


def test_clock_that_is_set_back() -> None:
    """What is had from then on counts, and ranks are looked at."""
    engine = Driver(machine("fair:half_life=36000:patience=0"))
    engine.now = 86_400.0
    engine.end(engine.submit(job("vision", 8, user="cat")))
    first = engine.submit(job("vision", 8, user="ann"))
    engine.now = 100.0
    engine.submit(job("vision", 8, user="dan"))
    engine.wait(7200)
    ann, bob = (engine.submit(job("vision", 8, user=user)) for user in ("ann", "bob"))
    engine.end(first)
    engine.end(engine.jobs[3])
    assert states(ann, bob) == "queued running"


def test_store_has_holdings_of_the_future(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [
        Holding(1, "ann", "vision", Use.GUARANTEED, 4, 1e9, 1e9 + 60),
        Holding(2, "bob", "vision", Use.GUARANTEED, 4, 1e9, None),
    ]
    store.keep((), (), holdings=rows)
    assert store.decayed_use("vision", 3600.0, 0.0) == {"ann": 0.0, "bob": 0.0}
    store.close()


@pytest.mark.skipif(form() == "compiled", reason="a native class cannot be patched")
def test_ranks_are_looked_at_where_jobs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event costs nothing in the virtual clusters that it is not about."""
    looked: list[int] = []
    review = DecayedUse.review

    def counted(use: DecayedUse, now: float) -> list[str]:
        looked.append(id(use))
        return review(use, now)

    monkeypatch.setattr(DecayedUse, "review", counted)
    vcs = {f"vc{n}": 1 for n in range(40)}
    cluster = Cluster(parse_spec(nodes_of_8(40, vcs), "any"), Sharing.HIVED)
    jobs = [TraceJob(f"run{n}", vc, 0, 9_000_000, 8, "pass", "ann", "", 0, "guaranteed") for n, vc in enumerate(vcs)]
    jobs += [TraceJob(f"wait{n}", "vc7", 1000, 1000, 8, "pass", "bob", "", 0, "guaranteed") for n in range(5)]
    jobs += [TraceJob(f"late{n}", "vc7", 60_000 * n, 1000, 8, "pass", "cat", "", 0, "guaranteed") for n in range(1, 50)]
    simulate(cluster, make_policy("fair"), sorted(jobs, key=lambda one: one.submit_ms), after_event=check_scheduler)
    assert len(set(looked)) <= 1 + len(vcs)
    assert max(map(looked.count, set(looked))) > 40
    assert sorted(map(looked.count, set(looked)))[-2] <= 1, "each but the one in which jobs wait: once, at the start"
