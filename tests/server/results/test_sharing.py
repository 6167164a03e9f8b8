"""Pictures and stories of jobs that share GPUs: by turns, packed, and as guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.errors import InputError, NotFoundError
from hived.policies import AntMan, Gandiva
from hived.scheduling import Policy
from hived.server.results import ResultsSource
from hived.simulator import Scenario, Sharing, run_experiment
from hived.simulator.study import Study
from hived.simulator.traces import Trace, TraceJob
from hived.spec.compiled import ClusterSpec
from tests.simulator.sharing import cluster_spec, job

MINUTE = 60.0


def source(folder: Path, jobs: list[TraceJob], policy: Policy, spec: ClusterSpec | None = None) -> ResultsSource:
    trace = Trace("shared", tuple(jobs), True)
    scenario = Scenario(schemes=(Sharing.PRIVATE, Sharing.HIVED), policy=policy)
    Study(run_experiment(spec or cluster_spec(1), trace, scenario)).save(folder / "out", figures=False)
    return ResultsSource(folder / "out")


def turns(folder: Path) -> ResultsSource:
    """Six jobs of 60 minutes on four GPUs: for 90 minutes in all, of which each has 4 of 6."""
    return source(folder, [job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))


def test_jobs_that_take_turns(tmp_path: Path) -> None:
    """Each is one holder, a GPU counts once, and nobody waits."""
    found = turns(tmp_path)
    picture = found.picture("hived gandiva", 30 * MINUTE)
    assert sorted(holder.id for holder in picture.holders) == [f"j{n}" for n in range(6)]
    for holder in picture.holders:
        assert (holder.gpus, holder.kind) == (1, "guaranteed")
        assert holder.share == pytest.approx(4 / 6)
        assert 0.6 < holder.rate <= holder.share
    assert any(len(holder.parts) > 1 or holder.parts[0][3] > 1 for holder in picture.holders), "on several by turns"
    totals = picture.totals
    assert (totals.gpus, totals.guaranteed, totals.opportunistic, totals.guests) == (4, 4, 0, 0)
    assert [(usage.used, usage.waiting) for usage in picture.usage] == [(4, 0)]
    assert picture.queue_total == 0
    curves = found.curves("hived gandiva")
    assert len(curves.at) > 2
    assert set(curves.waiting) == {0}
    story = found.story("hived gandiva", "j2")
    assert "Asks for 1 GPU of a, for 1 h." in story.explanation
    assert "While it ran it had its GPUs 66.9% of the time, at 0.657 of" in story.explanation
    assert "Holds" not in story.explanation
    assert "had to do again" not in story.explanation
    assert any(stay.share == pytest.approx(4 / 6) and " or " in stay.where for stay in story.stays)
    assert all(stay.rate <= stay.share for stay in story.stays)
    assert not any("lost its GPUs" in moment.text for moment in story.moments)
    assert any("66.7% of the time" in moment.text for moment in story.moments)


def test_packed_jobs(tmp_path: Path) -> None:
    jobs = [job(f"j{n}", 1, 60, at=n / 10, model=name) for n, name in enumerate(["vae", "rhn"] * 3)]
    found = source(tmp_path, jobs, Gandiva())
    picture = found.picture("hived gandiva", 5 * MINUTE)
    assert len(picture.holders) == 6
    assert picture.totals.guaranteed == 4
    packed = [holder.id for holder in picture.holders if holder.rate < 0.9 * holder.share]
    assert packed == ["j1", "j2"]
    assert sum(part[3] for holder in picture.holders for part in holder.parts) > 4


def test_guests(tmp_path: Path) -> None:
    early = [job(f"own{n}", 1, 60, model="GCN") for n in range(4)]
    late = [job(f"late{n}", 1, 20, at=5, model="ESPnet")._replace(mode="opportunistic") for n in range(2)]
    found = source(tmp_path, early + late, AntMan())
    picture = found.picture("hived antman", 15 * MINUTE)
    guests = [holder for holder in picture.holders if holder.kind == "guest"]
    assert guests
    assert all(guest.share == 1 for guest in guests)
    assert (picture.totals.guaranteed, picture.totals.opportunistic) == (4, 0)
    assert picture.totals.guests == len({part for guest in guests for part in guest.parts})
    story = found.story("hived antman", guests[0].id)
    assert "guest" in [stay.kind for stay in story.stays]
    said = [moment.text for moment in story.moments]
    name = guests[0].name
    assert said == [
        f"{name} was submitted: 1 GPU of a",
        f"{name} runs on n0 GPU 0, a guest, at 0.377 of its speed alone",
        f"{name} goes on at 0.754 of its speed alone from now on",
        f"{name} goes on at full speed from now on",
        f"{name} succeeded",
    ]
    comparison = found.comparison()
    assert comparison is not None
    assert all(outcome.guests is not None and 0 < outcome.guests <= 0.5 for outcome in comparison.outcomes)


async def test_timeline_of_a_node(tmp_path: Path) -> None:
    found = turns(tmp_path)
    node = found.layout().views[-1].chains[0].nodes[0]
    shown = await found.timeline("hived gandiva", node, 10 * MINUTE, 20 * MINUTE)
    assert [lane.device for lane in shown.lanes] == [0, 1, 2, 3]
    assert {job.id for job in shown.jobs} == {f"j{n}" for n in range(6)}
    assert len({job.colour for job in shown.jobs}) == 6
    for lane in shown.lanes:
        assert sum((box.end - box.start) * (box.top - box.bottom) for box in lane.boxes) == pytest.approx(10 * MINUTE)
        assert {box.way for box in lane.boxes} == {"sliced"}
    with pytest.raises(NotFoundError, match="no node 'nowhere' in HiveD"):
        await found.timeline("hived gandiva", "nowhere", 0, 1)
    with pytest.raises(InputError, match="give an earlier start than end"):
        await found.timeline("hived gandiva", node, 5, 5)
    assert not (await found.timeline("hived gandiva", node, 1e9, 1e9 + 1)).jobs
