"""The papers' figures, from our own records, as PNG and SVG.

Colours are those of Okabe and Ito, safe for the colour-blind, and every scheme has its own line style as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hived.cluster.sharing import Sharing
from hived.errors import InputError
from hived.installed import command_for

from .metrics import HOUR_MS
from .report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOK = {
    Sharing.PRIVATE.value: ("#000000", (0, (4, 2)), "Private"),
    Sharing.QUOTA.value: ("#D55E00", (0, ()), "Quota"),
    Sharing.HIVED.value: ("#0072B2", (0, ()), "HiveD"),
}
_DAY_MS = 24 * HOUR_MS
#: the figures by name, and the names of their files, which the policy's follows
STEMS = {"delay": "queueing-delay-over-time", "normalised": "delay-normalised-to-private"}


def need_matplotlib() -> None:
    """Raise :class:`~hived.errors.InputError` unless matplotlib, an extra, is installed."""
    if find_spec("matplotlib") is None:
        raise InputError(f"figures need matplotlib: {command_for('figures')}; or give --no-figures")


@contextmanager
def styled() -> Iterator[None]:
    """The style of all figures (matplotlib's settings), while they are drawn and saved."""
    import matplotlib as mpl

    with mpl.rc_context(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "text.parse_math": False,  # names may hold a $
            "svg.hashsalt": "hived",  # the same figure gives the same bytes
            "svg.fonttype": "path",
            "savefig.dpi": 200,
        }
    ):
        yield


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every figure for which the report has the runs; returns the files."""
    need_matplotlib()
    written = []
    with styled():
        for name, policy, figure in draw(report):
            written += _save(figure, folder / f"{STEMS[name]}-{file_name(policy)}")
    return written


def draw(report: Report, names: Sequence[str] = tuple(STEMS)) -> Iterator[tuple[str, str, Figure]]:
    """Every figure of ``names`` for which the report has the runs: name, policy, figure. Call it :func:`styled`."""
    for policy in report.results.policies:
        shown = report.results.scenario.tenants or pick_tenants(report, policy)
        if "delay" in names and shown:
            yield "delay", policy, _delay_over_time(report, policy, shown)
        private = report.run(Sharing.PRIVATE, policy)
        if "normalised" in names and private is not None and len(report.results.scenario.schemes) > 1:
            yield "normalised", policy, _normalised(report, policy)


def _save(figure: Figure, stem: Path) -> list[Path]:
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def file_name(policy: str) -> str:
    """The name of a policy in that of a file."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", policy)


def pick_tenants(report: Report, policy: str, count: int = 3) -> list[str]:
    """The tenants with the largest effects: by the worst scheme's mean delay over private's, else by delay alone."""
    runs = [run for run in report.runs if run.policy == policy]
    private = report.run(Sharing.PRIVATE, policy)
    shared = [run for run in runs if run.scheme != Sharing.PRIVATE.value] or runs
    ranked = []
    for number, vc in enumerate(report.results.spec.virtual_clusters):
        rows = [run.tenants[number] for run in shared]
        if rows[0].delay.jobs:
            worst = max(row.delay.mean_s for row in rows)
            base = 1.0 if private is None else max(private.tenants[number].delay.mean_s, 1.0)
            ranked.append((-worst / base, vc.name))
    return [name for _, name in sorted(ranked)[:count]]


def _title(report: Report) -> str:
    trace = report.results.trace
    kind = "synthetic trace" if trace.synthetic else "trace"
    return (
        f"{kind} {trace.name}: {len(trace.jobs):,} jobs, {report.window_s / 86400:.0f} days; "
        f"{report.nodes:,} nodes, {report.gpus:,} GPUs, offered load {report.load:.2f}"
    )


def _delay_over_time(report: Report, policy: str, tenants: Sequence[str]) -> Figure:
    """After HiveD's Figure 6: delay of chosen tenants over time; below, fragmentation, and what of it others cause."""
    from matplotlib.figure import Figure as NewFigure

    rows = len(tenants) + 1
    figure = NewFigure(figsize=(7.2, 1.5 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    runs = [run for run in report.runs if run.policy == policy]
    for axis, tenant in zip(axes, tenants, strict=False):
        for run in runs:
            delays = run.delay_over_time
            colour, dashes, label = _LOOK[run.scheme]
            minutes = delays.mean_ms[tenant] / 60_000
            axis.plot(delays.at / _DAY_MS, minutes, color=colour, linestyle=dashes, linewidth=1.3, label=label)
        _log_from_zero(axis)
        axis.set_ylabel(f"{tenant}\ndelay (min)")
    below = axes[-1]
    for run in runs:
        colour, dashes, label = _LOOK[run.scheme]
        middle = (run.series.edges[:-1] + run.series.edges[1:]) / 2 / _DAY_MS
        below.plot(middle, 100 * run.series.fragmentation, color=colour, linestyle=dashes, linewidth=1.0, label=label)
        if run.external:
            below.fill_between(middle, 100 * run.series.external, color=colour, alpha=0.4, linewidth=0)
            below.annotate("area: GPUs denied to tenants by others (%)", (0.995, 0.24), xycoords="axes fraction",
                           ha="right", fontsize=7)  # fmt: skip
    below.set_ylim(0, 102)
    below.set_ylabel("fragmented\nnodes (%)")
    below.set_xlabel("time of submission (days)")
    figure.align_ylabels(axes)
    handles, labels = below.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    figure.suptitle(
        f"Queueing delay, mean of a moving 12-hour window ({policy})\n{_title(report)}",
        fontsize=8.5, x=0.01, ha="left",
    )  # fmt: skip
    return figure


def _log_from_zero(axis: Axes) -> None:
    """Scale for delays from 0 and seconds to weeks: linear up to a minute, logarithmic above."""
    axis.set_yscale("symlog", linthresh=1)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(_plain_number)


def _plain_number(value: float, _: object = None) -> str:
    """0.01, 10, 10,000: no powers, since math parsing is off for names with a $."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _normalised(report: Report, policy: str) -> Figure:
    """After HiveD's Figure 7: mean delay of every tenant over that in its private cluster."""
    from matplotlib.figure import Figure as NewFigure

    runs = [run for run in report.runs if run.policy == policy and run.scheme != Sharing.PRIVATE.value]
    private = report.run(Sharing.PRIVATE, policy)
    names = [str(tenant.tenant) for tenant in runs[0].tenants if tenant.delay.jobs]
    figure = NewFigure(figsize=(7.2, 3.3), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / len(runs)
    ratios = [t.to_private for run in runs for t in run.tenants if 0 < t.to_private < math.inf]
    low, high = min([*ratios, 0.5]), max([*ratios, 2.0])
    for number, run in enumerate(runs):
        colour, _, label = _LOOK[run.scheme]
        values = {str(t.tenant): t.to_private for t in run.tenants}
        place = np.arange(len(names)) + (number - (len(runs) - 1) / 2) * width
        # bars start at 1, private's delay: upward is worse, downward better; a ratio of 0 reaches the floor
        # and an infinite one the ceiling
        tops = [1.0 if math.isnan(r := values[name]) else min(max(r, low / 2), high * 2) for name in names]
        axis.bar(place, [top - 1 for top in tops], width, bottom=1, color=colour, label=label)
        for x, top, name in zip(place, tops, names, strict=True):
            word = _ratio_word(values[name])
            axis.annotate(
                word, (x, top), (0, 3 if top >= 1 else -3), textcoords="offset points", ha="center",
                va="bottom" if top >= 1 else "top", rotation=90, fontsize=6,
            )  # fmt: skip
    axis.set_yscale("log")
    axis.set_ylim(low / 8, high * 5)
    axis.axhline(1, color="black", linewidth=1)
    axis.yaxis.set_major_formatter(_plain_number)
    axis.annotate("worse than private", (0.005, 1), (0, 3), xycoords=("axes fraction", "data"),
                  textcoords="offset points", fontsize=7)  # fmt: skip
    labels = names
    if private is not None:
        means = {str(t.tenant): t.delay.mean_s for t in private.tenants}
        labels = [f"{name}\n{_span(means[name])}" for name in names]
    axis.set_xticks(np.arange(len(names)), labels, fontsize=7)
    axis.set_ylabel("mean delay / private's")
    axis.set_xlabel("tenant, and its mean queueing delay in its private cluster")
    axis.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=len(runs))
    figure.suptitle(
        f"Queueing delay against a private cluster ({policy})\n{_title(report)}", fontsize=8.5, x=0.01, ha="left"
    )
    return figure


def _ratio_word(ratio: float) -> str:
    if math.isnan(ratio):
        return "both 0"
    if math.isinf(ratio):
        return "private 0"
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def _span(s: float) -> str:
    """Format a delay in a suitable unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if s >= 2 * length:
            return f"{s / length:,.0f} {unit}"
    return f"{s:.0f} s"
