"""Folders of results, and pictures in the terms of ``runs.csv``: which job is on which GPUs of which node."""

from __future__ import annotations

from pathlib import Path

from hived.server.pictures import Chain, Picture, Stretch
from hived.server.results import ResultsSource
from hived.simulator import Scenario, Sharing, make_report, run_experiment
from hived.simulator.output import write_summary, write_table
from hived.simulator.study import Study
from hived.simulator.tables import series_table
from hived.simulator.traces import read_trace
from hived.spec import parse_spec
from tests.simulator.hardware import Gpu
from tests.simulator.helpers import Experiment, Row, nodes_of_8, simulated, trace_text
from tests.simulator.reader import Interval, JobRow, Outcome

TWO_NODES = nodes_of_8(2, {"a": 1, "b": 1})

#: (job, kind, GPUs)
Held = tuple[str, str, frozenset[Gpu]]


def results(
    folder: Path, spec: str | Path, trace: str | Path, *, schemes: tuple[str, ...] = ("private", "quota", "hived"),
    opportunistic: bool = True, preempted: str = "resume", until_s: float | None = None,
) -> Experiment:  # fmt: skip
    """All files of a simulation in ``folder``, as ``hived simulate`` writes them."""
    found = simulated(
        folder, spec, trace, schemes=schemes, opportunistic=opportunistic, preempted=preempted, until_s=until_s
    )
    report = make_report(found.results)
    write_table(series_table(report), folder / "series.csv")
    write_summary(report, folder / "summary.json")
    return found


def unaudited(folder: Path, spec: str, *rows: Row) -> ResultsSource:
    """Under hived alone, for names and placements that the reader of the tests does not take."""
    (folder / "trace.csv").write_text(trace_text(rows), encoding="utf-8")
    found = run_experiment(parse_spec(spec, "spec"), read_trace(folder / "trace.csv"), Scenario(schemes=Sharing.HIVED))
    Study(found).save(folder / "out", figures=False)
    return ResultsSource(folder / "out")


def played(folder: Path, *rows: Row, spec: str = TWO_NODES, until_s: float | None = None) -> ResultsSource:
    """Rows (id, tenant, submit, duration, GPUs) under every scheme, by default on a node for a and a node for b."""
    results(folder, spec, trace_text(rows), until_s=until_s)
    return ResultsSource(folder)


def shown(source: ResultsSource, view: str, picture: Picture) -> list[Held]:
    """Who holds what in a picture, in order."""
    chains = next(one.chains for one in source.layout().views if one.key == view)
    found = [(h.id, h.kind, [gpu for part in h.parts for gpu in gpus(chains, part)]) for h in picture.holders]
    for job, _, held in found:
        assert len(set(held)) == len(held), f"{job} has a GPU twice"
    return sorted((job, kind, frozenset(held)) for job, kind, held in found)


def gpus(chains: list[Chain], part: Stretch) -> list[Gpu]:
    """Node and device index of every leaf in a stretch."""
    number, node, first, count = part
    chain = chains[number]
    devices = chain.devices.get(node) or list(range(chain.levels[chain.node_level - 1].gpus))
    return [(chain.nodes[node], device) for device in devices[first : first + count]]


def running(outcome: Outcome, at: int, end: int) -> list[tuple[JobRow, Interval]]:
    """A look through all of ``runs.csv``. Times in milliseconds; at the end, what was cut off there still runs."""
    return [
        (job, run)
        for job, run in outcome.all_runs()
        if run.start <= at < run.end or (at == run.end == end and not job.finished)
    ]


def waiting(outcome: Outcome, at: int, end: int) -> list[JobRow]:
    """Who is there and does not run, in the order of the trace."""
    busy = {job.job_id for job, _ in running(outcome, at, end)}
    return [
        job
        for job in outcome.jobs.values()
        if job.submit <= at and (job.finish is None or at < job.finish) and job.job_id not in busy
    ]
