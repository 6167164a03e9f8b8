"""Timelines of GPUs: every job is where, when and as high as its runs say, and the picture names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.errors import InputError
from hived.policies import AntMan, Gandiva
from hived.scheduling import Kind, Policy
from hived.simulator import Scenario, Sharing, run_experiment
from hived.simulator.record import Run
from hived.simulator.study import Study
from hived.simulator.timeline import (
    COLOURS,
    DAY_MS,
    GUESTS,
    Recorded,
    Timeline,
    Way,
    choose_nodes,
    choose_window,
    timeline,
)
from hived.simulator.traces import Trace, TraceJob

from .sharing import cluster_spec, job

OWNER = Kind.GUARANTEED


def on(*devices: int, node: str = "n0") -> Placement:
    return Placement("RACK", (PodPlacement(node, devices),))


def recorded(*runs: Run, nodes: Sequence[str] = ("n0", "n1"), gpus: int = 2) -> Recorded:
    jobs = max((run.job for run in runs), default=-1) + 1
    end = max((run.end for run in runs), default=0)
    return Recorded("hived test", runs, [f"j{n}" for n in range(jobs)], {node: range(gpus) for node in nodes}, end)


def played(jobs: Sequence[TraceJob], policy: Policy) -> Study:
    trace = Trace("shared", tuple(jobs), True)
    return Study(run_experiment(cluster_spec(1), trace, Scenario(schemes=Sharing.HIVED, policy=policy)))


@cache
def gandiva() -> Study:
    """Six jobs on four GPUs, packed on trial."""
    names = ["vae", "rhn", "lstm", "vae", "rhn", "rhn"]
    return played([job(f"j{n}", 1, 60, at=n / 10, model=name) for n, name in enumerate(names)], Gandiva())


def shown(study: Study) -> Timeline:
    """The whole timeline of the node, checked."""
    record = study.results.records[0]
    found = Recorded("", record.runs, [one.job_id for one in record.jobs], {"n0": range(4)}, record.end)
    picture = timeline(found, ["n0"], 0, found.end)
    check(picture, found.runs)
    return picture


def check(picture: Timeline, runs: Sequence[Run]) -> None:
    """Areas of every job sum to its GPU time, by its share of it; no two overlap; bodies have the height 1 at most."""
    time: dict[int, float] = {}
    area: dict[int, float] = {}
    for run in runs:
        length = max(0, min(run.end, picture.end) - max(run.start, picture.start))
        time[run.job] = time.get(run.job, 0.0) + length * run.gpus * run.share
    alone = {box.job for lane in picture.lanes for box in lane.boxes} - {
        box.job for lane in picture.lanes for box in lane.boxes if box.way in (Way.PACKED, Way.GUEST)
    }
    drawn: dict[int, float] = {}
    for lane in picture.lanes:
        cuts = sorted({moment for box in lane.boxes for moment in (box.start, box.end)})
        for low, high in pairwise(cuts):
            stack = sorted((box.bottom, box.top) for box in lane.boxes if box.start <= low and high <= box.end)
            assert all(top <= bottom + 1e-6 for (_, top), (bottom, _) in pairwise(stack)), "no two overlap"
        for box in lane.boxes:
            assert picture.start <= box.start < box.end <= picture.end
            assert box.top <= 1 + 1e-6 or box.way is Way.GUEST
            assert box.bottom >= 1 or box.way is not Way.GUEST
            drawn[box.job] = drawn.get(box.job, 0.0) + (box.end - box.start) * box.share
            area[box.job] = area.get(box.job, 0.0) + (box.end - box.start) * (box.top - box.bottom)
    assert drawn == pytest.approx({job: spent for job, spent in time.items() if spent})
    for one in alone:
        assert area[one] == pytest.approx(time[one])


def test_areas_of_turns_are_gpu_time() -> None:
    whole = shown(played([job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False)))
    assert whole.ways == {Way.SLICED, Way.WHOLE}
    boxes = whole.lanes[0].boxes
    assert [box.job for box in boxes] == [0, 2]
    assert [edge for box in boxes for edge in (box.bottom, box.top)] == pytest.approx([0, 2 / 3, 2 / 3, 1], abs=0.01)
    assert list(whole.names.values()) == [f"j{n}" for n in range(6)]
    assert len(set(whole.colours.values())) == 6


def test_packed_jobs_divide_their_height() -> None:
    whole = shown(gandiva())
    assert whole.ways == {Way.SLICED, Way.PACKED, Way.WHOLE}
    at = 100_000
    stack = [box for box in whole.lanes[0].boxes if box.start <= at < box.end]
    assert [(box.job, box.way) for box in stack] == [(0, Way.PACKED), (1, Way.PACKED), (2, Way.SLICED)]
    assert [box.top - box.bottom for box in stack] == pytest.approx([0.4, 0.4, 0.2])
    assert [box.share for box in stack] == pytest.approx([0.8, 0.8, 0.2])


def test_slowed_jobs_are_the_packed_ones() -> None:
    found = recorded(
        Run(0, 0, 10, OWNER, on(0), 0.5, 0.45), Run(1, 0, 10, OWNER, on(0), 0.5, 0.25),
        Run(2, 0, 10, OWNER, on(0), 0.5, 0.25),
    )  # fmt: skip
    boxes = timeline(found, ["n0"], 0, 10).lanes[0].boxes
    assert [box.way for box in boxes] == [Way.SLICED, Way.PACKED, Way.PACKED]
    assert [(box.bottom, box.top) for box in boxes] == [(0, 0.5), (0.5, 0.75), (0.75, 1.0)]


def test_guests_are_above_their_owner() -> None:
    early = [job(f"own{n}", 1, 60, model="GCN") for n in range(4)]
    late = [job(f"late{n}", 1, 20, at=5, model="ESPnet")._replace(mode="opportunistic") for n in range(6)]
    whole = shown(played(early + late, AntMan()))
    assert {Way.GUEST, Way.WHOLE} <= whole.ways
    for lane in whole.lanes:
        guests = [box for box in lane.boxes if box.way is Way.GUEST]
        assert guests
        assert all(1 <= box.bottom < box.top <= 1 + GUESTS for box in guests)


def test_a_paused_job_keeps_its_place() -> None:
    found = recorded(Run(0, 0, 10, OWNER, on(0, 1)), Run(0, 10, 14, OWNER, on(0), 1.0, 0.0))
    picture = timeline(found, ["n0"], 2, 12)
    assert picture.pauses
    assert [[(box.start, box.end, box.rate) for box in lane.boxes] for lane in picture.lanes] == [
        [(2, 10, 1.0), (10, 12, 0.0)], [(2, 10, 1.0)],
    ]  # fmt: skip
    check(picture, found.runs)


def test_rates_and_their_sum_are_step_functions() -> None:
    found = recorded(
        Run(0, 0, 10, OWNER, on(0)), Run(1, 4, 10, OWNER, on(1), 0.5, 0.4),
        Run(1, 4, 10, OWNER, on(0), 0.25, 0.2), Run(0, 10, 12, OWNER, on(1)),
    )  # fmt: skip
    picture = timeline(found, ["n0"], 0, 12)
    assert (picture.rates[0].at, picture.rates[0].values) == ([0, 10, 12], [1.0, 1.0, 0.0])
    assert (picture.rates[1].at, picture.rates[1].values) == ([4, 10], [pytest.approx(0.6), 0.0])
    total = picture.total()
    assert total.at == [0, 4, 10, 12]
    assert total.values == pytest.approx([1.0, 1.6, 1.0, 0.0])


def test_a_colour_stays_when_the_window_moves() -> None:
    runs = [Run(n, n * 5, n * 5 + 30, OWNER, on(0), 1 / 6, 1 / 6) for n in range(40)]
    found = recorded(*runs)
    whole = timeline(found, ["n0"], 0, found.end).colours
    part = timeline(found, ["n0"], 90, 120).colours
    assert 4 < len(part) < 40
    assert part == {one: whole[one] for one in part}
    for moment in range(0, found.end, 5):
        there = [run.job for run in runs if run.start <= moment < run.end]
        assert len(there) <= COLOURS
        assert len({whole[one] for one in there}) == len(there), "jobs on one GPU have different colours"


def test_the_default_is_where_jobs_share() -> None:
    found = recorded(
        Run(0, 0, 3 * DAY_MS, OWNER, on(0)),
        Run(1, DAY_MS + 100, 2 * DAY_MS, OWNER, on(0, node="n1")),
        Run(2, DAY_MS + 900, 2 * DAY_MS, OWNER, on(0, node="n1")),
    )
    assert choose_nodes(found, []) == ["n1"]
    assert choose_window(found, ["n1"], None) == (DAY_MS + 100, 2 * DAY_MS)
    assert choose_window(found, ["n0"], None) == (0, DAY_MS), "the first day in use where nothing is shared"
    assert choose_window(found, ["n0"], (0.5, 1e9)) == (DAY_MS // 2, 3 * DAY_MS)


def test_the_default_shows_many_jobs() -> None:
    """Where none share a GPU: the nodes and the day of the most jobs, not the node of the longest one."""
    long = Run(0, 0, 9 * DAY_MS, OWNER, on(0, 1))
    short = [Run(n, 3 * DAY_MS + n, 3 * DAY_MS + n + 1, OWNER, on(0, 1, node=f"n{1 + n % 3}")) for n in range(1, 10)]
    found = recorded(long, *short, nodes=[f"n{n}" for n in range(5)])
    chosen = choose_nodes(found, [])
    assert chosen == ["n0", "n1", "n2", "n3"], "on the last one nothing ran"
    start, end = choose_window(found, chosen, None)
    assert (start, end) == (3 * DAY_MS, 4 * DAY_MS)
    assert len(timeline(found, chosen, start, end).names) == 10
    large = recorded(long, *short, nodes=[f"n{n}" for n in range(5)], gpus=16)
    assert choose_nodes(large, []) == ["n1", "n2"], "as many as can be read"


ONE = recorded(Run(0, 0, 10, OWNER, on(0)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: choose_nodes(ONE, ["n7"]), "node n7: no such node in hived test; there is n0, n1"),
        (lambda: choose_nodes(recorded(), []), "no job ran"),
        (lambda: choose_nodes(recorded(gpus=65), ["n0", "n1"]), "130 GPUs; a timeline has at most 128"),
        (lambda: choose_window(ONE, ["n1"], None), "n1: no job ran there"),
        (lambda: choose_window(ONE, ["n0"], (2, 1)), "give two days from 0 on"),
        (lambda: choose_window(ONE, ["n0"], (2, 3)), "window 2:3: no job is on n0 then"),
    ],
)
def test_a_wrong_choice_is_refused(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError) as raised:
        wrong()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def comments(svg: Path) -> set[str]:
    """What is written in the picture: its letters are paths, each text with a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(svg, parser).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return {(one.text or "").strip() for one in root.iter(ElementTree.Comment)}  # type: ignore[arg-type]


def test_the_picture_names_jobs_and_gpus(tmp_path: Path) -> None:
    """Names stay in their boxes, and do not overlap; another picture has the same bytes."""
    pytest.importorskip("matplotlib")
    from hived.simulator.timeline_figure import write_timeline

    figure = gandiva().timeline(rates=True)
    said = comments(write_timeline(figure, tmp_path / "a.svg"))
    assert {f"GPU {n}" for n in range(4)} <= said
    assert {f"\u200bj{n}" for n in range(6)} <= said, "in the legend"
    assert {"j0  67%", "j2  33%"} <= said, "in boxes, with the share"
    for words in ("alone on the GPU", "sliced: ", "hatched: packed", "rate of progress", "sum of all rates"):
        assert any(words in text for text in said), words
    assert not any("guest" in text for text in said), "only what occurs is explained"
    axis = figure.axes[0]
    extents = [text.get_window_extent() for text in axis.texts if text.get_text()]
    assert len(extents) > 8
    area = axis.get_window_extent()
    for number, extent in enumerate(extents):
        assert area.x0 <= extent.x0 < extent.x1 <= area.x1
        assert not any(extent.shrunk(0.9, 0.7).overlaps(other.shrunk(0.9, 0.7)) for other in extents[number + 1 :])
    write_timeline(gandiva().timeline(rates=True), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_study_has_a_timeline(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hived.simulator.timeline_figure import check_picture

    study = gandiva()
    assert study.timeline("n0", "0:0.01", scheme="hived", policy="gandiva").axes
    with pytest.raises(InputError, match="private, any policy: no such run"):
        study.timeline(scheme="private")
    with pytest.raises(InputError, match=r"written as \.svg or \.png"):
        check_picture(tmp_path / "a.gif")
    with pytest.raises(InputError, match="there is no folder"):
        check_picture(tmp_path / "none" / "a.svg")
