"""Pictures of a finished simulation: against an end known beforehand, and against a naive look through ``runs.csv``."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import NotFoundError
from hived.server.pictures import Picture
from hived.server.results import ResultsSource
from hived.server.results_view import Intervals
from hived.simulator.metrics import submission_window
from tests.simulator.helpers import nodes_of_8, spec_text
from tests.simulator.reader import Outcome
from tests.simulator.strategies import Case, cases

from ...strategies import given_in_tiers
from .helpers import gpus, played, results, running, shown, unaudited, waiting

HIVED = "hived yarn-cs"


def all_of(node: str) -> frozenset[tuple[str, int]]:
    """The eight GPUs of a node."""
    return frozenset((node, device) for device in range(8))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> ResultsSource:
    """Early borrows b's node from 1 on, b's owner takes it back at 5, and early's turn comes at 10, when first ends."""
    return played(
        tmp_path_factory.mktemp("story"), ("first", "a", 0, 10, 8), ("early", "a", 1, 20, 8), ("owner", "b", 5, 10, 8),
        ("late", "a", 6, 5, 4), ("monster", "b", 7, 3, 17),
    )  # fmt: skip


def test_a_loan(story: ResultsSource) -> None:
    """Early borrows all of b at first; later late borrows half a node, and holds as many GPUs as it asked for."""
    a, b = story.picture(HIVED, 3).usage
    assert (a.vc, a.reserved, a.used, a.lent, a.borrowed, a.waiting) == ("a", 8, 8, 0, 8, 0)
    assert (b.vc, b.reserved, b.used, b.lent, b.borrowed, b.waiting) == ("b", 8, 0, 8, 0, 0)
    picture = story.picture(HIVED, 16)
    assert shown(story, HIVED, picture) == [
        ("early", "guaranteed", all_of("n0")),
        ("late", "opportunistic", frozenset(("n1", device) for device in range(4))),
    ]
    late = next(holder for holder in picture.holders if holder.id == "late")
    assert (late.name, late.vc, late.kind, late.gpus, late.since) == ("late", "a", "opportunistic", 4, 15)
    assert late.parts == [(0, 1, 0, 4)]
    assert late.binding == []
    totals = picture.totals
    assert (totals.gpus, totals.guaranteed, totals.opportunistic) == (16, 8, 4)
    assert (totals.reserved, totals.bad, totals.fragmentation) == (0, 0, 0.5)


def test_whose_gpus_are_lent(tmp_path: Path) -> None:
    spec = nodes_of_8(5, {"a": 1, "b": 1, "c": 2})  # 8 GPUs are nobody's
    rows = [("own", "a", 0, 100, 8), ("some", "b", 0, 100, 4), ("wide", "a", 1, 50, 16)]
    source = played(tmp_path, *rows, spec=spec)
    picture = source.picture(HIVED, 2)
    assert picture.totals.opportunistic == 16
    lent = {usage.vc: usage.lent for usage in picture.usage}
    assert lent == {"a": 0, "b": round(8 * 4 / 20), "c": round(8 * 16 / 20)}


def test_reasons_of_the_queue(story: ResultsSource) -> None:
    (early,) = story.picture(HIVED, 5).queue
    assert (early.id, early.since, early.why[-1]) == ("early", 5, "has waited 0 s since it lost its lent GPUs")
    picture = story.picture(HIVED, 7)
    assert picture.queue_total == 3
    assert [(job.id, job.since, job.why) for job in picture.queue] == [
        ("early", 5, ["a uses 8 of its 8 GPUs, and this job asks for 8", "no idle GPUs suit it as a loan",
                      "has waited 2 s since it lost its lent GPUs"]),
        ("late", 6, ["a uses 8 of its 8 GPUs", "1 job of a is ahead", "has waited 1 s"]),
        ("monster", 7, ["17 GPUs are more than the cells of b can ever hold for one job: it never starts",
                        "has waited 0 s"]),
    ]  # fmt: skip


def test_job_too_large_for_its_cells(tmp_path: Path) -> None:
    rows = [("own", "a", 0, 100, 1), ("other", "b", 0, 100, 1), ("wide", "a", 1, 50, 16)]
    source = played(tmp_path, *rows)
    cells = "16 GPUs are more than the cells of a can ever hold for one job"
    assert source.picture(HIVED, 2).queue[0].why[:2] == [
        f"{cells}: it can only borrow",
        "no idle GPUs suit it as a loan",
    ]
    assert source.picture("private yarn-cs", 2).queue[0].why == [f"{cells}: it never starts", "has waited 1 s"]
    quota = source.picture("quota yarn-cs", 2).queue[0].why[0]
    assert quota == "16 GPUs are more than the quota of a allows: it can only borrow"


def test_scattered_and_used_up_quota(tmp_path: Path) -> None:
    """The sharing anomaly in its smallest form: b's two GPUs are one on each node, and a's pair fits neither."""
    spec = spec_text(
        {"NODE": ("GPU", 2)}, [{"cellType": "NODE", "cellAddress": "n[0-1]"}], {"a": {"NODE": 1}, "b": {"NODE": 1}}
    )
    rows = [("a1", "a", 0, 10, 1), ("b1", "b", 0, 100, 1), ("b2", "b", 0, 100, 1), ("pair", "a", 11, 5, 2)]
    source = played(tmp_path, *rows, ("third", "b", 12, 9, 2), spec=spec)
    pair, third = source.picture("quota yarn-cs", 50).queue
    assert pair.why[0] == (
        "a uses 0 of its quota of 2 GPUs; what is free is not as close together as the 2 of this job have to be"
    )
    assert third.why[0] == "b uses 2 of its quota of 2 GPUs, and this job asks for 2"


def test_jobs_on_loans_keep_their_place(tmp_path: Path) -> None:
    rows = [("first", "a", 0, 100, 8), ("lent", "a", 1, 90, 8), ("next", "a", 2, 5, 8)]
    waiter = played(tmp_path, *rows).picture(HIVED, 3).queue[0]
    assert waiter.id == "next"
    assert waiter.why[:2] == [
        "a uses 8 of its 8 GPUs", "1 job of a runs on lent GPUs and comes first when its own fall free",
    ]  # fmt: skip


def test_a_queue_of_hundreds(tmp_path: Path) -> None:
    """It is cut to the first of every line; the rest, and what has ended, are had part by part."""
    rows = [(f"a{n}", "a", 1, 5, 8) for n in range(300)] + [(f"b{n}", "b", 2, 5, 8) for n in range(30)]
    source = played(tmp_path, *rows)
    view = "private yarn-cs"
    picture = source.picture(view, 3)
    assert (picture.queue_total, len(picture.queue)) == (328, 200)
    assert [job.id for job in picture.queue[:4]] == ["a1", "b1", "a2", "b2"]
    assert sum(job.vc == "b" for job in picture.queue) == 29
    assert picture.queue[2].why[1] == "1 job of a is ahead"
    assert [usage.waiting for usage in picture.usage] == [299, 29]
    parts = [source.queue(view, 3, offset, 150) for offset in (0, 150, 300, 450)]
    assert [len(part.jobs) for part in parts] == [150, 150, 28, 0]
    assert {part.total for part in parts} == {328}
    assert [job for part in parts for job in part.jobs][:200] == picture.queue
    assert len({job.id for part in parts for job in part.jobs}) == 328
    assert source.ended(view, 5.9, 0, 9).total == 0
    over = source.ended(view, 20, 0, 3)
    assert (over.total, [(job.id, job.at, job.why) for job in over.jobs]) == (
        6,
        [("b2", 17, "waited 10 s"), ("a2", 16, "waited 10 s"), ("b1", 12, "waited 5 s")],
    )
    assert [job.id for job in source.ended(view, 20, 3, 9).jobs] == ["a1", "b0", "a0"]
    assert source.ended(view, None, 0, 1).total == 330


def test_end_of_arrivals(tmp_path: Path) -> None:
    source = played(tmp_path, ("first", "a", 0, 100, 8), ("last", "b", 10, 5, 8))
    assert (source.layout().arrivals_end, source.layout().end) == (52.5, 100)


def test_moments_and_views_outside(story: ResultsSource) -> None:
    """The nearest moment is taken; a view that is none is an error."""
    assert story.picture(HIVED, -5).holders == story.picture(HIVED, 0).holders
    assert story.picture(HIVED, 1e30).holders == story.picture(HIVED).holders == []
    ways = (story.picture, story.curves, lambda view: story.story(view, "first"), lambda view: story.update(view, 0))
    for ask in ways:
        with pytest.raises(NotFoundError, match="hived yarn-cs"):
            ask("hived fifo")


def test_layout_has_a_view_per_scheme(story: ResultsSource) -> None:
    layout = story.layout()
    assert (layout.clock, layout.start, layout.end, layout.synthetic) == ("trace", 0, 35, False)
    assert [(view.key, view.label) for view in layout.views] == [
        ("private yarn-cs", "Private clusters (yarn-cs)"), ("quota yarn-cs", "Quota (yarn-cs)"),
        ("hived yarn-cs", "HiveD (yarn-cs)"),
    ]  # fmt: skip
    private, quota, hived = (view.chains for view in layout.views)
    assert [(chain.name, chain.nodes) for chain in private] == [("a NODE", ["a-node-0"]), ("b NODE", ["b-node-0"])]
    assert quota == hived
    assert [(chain.name, chain.nodes, chain.node_level) for chain in hived] == [("NODE", ["n0", "n1"], 4)]
    assert [(level.cell_type, level.gpus) for level in hived[0].levels] == [
        ("GPU", 1), ("PAIR", 2), ("SOCKET", 4), ("NODE", 8),
    ]  # fmt: skip
    assert [(vc.name, vc.gpus, [(r.cell_type, r.number) for r in vc.reserved]) for vc in layout.vcs] == [
        ("a", 8, [("NODE", 1)]), ("b", 8, [("NODE", 1)]),
    ]  # fmt: skip
    assert not story.live


# -- any cluster, any trace


@given_in_tiers(
    12,
    60,
    cases(),
    st.sampled_from(["resume", "restart"]),
    st.sampled_from([None, None, 5, 20.5]),
    st.booleans(),
    st.data(),
)
def test_any_picture(
    case: Case, preempted: str, until_s: float | None, opportunistic: bool, data: st.DataObject
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = results(
            folder, case.spec, case.trace, preempted=preempted, until_s=until_s, opportunistic=opportunistic
        )
        source = ResultsSource(folder)
    for record in found.results.records:
        outcome, view = found[record.scheme], f"{record.scheme} {record.policy}"
        edges = sorted({t for _, run in outcome.all_runs() for t in (run.start, run.end)} | {0, record.end})
        moments = st.one_of(st.sampled_from(edges), st.integers(0, record.end))
        for at in data.draw(st.lists(moments, min_size=1, max_size=8)):
            agrees(source, view, outcome, min(at, record.end), record.end)


def agrees(source: ResultsSource, view: str, outcome: Outcome, at: int, end: int) -> None:
    """Holders, queue, usage and totals of one moment."""
    picture = source.picture(view, at / 1000)
    busy = running(outcome, at, end)
    assert shown(source, view, picture) == sorted((job.job_id, run.kind, frozenset(run.held)) for job, run in busy)
    no_gpu_is_held_twice(source, view, picture)
    by_id = {holder.id: holder for holder in picture.holders}
    for job, run in busy:
        holder = by_id[job.job_id]
        assert (holder.vc, holder.gpus, holder.since) == (job.tenant, len(run.held), run.start / 1000)
    queue = waiting(outcome, at, end)
    assert picture.queue_total == len(queue)
    assert sorted(job.id for job in picture.queue) == sorted(job.job_id for job in queue)
    for usage in picture.usage:
        mine = [(job, run) for job, run in busy if job.tenant == usage.vc]
        assert usage.used == sum(len(run.held) for _, run in mine if run.kind == "guaranteed")
        assert usage.borrowed == sum(len(run.held) for _, run in mine if run.kind == "opportunistic")
        assert usage.waiting == sum(job.tenant == usage.vc for job in queue)
        assert 0 <= usage.lent <= usage.reserved
    assert picture.totals.guaranteed == sum(usage.used for usage in picture.usage)
    assert picture.totals.opportunistic == sum(usage.borrowed for usage in picture.usage)
    assert sum(usage.lent for usage in picture.usage) <= picture.totals.opportunistic + 0.01
    nodes = {node for _, run in busy if run.kind == "guaranteed" for node, _ in run.held}
    chains = next(one.chains for one in source.layout().views if one.key == view)
    assert picture.totals.fragmentation == len(nodes) / max(1, sum(len(chain.nodes) for chain in chains))


def no_gpu_is_held_twice(source: ResultsSource, view: str, picture: Picture) -> None:
    chains = next(one.chains for one in source.layout().views if one.key == view)
    held = [gpu for holder in picture.holders for part in holder.parts for gpu in gpus(chains, part)]
    assert len(held) == len(set(held))
    assert len(held) <= picture.totals.gpus


@given_in_tiers(8, 60, cases(max_jobs=20))
def test_pictures_add_up_to_the_summary(case: Case) -> None:
    """Utilization and fragmentation are those of ``metrics.py``: means over the time in which jobs arrive."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = results(folder, case.spec, case.trace)
        source = ResultsSource(folder)
    comparison = source.comparison()
    assert comparison is not None
    window = submission_window(found.results)
    shared = sum(chain.gpus for chain in found.results.spec.chains)
    for outcome, record in zip(comparison.outcomes, found.results.records, strict=True):
        times = {t for run in record.runs for t in (run.start, run.end) if t < window} | {0, window}
        used = lent = fragmented = 0.0
        for at, until in pairwise(sorted(times)):
            totals = source.picture(outcome.view, at / 1000).totals
            used += (totals.guaranteed + totals.opportunistic) * (until - at)
            lent += totals.opportunistic * (until - at)
            fragmented += totals.fragmentation * (until - at)
        assert used / window / shared == pytest.approx(outcome.utilization, abs=2e-6)
        assert lent / window / shared == pytest.approx(outcome.opportunistic, abs=2e-6)
        assert fragmented / window == pytest.approx(outcome.fragmentation, abs=2e-6)


def test_odd_names_and_devices(tmp_path: Path) -> None:
    spec = spec_text(
        {"NODE": ("GPU", 2)},
        [
            {
                "cellType": "NODE",
                "cellAddress": "n%3A:1;x,",
                "cellChildren": [{"cellAddress": "7"}, {"cellAddress": "5"}],
            },
            {"cellType": "NODE", "cellAddress": "plain"},
        ],
        {"a": {"NODE": 2}},
    )
    source = unaudited(tmp_path, spec, ("one", "a", 0, 9, 1), ("two", "a", 0, 9, 1), ("three", "a", 0, 9, 2))
    held = {job: on for job, _, on in shown(source, HIVED, source.picture(HIVED, 1))}
    assert held["one"] | held["two"] | held["three"] == {
        ("n%3A:1;x,", 5), ("n%3A:1;x,", 7), ("plain", 0), ("plain", 1),
    }  # fmt: skip
    words = [moment.text for job in ("one", "two", "three") for moment in source.story(HIVED, job).moments]
    assert any(text.split(" runs on ")[-1].startswith("n%3A:1;x, GPU") for text in words)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=60),
    st.lists(st.integers(-2, 60), min_size=1, max_size=20),
)
def test_intervals_at_any_moment(intervals: list[tuple[int, int]], moments: list[int]) -> None:
    """They are those that a look at every one gives, in the order of their starts."""
    table = np.asarray([(start, start + width) for start, width in intervals], dtype=np.int64).reshape(-1, 2)
    found = Intervals(table[:, 0], table[:, 1])
    naive = [[n for n, (start, end) in enumerate(table.tolist()) if start <= at < end] for at in moments]
    for at, expected in zip(moments, naive, strict=True):
        numbers = found.at(at).tolist()
        assert sorted(numbers) == expected
        starts = [int(table[n, 0]) for n in numbers]
        assert starts == sorted(starts)
    assert found.counts(np.asarray(moments, dtype=np.int64)).tolist() == [len(numbers) for numbers in naive]
