"""GPUs that jobs share count once: against a count of every GPU at every moment, and by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.policies import AntMan, Gandiva
from hived.scheduling import Kind, Policy
from hived.simulator import Options, Sharing, make_report, run_experiment
from hived.simulator.experiment import Results
from hived.simulator.fragmentation import Spans
from hived.simulator.metrics import Usage, lost_work, series
from hived.simulator.models import Models
from hived.simulator.record import Record, Run
from hived.simulator.traces import Trace, TraceJob

from . import test_antman
from .test_gandiva import MINUTE, cluster_spec, job

HOUR = 60 * MINUTE


def shared(jobs: list[TraceJob], policy: Policy, nodes: int = 1, scheme: Sharing = Sharing.HIVED) -> Results:
    trace = Trace("shared", tuple(sorted(jobs, key=lambda one: one.submit_ms)), True)
    spec = test_antman.cluster_spec({"a": nodes}) if isinstance(policy, AntMan) else cluster_spec(nodes)
    return run_experiment(spec, trace, Options((scheme,), (policy,), opportunistic=isinstance(policy, AntMan)))


def on_gpus(record: Record, *kinds: Kind) -> float:
    """GPU time in which a GPU has a run of these kinds, a moment and a GPU at a time."""
    edges = sorted({time for run in record.runs for time in (run.start, run.end)})
    total = 0
    for start, end in pairwise(edges):
        held = {
            (pod.node, leaf)
            for run in record.runs
            if run.kind in kinds and run.start <= start and end <= run.end
            for pod in run.placement.pods
            for leaf in pod.leaf_cells
        }
        total += len(held) * (end - start)
    return total


def many(seed: int) -> list[TraceJob]:
    """Jobs of 1 to 4 GPUs of all models, more than a node has room for."""
    draw = random.Random(seed)
    models = [model.model for model in Models.load()]
    return [
        job(f"j{n}", draw.choice([1, 1, 1, 2, 2, 4]), draw.uniform(5, 90), draw.uniform(0, 240), draw.choice(models))
        for n in range(40)
    ]


@pytest.mark.parametrize("policy", [Gandiva, AntMan])
@pytest.mark.parametrize("seed", range(4))
def test_utilization_is_the_time_of_gpus_on_which_somebody_is(policy: type[Policy], seed: int) -> None:
    found = shared(many(seed), policy(), nodes=2)
    (record,) = found.records
    usage = Usage(found, record)
    held, guaranteed, guests = (
        int((spans.weight * (spans.end - spans.start)).sum())
        for spans in (usage.pods.held, usage.pods.held.of(usage.pods.guaranteed), usage.pods.guests)
    )
    assert held == on_gpus(record, Kind.GUARANTEED, Kind.OPPORTUNISTIC)
    assert guaranteed == on_gpus(record, Kind.GUARANTEED) > 0
    assert guests == on_gpus(record, Kind.GUEST)
    by_hour = series(found, record, usage=usage)
    assert by_hour.utilization.max() <= 1
    assert np.allclose(by_hour.utilization, by_hour.guaranteed + by_hour.opportunistic)
    if policy is AntMan:
        assert guests > 0
    else:
        assert any(run.share < 1 for run in record.runs)
        assert sum(run.gpus * (run.end - run.start) for run in record.runs) > held, "some GPU has several jobs"


def test_six_jobs_by_turns_on_four_gpus_are_four_gpus() -> None:
    found = shared([job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    run = make_report(found).runs[0]
    (record,) = found.records
    times_shares = sum(run.gpus * run.share * (run.end - run.start) for run in record.runs)
    assert {run.share for run in record.runs} != {1.0}
    assert run.utilization == run.guaranteed == pytest.approx(1.0)
    assert on_gpus(record, Kind.GUARANTEED) == pytest.approx(times_shares), "their shares are all of its time"
    assert (run.opportunistic, run.guests) == (0, 0)


def made(*runs: tuple[int, int, int, Kind, tuple[int, ...], float, float]) -> tuple[Results, Record]:
    """A record made by hand, of a node of 4: job, from and to in hours, kind, GPUs, share, rate."""
    found = shared([job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    (record,) = found.records
    place = record.runs[0].placement
    node = place.pods[0].node

    def at(leaves: tuple[int, ...]) -> Placement:
        return replace(place, pods=(PodPlacement(node, leaves),))

    record.runs[:] = [
        Run(number, start * HOUR, end * HOUR, kind, at(leaves), share, rate)
        for number, start, end, kind, leaves, share, rate in runs
    ]
    return found, record


OWN, GUEST = Kind.GUARANTEED, Kind.GUEST


def test_packed_jobs_and_guests_are_on_one_gpu() -> None:
    found, record = made(
        (0, 0, 1, OWN, (0, 1), 1.0, 0.8),
        (1, 0, 1, OWN, (0, 1), 1.0, 0.7),
        (2, 0, 2, OWN, (2,), 0.5, 0.5),
        (3, 1, 2, OWN, (2,), 0.5, 0.4),
        (4, 0, 2, GUEST, (0,), 1.0, 0.3),
        (5, 1, 3, GUEST, (0,), 1.0, 0.3),
    )
    pods = Usage(found, record).pods

    def rows(spans: Spans) -> list[tuple[int, ...]]:
        return sorted(zip(*(column.tolist() for column in spans), strict=True))

    assert rows(pods.held) == [(0, HOUR, 2), (0, 2 * HOUR, 1)]
    assert rows(pods.guests) == [(0, 3 * HOUR, 1)]
    assert pods.guaranteed.all()


def test_lost_work_is_what_was_done_again_and_the_time_of_migrations() -> None:
    found, record = made(
        (0, 0, 1, OWN, (0,), 0.5, 0.5),
        (0, 1, 2, OWN, (1,), 0.5, 0.0),
        (0, 2, 3, OWN, (1,), 1.0, 0.75),
        (1, 0, 2, OWN, (2,), 1.0, 0.5),
        (2, 0, 1, GUEST, (2,), 1.0, 0.0),
        (2, 1, 2, GUEST, (2,), 1.0, 1.0),
    )
    lost = lost_work(record, Usage(found, record).pods)
    assert lost[:3].tolist() == [round(0.75 * HOUR), 0, 0]


def test_jobs_that_share_nothing_count_the_same_by_pods_and_by_gpus() -> None:
    jobs = [one._replace(tenant="ab"[n % 2]) for n, one in enumerate(many(7))]
    trace = Trace("plain", tuple(sorted(jobs, key=lambda one: one.submit_ms)))
    found = run_experiment(cluster_spec(4, a=3, b=1), trace, Options((Sharing.QUOTA, Sharing.HIVED)))
    by_pods = repr(make_report(found).to_json()["runs"])  # as NaN is no equal of itself
    assert [record.alone for record in found.records] == [[], []]
    assert sum(sum(record.preemptions) for record in found.records) > 0
    for record in found.records:
        record.alone = [one.duration_ms for one in record.jobs]
    assert repr(make_report(found).to_json()["runs"]) == by_pods
