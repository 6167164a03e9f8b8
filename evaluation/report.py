"""The report: ``index.md``, figures as PNG, and ``timings.md``, the one file that depends on the machine."""

from __future__ import annotations

import fnmatch
import io
from dataclasses import dataclass
from pathlib import Path

from hived import __version__
from hived.simulator.figures import styled
from hived.simulator.parallel import write_whole

from .experiment import Experiment, Outcome, Scale, Shape, trace_label
from .papers import EVALUATIONS, Paper
from .section53 import PAPER_MS, Timing
from .simulations import Workload

INDEX, TIMINGS = "index.md", "timings.md"
_FIGURES = ("fig*.png", "draft-fig*.png", "gandiva-fig*.png")
#: the file of a figure of the second trace has this before its end
_SECOND = "-table1"


@dataclass(frozen=True, slots=True)
class Part:
    """An experiment, on one or two traces."""

    experiment: Experiment
    outcomes: tuple[tuple[Workload, Outcome], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All experiments."""

    paper: Paper
    first: Workload
    second: Workload | None
    scale: Scale
    quick: bool
    parts: tuple[Part, ...]
    timing: Timing | None

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
        write_whole(out / TIMINGS, timings(report.timing).encode())
    write_whole(out / INDEX, index(report).encode())
    for path in out.iterdir():
        if path.suffix == ".png" and path.name not in figures:
            path.unlink()


def _file(report: Report, workload: Workload, name: str) -> str:
    return f"{name}{_SECOND if workload is report.second else ''}.png"


def timings(timing: Timing) -> str:
    """The measured times."""
    return (
        f"# Section 5.3, measured here\n\n{timing.requests:,} requests at random levels at 65,536 GPUs, "
        f"{timing.started:,} of "
        f"which started: {timing.mean_ms:.2f} ms of CPU time each in the mean, {timing.p99_ms:.2f} ms at 99%. The "
        "paper: "
        f"{PAPER_MS} ms in the mean.\n"
    )


def index(report: Report) -> str:
    """The whole text."""
    evaluation = EVALUATIONS[report.paper]
    lines = [
        f"# {evaluation.heading}",
        "",
        f"`python -m evaluation {report.paper}`, version {__version__}. {evaluation.intro}",
        "",
        *(_traces(report) if evaluation.table1 else _durations(report)),
        "",
        "## Which shapes hold",
        "",
        "An experiment holds where all of its claims do; in brackets the claims that hold. Nothing was tuned. What "
        "only echoes the paper's own numbers, or has too little of the trace, is not judged.",
        "",
        *_summary(report),
    ]
    for part in report.parts:
        lines += ["", f"## {part.experiment.title}", "", f"*The paper:* {part.experiment.shows}."]
        for workload, outcome in part.outcomes:
            lines += _outcome(report, workload, outcome)
    if report.timing is not None:
        below = "below" if report.timing.mean_ms < PAPER_MS else "not below"
        lines += [
            "",
            "## Section 5.3: time of a request",
            "",
            f"*The paper:* 10,000 requests at random levels at 65,536 GPUs take {PAPER_MS} ms each in the mean (in "
            "Go).",
            "",
            f"Ours: {report.timing.requests:,} requests, the mean is {below} the paper's. Times depend on the "
            "machine: they "
            f"are in [{TIMINGS}]({TIMINGS}), the only file here that two runs do not have in common.",
        ]
    return "\n".join(lines) + "\n"


def _durations(report: Report) -> list[str]:
    """The trace of a paper that needs durations and sizes alone."""
    lines = [f"**Durations and sizes**, where the paper has them of a trace: {trace_label(report.first)}."]
    if report.quick:
        lines += [
            "",
            "**Quick.** Less of everything: the numbers show that the experiments run, not what they find, and "
            "are not judged.",
        ]
    return lines


def _traces(report: Report) -> list[str]:
    first = report.first
    if first.path is None:
        lines = [
            "**Synthetic trace.** No trace was given (`--trace`): all numbers here are of a synthetic one, with the "
            "tenants and "
            "sizes of the paper's Table 1 and the durations and arrivals of Philly's statistics."
        ]
    else:
        lines = [
            f"**Trace.** The file given, SHA-256 `{(first.sha256 or '')[:16]}`, with its own clock at 279 nodes and "
            f"x{first.crowded:g} "
            "at 200 nodes."
        ]
    if report.second is not None:
        lines += [
            "",
            "**Second trace.** Experiments with a second verdict are run on the synthetic trace of Table 1 too: the "
            "paper's number of jobs by tenant and size, durations and arrivals of Philly's statistics.",
        ]
    made = report.second or (first if first.path is None else None)
    if made is not None:
        lines[-1] += (
            f" {made.jobs:,} jobs over {made.days} days, clock x{made.clock:g} at 279 nodes: that is an "
            "offered load "
            f"of 0.7, the paper's utilization there; x{made.crowded:g} at 200 nodes, faster by as much as any other "
            "trace's."
        )
    if report.quick:
        window = first.window or (0.0, 0.0)
        lines += [
            "",
            f"**Quick.** Only days {window[0]:g} to {window[1]:g} of the trace, {report.scale.samples} samples in "
            "Figure 5, "
            f"{report.scale.soft_seeds} seed in Figure 9, no second trace: the numbers show that the experiments run, "
            "not what they find, and are not judged: the cluster starts empty, and a short trace may not fill it.",
        ]
    return lines


def _summary(report: Report) -> list[str]:
    heads = [trace_label(report.first)]
    if report.second is not None:
        heads.append(trace_label(report.second))
    lines = [f"| experiment | {' | '.join(heads)} |", f"|---{'|---' * len(heads)}|"]
    for part in report.parts:
        shapes = [_verdict(outcome) for _, outcome in part.outcomes]
        shapes += ["not run"] * (len(heads) - len(shapes))
        lines.append(f"| {part.experiment.title} | {' | '.join(shapes)} |")
    return lines


def _verdict(outcome: Outcome) -> str:
    if outcome.shape is Shape.NOT_JUDGED:
        return outcome.shape.value
    held = sum(claim.shape is Shape.HOLDS for claim in outcome.claims)
    return f"{outcome.shape.value} ({held}/{len(outcome.claims)})"


def _outcome(report: Report, workload: Workload, outcome: Outcome) -> list[str]:
    lines = ["", f"### {outcome.shape.value}: {trace_label(workload)}", "", f"*Setting:* {outcome.setting}.", ""]
    lines += [f"- {claim.text}: **{claim.shape.value}**" for claim in outcome.claims]
    lines += ["", "| | paper | ours |", "|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, (row.what, row.paper, row.ours)))} |" for row in outcome.rows]
    lines += ["", f"*What differs:* {outcome.differs}"]
    for name in outcome.figures:
        file = _file(report, workload, name)
        lines += ["", f"![{file}]({file})"]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
