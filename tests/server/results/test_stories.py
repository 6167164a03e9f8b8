"""A job's life, the curves and the comparison: what the files say, in the dashboard's terms."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st

from hived.engine.job import Event
from hived.engine.states import SUBMITTED, Effect, JobEvent, JobState, state_after, transition
from hived.errors import NotFoundError
from hived.server import results_view
from hived.server.results import ResultsSource
from tests.simulator.helpers import Row, nodes_of_8, trace_text
from tests.simulator.strategies import Case, cases

from ...strategies import given_in_tiers
from .helpers import TWO_NODES, played, results, waiting

HIVED = "hived yarn-cs"
ALL = ",".join(map(str, range(8)))


def test_preempted_job(tmp_path: Path) -> None:
    rows = [("first", "a", 0, 10, 8), ("early", "a", 1, 20, 8), ("owner", "b", 5, 10, 8)]
    story = played(tmp_path, *rows).story(HIVED, "early")
    assert (story.id, story.name, story.vc, story.gpus, story.state, story.command) == (
        "early", "early", "a", 8, "finished", "",
    )  # fmt: skip
    assert [(stay.start, stay.end, stay.kind, stay.where) for stay in story.stays] == [
        (1, 5, "opportunistic", f"n1:{ALL}"), (5, 10, "waiting", ""), (10, 26, "guaranteed", f"n0:{ALL}"),
    ]  # fmt: skip
    assert [(moment.at, moment.text) for moment in story.moments] == [
        (1, "early was submitted: 8 GPUs of a"),
        (1, "early runs on n1 GPUs 0-7, opportunistic"),
        (5, "early is back in line: preempted"),
        (10, "early runs on n0 GPUs 0-7, guaranteed (start number 2)"),
        (26, "early succeeded"),
    ]
    assert story.explanation.splitlines() == [
        "Asks for 8 GPUs of a, for 20 s.",
        "Waited 5 s in all, and was preempted 1 time.",
        "Waiting elsewhere: Private clusters (yarn-cs) 9 s; Quota (yarn-cs) 5 s.",
    ]


@pytest.mark.parametrize(
    ("more", "gpus", "turn"),
    [
        ([], 8, ["early is guaranteed from now on: its turn in a has come"]),
        (
            [("neighbour", "b", 0, 100, 1)],
            4,
            [
                "early is back in line: its turn in a has come, on other GPUs",
                "early runs on n0 GPUs 0-3, guaranteed (start number 2)",
            ],
        ),
    ],
    ids=["stays", "moves"],
)
def test_turn_of_a_job_on_a_loan(tmp_path: Path, more: list[Row], gpus: int, turn: list[str]) -> None:
    source = played(tmp_path, ("first", "a", 0, 10, 8), *more, ("early", "a", 1, 20, gpus))
    story = source.story(HIVED, "early")
    assert [stay.kind for stay in story.stays] == ["opportunistic", "guaranteed"]
    assert [moment.text for moment in story.moments][2:] == [*turn, "early succeeded"]


def test_work_done_again(tmp_path: Path) -> None:
    """Under one scheme alone there is no other to be compared with."""
    rows = [("first", "a", 0, 10, 8), ("early", "a", 0, 20, 8), ("owner", "b", 5, 10, 8)]
    results(tmp_path, TWO_NODES, trace_text(rows), preempted="restart", schemes=("hived",))
    source = ResultsSource(tmp_path)
    assert source.comparison() is None
    told = source.story(HIVED, "early").explanation
    assert "elsewhere" not in told
    assert "Waited 10 s in all, 5 s of it for work that it had to do again, and was preempted 1 time." in told


def test_job_larger_than_a_node(tmp_path: Path) -> None:
    source = played(tmp_path, ("wide", "a", 0, 10, 44), spec=nodes_of_8(6, {"a": 6}))
    story = source.story(HIVED, "wide")
    assert "Holds 48: a job larger than a node takes whole nodes." in story.explanation
    assert story.moments[1].text.endswith("n4 GPUs 0-7; n5 GPUs 0-7, guaranteed")
    assert len(story.stays[0].where.split(";")) == 6


def test_jobs_that_did_not_finish(tmp_path: Path) -> None:
    rows = [
        ("done", "a", 0, 5, 8), ("cut", "b", 0, 10, 8), ("stuck", "b", 1, 5, 8), ("wide", "a", 2, 1, 17),
        ("later", "a", 9, 1, 1),
    ]  # fmt: skip
    source = played(tmp_path, *rows, until_s=4)
    stories = {job: source.story("private yarn-cs", job) for job in ("cut", "stuck", "wide", "later")}
    assert [story.state for story in stories.values()] == ["running", "queued", "queued", "not submitted"]
    courses = [story.explanation.splitlines()[1] for story in stories.values()]
    assert courses == [
        "Still ran when the simulation stopped.",
        "Still waited when the simulation stopped.",
        "Is too large for its virtual cluster, and never finished.",
        "The simulation stopped before it was submitted.",
    ]
    assert [(stay.kind, stay.end) for stay in stories["cut"].stays] == [("guaranteed", 4)]
    assert [(stay.kind, stay.end) for stay in stories["stuck"].stays] == [("waiting", None)]
    assert not stories["later"].stays
    assert not stories["later"].moments


def test_job_of_no_work(tmp_path: Path) -> None:
    story = played(tmp_path, ("long", "a", 0, 10, 8), ("nothing", "a", 1, 0, 8)).story("private yarn-cs", "nothing")
    assert [(stay.start, stay.end, stay.kind) for stay in story.stays] == [(1, 10, "waiting")]
    assert story.explanation.splitlines()[1] == "Waited 9 s in all, and had no work to do at its turn."


def test_job_by_any_id(tmp_path: Path) -> None:
    ids = ["a/b", "../x", "with space", "😀", '"q", r', "?view=x", "%41"]
    quoted = ['"' + job.replace('"', '""') + '"' for job in ids]
    source = played(tmp_path, *((job, "a", 0, 10, 1) for job in quoted))
    assert [source.story(HIVED, job).id for job in ids] == ids
    assert {holder.id for holder in source.picture(HIVED, 1).holders} == set(ids)
    with pytest.raises(NotFoundError, match="no job 'k'"):
        source.story(HIVED, "k")


def check_history(events: list[Event]) -> None:
    """An engine could have recorded it: a walk of the table, but for a job without work, done at its turn."""
    state: JobState | None = None
    for event in events:
        assert (event.kind == SUBMITTED) is (state is None)
        if state is not None and event.kind in list(JobEvent) and (state, event.kind) != ("queued", "succeeded"):
            after, effect = transition(state, JobEvent(event.kind))
            assert ("placement" in event.data) is (effect in (Effect.TAKE, Effect.REBIND))
            assert after is state_after(state, event.kind)
        state = state_after(state, event.kind)


@given_in_tiers(10, 60, cases(), st.sampled_from(["resume", "restart"]), st.sampled_from([None, None, 5]))
def test_stays_add_up_to_the_delay(case: Case, preempted: str, until_s: float | None) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = results(folder, case.spec, case.trace, preempted=preempted, until_s=until_s)
        source = ResultsSource(folder)
    for record in found.results.records:
        outcome = found[record.scheme]
        for job in outcome.jobs.values():
            story = source.story(f"{record.scheme} {record.policy}", job.job_id)
            number, view = source._jobs.number[job.job_id], source._view(f"{record.scheme} {record.policy}")
            check_history(view.stories.history(number))
            at = job.submit / 1000
            for stay in story.stays:
                assert stay.start == at
                assert stay.end is None or stay.end > at
                at = at if stay.end is None else stay.end
            if job.finish is None or job.queue is None:
                assert story.state != "finished"
                continue
            assert at == job.finish / 1000
            waited = sum(1000 * (stay.end or 0) - 1000 * stay.start for stay in story.stays if stay.kind == "waiting")
            ran = sum(run.end - run.start for run in outcome.runs[job.job_id])
            assert waited + ran - job.duration == pytest.approx(job.queue, abs=0.01)
            if preempted == "resume":
                assert waited == pytest.approx(job.queue, abs=0.01)
            assert [moment.at for moment in story.moments] == sorted(moment.at for moment in story.moments)


# -- curves and comparison


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tenants that meet, one that submits nothing."""
    folder = tmp_path_factory.mktemp("curves")
    rows = [
        (f"j{n}", "abc"[n * 7 % 3], n * 2, n * 31 % 83 + 1, [1, 1, 2, 4, 1, 8, 3, 16, 64][n * 4 % 9])
        for n in range(200)
    ]
    results(folder, nodes_of_8(5, {"a": 1, "b": 1, "c": 2, "idle": 1}), trace_text(rows))
    return folder


def series(folder: Path, scheme: str) -> list[dict[str, str]]:
    with (folder / "series.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["scheme"] == scheme]


def test_curves_are_the_series(folder: Path) -> None:
    curves = ResultsSource(folder).curves(HIVED)
    rows = series(folder, "hived")
    known = len(rows)
    assert curves.at[:known] == [float(row["time_s"]) for row in rows]
    for name in ("opportunistic", "fragmentation"):
        assert getattr(curves, name)[:known] == [pytest.approx(float(row[name]), abs=1e-5) for row in rows]
    held = [(mine or 0) + (lent or 0) for mine, lent in zip(curves.guaranteed, curves.opportunistic, strict=True)]
    assert held[:known] == [pytest.approx(float(row["utilization"]), abs=1e-5) for row in rows]
    assert list(curves.delay) == ["a", "b", "c", "idle"]
    assert set(curves.delay["idle"]) == {None}
    assert curves.delay["a"][:known] == [pytest.approx(float(row["delay_s a"]), rel=1e-5) for row in rows]


def test_curves_after_the_last_arrival(folder: Path) -> None:
    curves = ResultsSource(folder).curves("private yarn-cs")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    first = len(series(folder, "private"))
    assert curves.at[first] == summary["trace"]["window_s"]
    assert curves.at[-1] == summary["runs"][0]["makespan_s"]
    for values in (curves.guaranteed, curves.opportunistic, curves.fragmentation, curves.delay["a"]):
        assert set(values[first:]) == {None}
        assert len(values) == len(curves.at) == len(curves.waiting)
    assert (curves.waiting[first] or 0) > 20
    assert curves.waiting[-1] == summary["runs"][0]["unfinished"]


def test_curve_of_waiting_jobs(tmp_path: Path) -> None:
    rows = [(f"j{n}", "ab"[n % 2], n * 3 % 50, n * 7 % 19, [8, 4, 1][n % 3]) for n in range(60)]
    found = results(tmp_path, TWO_NODES, trace_text(rows))
    source = ResultsSource(tmp_path)
    for record in found.results.records:
        view = f"{record.scheme} yarn-cs"
        curves = source.curves(view)
        assert max(count or 0 for count in curves.waiting) > 3
        for at, count in zip(curves.at, curves.waiting, strict=True):
            assert count == source.picture(view, at).queue_total
            assert count == len(waiting(found[record.scheme], round(at * 1000), record.end))


def test_long_curves_are_thinned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ResultsSource(folder).curves(HIVED)
    known = len(series(folder, "hived"))
    monkeypatch.setattr(results_view, "MOST_POINTS", 12)
    monkeypatch.setattr(results_view, "MOST_AFTER", 5)
    thin = ResultsSource(folder).curves(HIVED)
    step = -(-known // 7)
    assert step > 1
    assert len(thin.at) <= 12
    left = len(range(0, known, step))
    assert thin.at[:left] == whole.at[:known:step]
    assert thin.waiting[:left] == whole.waiting[:known:step]
    first = [value or 0 for value in whole.fragmentation[:step]]
    assert thin.fragmentation[0] == pytest.approx(sum(first) / step, abs=1e-5)


def test_the_comparison_is_the_summary(folder: Path) -> None:
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    comparison = ResultsSource(folder).comparison()
    assert comparison is not None
    for outcome, run in zip(comparison.outcomes, told["runs"], strict=True):
        assert outcome.view == f"{run['scheme']} {run['policy']}"
        for name in (
            "utilization", "opportunistic", "fragmentation", "preemptions", "finished", "unfinished",
            "internal", "external", "preempted_gpus", "lost_gpu_s", "guests", "makespan_s",
        ):  # fmt: skip
            assert getattr(outcome, name) == run[name]
        assert [tenant.tenant for tenant in outcome.tenants] == ["a", "b", "c", "idle"]
        for tenant in (*outcome.tenants, outcome.overall):
            row = run["overall"] if tenant is outcome.overall else run["tenants"][tenant.tenant]
            assert (tenant.jobs, tenant.mean_delay_s, tenant.p95_delay_s, tenant.to_private, tenant.worse_jobs) == (
                row["jobs"], row["mean_s"], row["p95_s"], row["queue_to_private"], row["anomalies"]["jobs"],
            )  # fmt: skip
            for name in ("median", "p90", "p95", "p99"):
                assert getattr(tenant, f"{name}_delay_s") == row[f"{name}_s"]
                assert getattr(tenant, f"{name}_completion_s") == row[f"completion_{name}_s"]
            assert tenant.mean_completion_s == row["completion_mean_s"]
