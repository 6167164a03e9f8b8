"""Small stories with an end known beforehand: two tenants, a and b, with a node each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hived.cluster import Cluster
from hived.policies import YarnCS
from hived.scheduling import Policies
from hived.scheduling.checks import check_scheduler
from hived.simulator import Scenario, Sharing, run_experiment
from hived.simulator.simulation import simulate
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from .helpers import Experiment, Row, nodes_of_8, simulated, spec_text, trace_of, trace_text
from .reader import Outcome

TWO_NODES = nodes_of_8(2, {"a": 1, "b": 1})
SCHEMES = ("private", "quota", "hived")


def play(folder: Path, *rows: Row, preempted: str = "resume", until_s: float | None = None) -> Experiment:
    """The three schemes on two nodes; ``rows`` are (id, tenant, submit, duration, GPUs)."""
    return simulated(folder, TWO_NODES, trace_text(rows), preempted=preempted, until_s=until_s)


def stays(found: Outcome, job: str) -> list[tuple[float, float, str]]:
    """When a job held GPUs, and of which kind they were."""
    return [(start, end, kind) for start, end, kind, _ in found.kinds(job)]


@pytest.mark.parametrize(("gpus", "end"), [(4, 30), (8, 21)], ids=["moved", "in place"])
def test_a_move_starts_again_where_work_is_lost(tmp_path: Path, gpus: int, end: int) -> None:
    """A job of 8 GPUs becomes guaranteed where it is; for one of 4 that is in another's node."""
    rows: list[Row] = [("first", "a", 0, 10, 8), ("early", "a", 1, 20, gpus)]
    rows += [("neighbour", "b", 0, 100, 1)] if gpus == 4 else []
    found = play(tmp_path, *rows, preempted="restart")["hived"]
    assert stays(found, "early") == [(1, 10, "opportunistic"), (10, end, "guaranteed")]


@pytest.mark.parametrize(("preempted", "end", "waited"), [("resume", 25, 5), ("restart", 30, 10)])
def test_an_owner_takes_its_gpus_back(tmp_path: Path, preempted: str, end: int, waited: int) -> None:
    """At once, and the job on loan resumes later."""
    rows: list[Row] = [("first", "a", 0, 10, 8), ("early", "a", 0, 20, 8), ("owner", "b", 5, 10, 8)]
    both = play(tmp_path, *rows, preempted=preempted)
    for scheme in ("quota", "hived"):
        found = both[scheme]
        assert stays(found, "owner") == [(5, 15, "guaranteed")]
        assert stays(found, "early") == [(0, 5, "opportunistic"), (10, end, "guaranteed")]
        assert found.jobs["early"].preemptions == 1
        assert found.jobs["early"].queue == waited * 1000


@pytest.mark.parametrize(("weight", "first"), [(None, "q"), (400, "p2")])
def test_loans_come_by_weight(weight: float | None, first: str) -> None:
    """Both tenants have a loan already: t0 of 2 GPUs, t1 of 1. By the GPUs that they have reserved t1 is next."""
    data = json.loads(nodes_of_8(3, {"t0": 1, "t1": 1, "t2": 1}))
    if weight is not None:
        data["virtualClusters"]["t0"]["opportunisticWeight"] = weight
    rows = [("f0", "t0", 0, 1000, 8), ("f1", "t1", 0, 1000, 8), ("k", "t2", 0, 10, 4), ("p", "t0", 0, 1000, 2),
            ("r", "t1", 0, 1000, 1), ("q", "t1", 1, 50, 4), ("p2", "t0", 2, 50, 4)]  # fmt: skip
    modes = ["guaranteed"] * 3 + ["opportunistic"] * 4
    jobs = [job._replace(mode=mode) for job, mode in zip(trace_of(trace_text(rows)).jobs, modes, strict=True)]
    policies = Policies(YarnCS())
    record = simulate(Cluster(parse_spec(json.dumps(data), "three"), rank=policies.rank), policies, jobs)
    starts = dict(zip([job.job_id for job in jobs], record.first_start, strict=True))
    assert (starts["q"], starts["p2"])[first == "p2"] == 10_000
    assert (starts["p2"], starts["q"])[first == "p2"] == 60_000


def test_what_runs_at_the_end_is_cut(tmp_path: Path) -> None:
    found = play(tmp_path, ("done", "a", 0, 5, 8), ("cut", "b", 0, 10, 8), ("later", "a", 6, 1, 1), until_s=5)
    for scheme in SCHEMES:
        outcome = found[scheme]
        assert stays(outcome, "cut") == [(0, 5, "guaranteed")]
        assert [job.finished for job in outcome.jobs.values()] == [True, False, False]
        assert outcome.runs["later"] == []


def test_a_job_of_no_work_holds_nothing(tmp_path: Path) -> None:
    """It ends as it starts."""
    found = play(tmp_path, ("long", "a", 0, 10, 8), ("nothing", "a", 1, 0, 8))
    assert [found[scheme].jobs["nothing"].finish for scheme in SCHEMES] == [10_000, 1000, 1000]


# What was once wrong.


@pytest.mark.parametrize("preempted", ["resume", "restart"])
def test_done_work_is_not_preempted_then(tmp_path: Path, preempted: str) -> None:
    """Two jobs end at 10; the end of the first was enough to take the GPUs of the second from it before it ended."""
    rows: list[Row] = [("b1", "b", 0, 10, 1), ("a1", "a", 0, 100, 8), ("done", "a", 0, 10, 4), ("b2", "b", 1, 50, 8)]
    found = play(tmp_path, *rows, preempted=preempted)["hived"]
    assert found.jobs["done"].finish == 10_000
    assert found.jobs["done"].preemptions == 0
    assert stays(found, "b2") == [(10, 60, "guaranteed")]


def test_a_stay_of_no_time_is_no_start(tmp_path: Path) -> None:
    """It borrows b's node at 0, and b submits at 0 too: it holds GPUs only from 1 on."""
    found = play(tmp_path, ("a1", "a", 0, 10, 8), ("pushed", "a", 0, 5, 8), ("b1", "b", 0, 1, 8))["hived"]
    assert stays(found, "pushed") == [(1, 6, "opportunistic")]
    assert found.jobs["pushed"].start == 1000


def test_gpus_lost_and_had_again_are_one_stay(tmp_path: Path) -> None:
    """A job of no work takes b's node at 5 and leaves it at 5."""
    found = play(tmp_path, ("a1", "a", 0, 100, 8), ("kept", "a", 0, 10, 8), ("blink", "b", 5, 0, 8))["hived"]
    assert stays(found, "kept") == [(0, 10, "opportunistic")]


def flat_nodes(size: int, vcs: dict[str, int]) -> str:
    """Equal nodes of so many GPUs, all of them reserved."""
    cells = [{"cellType": "NODE", "cellAddress": f"n[0-{sum(vcs.values()) - 1}]"}]
    return spec_text({"NODE": ("GPU", size)}, cells, {vc: {"NODE": number} for vc, number in vcs.items()})


#: a story: GPUs of a node, nodes of each tenant, policies, and jobs as (id, tenant, submit, duration, GPUs, then maybe
#: priority and mode); what becomes of one job, which was overlooked in its line
OVERLOOKED = {
    # the head's loan is taken as another job arrives: that one had its turn before the head had
    "a new one beside a requeued one": (
        3, {"a": 2, "b": 1, "c": 1}, {"a": "tiresias:limits=48/144", "b": "fifo", "c": "tiresias"},
        [("j3", "b", 0, 9000, 3), ("j14", "c", 0, 3000, 1), ("j1", "a", 4, 17, 3), ("j12", "a", 4, 7, 6),
         ("a2", "a", 5, 3, 6), ("j17", "c", 5, 900, 3), ("y", "b", 6, 9000, 2), ("z", "b", 7, 9000, 3),
         ("z2", "b", 8, 9000, 3), ("j8", "c", 20, 5, 1), ("k", "c", 24, 3, 1)],
        "j8", [(20, 25, "guaranteed")],
    ),
    # who is out of patience blocks those behind it, and ends on its loan
    "one that held others back is gone": (
        6, {"a": 1, "b": 1}, {"a": "fifo", "b": "greedy:patience=20"},
        [("j15", "b", 0, 22, 1), ("j4", "b", 0, 21, 6), ("j10", "b", 20, 2, 1)],
        "j10", [(20, 21, "opportunistic"), (21, 22, "guaranteed")],
    ),
    "one that held back a job that starts at its turn alone": (
        2, {"a": 2, "b": 2}, {"a": "greedy", "b": "greedy"},
        [("A1", "b", 0, 216000, 2), ("B1", "a", 1800, 89100, 4), ("L", "b", 3600, 3600, 4),
         ("X", "b", 91800, 36000, 2, 0, "guaranteed"), ("B2", "a", 97200, 324000, 4)],
        "X", [(94500, 130500, "guaranteed")],
    ),
    # a job that runs on a loan preempts nobody; once it waits, it does
    "a higher priority that has lost its loan": (
        8, {"a": 2, "b": 2}, {"a": "yarn-cs", "b": "yarn-cs"},
        [("j0", "b", 0, 18000, 8, 10), ("j1", "b", 3600, 61200, 8), ("j3", "b", 7200, 90000, 16, 10),
         ("j5", "a", 36000, 28800, 16)],
        "j3", [(7200, 36000, "opportunistic"), (36000, 97200, "guaranteed")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("size", "vcs", "policies", "rows", "name", "expected"), OVERLOOKED.values(), ids=OVERLOOKED)
def test_nobody_is_overlooked_in_a_line(
    size: int, vcs: dict[str, int], policies: dict[str, str], rows: list[tuple[Any, ...]], name: str,
    expected: list[tuple[int, int, str]],
) -> None:  # fmt: skip
    """Found by a comparison with rules written from the pages alone."""
    jobs = [TraceJob(job, vc, at * 1000, lasts * 1000, gpus, "pass") for job, vc, at, lasts, gpus, *_ in rows]
    more = [dict(zip(("priority", "mode"), row[5:], strict=False)) for row in rows]
    trace = Trace("story", tuple(job._replace(**others) for job, others in zip(jobs, more, strict=True)))
    scenario = Scenario(schemes=Sharing.HIVED, policy=policies)
    results = run_experiment(parse_spec(flat_nodes(size, vcs), "story"), trace, scenario, after_event=check_scheduler)
    (record,) = results.records
    found = [
        (run.start // 1000, run.end // 1000, run.kind.value) for run in record.runs if jobs[run.job].job_id == name
    ]
    assert sorted(found) == expected
