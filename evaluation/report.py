"""The report: ``index.md``, figures as PNG, and ``timings.md``, the one file that depends on the machine."""

from __future__ import annotations

import fnmatch
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hived import __version__
from hived.simulator.figures import styled
from hived.simulator.parallel import write_whole

from .experiment import Experiment, Outcome, Scale, Shape, templates
from .papers import EVALUATIONS, Paper
from .simulations import Workload, trace_label

INDEX, TIMINGS = "index.md", "timings.md"
_FIGURES = ("fig*.png", "draft-fig*.png", "gandiva-fig*.png", "gandiva-table*.png", "antman-fig*.png")


@dataclass(frozen=True, slots=True)
class Part:
    """An experiment, on one or two traces."""

    experiment: Experiment
    outcomes: list[tuple[Workload, Outcome]]


@dataclass(frozen=True, slots=True)
class Report:
    """All experiments."""

    paper: Paper
    first: Workload
    second: Workload | None
    scale: Scale
    quick: bool
    parts: tuple[Part, ...]
    timing: Mapping[str, float] | None  #: of section 5.3

    def shapes(self) -> list[tuple[str, str, Shape]]:
        """Experiment, trace, verdict."""
        return [
            (part.experiment.name, workload.name, outcome.shape)
            for part in self.parts
            for workload, outcome in part.outcomes
        ]


def is_ours(path: Path) -> bool:
    """Whether a file is one of a report's, by its name."""
    return path.name in (INDEX, TIMINGS) or any(fnmatch.fnmatch(path.name, pattern) for pattern in _FIGURES)


def write(report: Report, out: Path) -> None:
    """Write the report's files, each whole; figures of an earlier one are removed."""
    figures = {}
    with styled():
        for part in report.parts:
            for workload, outcome in part.outcomes:
                for name, draw in outcome.figures.items():
                    content = io.BytesIO()
                    draw().savefig(content, format="png", dpi=150, metadata={"Software": None})
                    figures[_file(report, workload, name)] = content.getvalue()
    for name, picture in figures.items():
        write_whole(out / name, picture)
    if report.timing is not None:
        write_whole(out / TIMINGS, _rendered("timings.md", **report.timing))
    known = {"evaluation": EVALUATIONS[report.paper], "version": __version__, "days": report.first.window}
    index = _rendered("report.md", report=report, verdict=_verdict, label=trace_label, file_of=_file, **known)
    write_whole(out / INDEX, index)
    for path in out.iterdir():
        if path.suffix == ".png" and path.name not in figures:
            path.unlink()


def _rendered(text: str, **known: object) -> bytes:
    return (templates().get_template(text).render(**known).rstrip("\n") + "\n").encode()


def _file(report: Report, workload: Workload, name: str) -> str:
    """The file of a figure; of the second trace's a name of its own."""
    return f"{name}{'-table1' if workload is report.second else ''}.png"


def _verdict(outcome: Outcome) -> str:
    if outcome.shape is Shape.NOT_JUDGED:
        return outcome.shape.value
    return f"{outcome.shape.value} ({outcome.claims.count(Shape.HOLDS)}/{len(outcome.claims)})"
