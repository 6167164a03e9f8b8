"""The figures of a reproduction: colours and styles are those of ``hived simulate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .measures import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: colour and line style, safe for the colour-blind
_LOOK: dict[str, tuple[str, str, str]] = {
    "private": ("#000000", "--", "Private"),
    "quota": ("#D55E00", "-", "Quota"),
    "hived": ("#0072B2", "-", "HiveD"),
    "dynamic": ("#0072B2", "-", "Dynamic binding"),
    "static": ("#E69F00", "-", "Static binding"),
    "levels": ("#009E73", "-", "Cells of levels 1 to 4"),
    "nodes": ("#0072B2", "-", "Cells of level 4"),
    "no quota": ("#CC79A7", "-", "No quota"),
    "contributed, exchange": ("#0072B2", "-", "contributed, exchange"),
    "benefited, exchange": ("#D55E00", "-", "benefited, exchange"),
    "contributed, low-priority": ("#56B4E9", "-", "contributed, low-priority"),
    "benefited, low-priority": ("#E69F00", "-", "benefited, low-priority"),
    "paper": ("#999999", ":", "Paper"),
}
_OTHERS = ("#56B4E9", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#0072B2", "#F0E442")


def look(name: str, at: int = 0) -> tuple[str, str, str]:
    """Colour, line style and label of an arm."""
    return _LOOK.get(name, (_OTHERS[at % len(_OTHERS)], "-", name))


def _figure(title: str, width: float, height: float) -> Figure:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=8.5, x=0.01, ha="left")
    return figure


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over days."""

    label: str
    lines: Mapping[str, tuple[Floats, Floats]]  #: by arm: days and values
    log: bool = False
    bottom: float | None = 0.0
    top: float | None = None


def over_time(title: str, panels: Sequence[Panel], xlabel: str = "time of submission (days)") -> Figure:
    """Panels one below the other."""
    figure = _figure(title, 7.2, 1.7 * len(panels) + 0.9)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    shown: dict[str, Line2D] = {}
    for axis, panel in zip(axes, panels, strict=True):
        for at, (name, (days, values)) in enumerate(panel.lines.items()):
            colour, style, label = look(name, at)
            (line,) = axis.plot(days, values, color=colour, linestyle=style, linewidth=1.1, label=label)
            shown.setdefault(label, line)
        if panel.log:
            axis.set_yscale("symlog", linthresh=1)
            axis.yaxis.set_major_formatter(plain_number)
        axis.set_ylim(bottom=panel.bottom, top=panel.top)
        axis.set_ylabel(panel.label)
    axes[-1].set_xlabel(xlabel)
    figure.align_ylabels(axes)
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown))
    return figure


def small_panels(
    title: str, panels: Mapping[str, tuple[Floats, Floats]], columns: int, xlabel: str, ylabel: str
) -> Figure:
    """A grid of one line each, with axes in common: linear up to 1, where a line is drawn, and logarithmic above."""
    rows = -(-len(panels) // columns)
    figure = _figure(title, 7.2, 1.6 * rows + 0.7)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis, (label, (x, y)) in zip(axes.flat, panels.items(), strict=False):
        axis.plot(x, y, color=_OTHERS[-2], linewidth=0.6)
        axis.axhline(1, color="black", linewidth=0.7, linestyle="--")
        axis.set_title(label, fontsize=8)
    axes[0, 0].set_yscale("symlog", linthresh=1, base=2)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].margins(x=0)
    axes[0, 0].yaxis.set_major_formatter(plain_number)
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    return figure


def plain_number(value: float, _: object = None) -> str:
    """0.1, 10, 10,000."""
    return f"{value:,.0f}" if abs(value) >= 1 or value == 0 else f"{value:g}"


def bars(
    title: str,
    groups: Sequence[str],
    values: Mapping[str, Sequence[float]],
    ylabel: str,
    line: float | None = 1.0,
    log: bool = True,
    spread: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Bars by group, one for each arm. With ``log`` and a ``line`` they begin at the line; ``spread``: low and high."""
    figure = _figure(title, 7.2, 3.2)
    axis = figure.subplots()
    base = line if log and line else 0.0
    _scale(axis, values, base, log)
    low, high = axis.get_ylim()
    width = 0.8 / len(values)
    for number, (name, of_arm) in enumerate(values.items()):
        colour, _, label = look(name, number)
        place = np.arange(len(groups)) + (number - (len(values) - 1) / 2) * width
        tops = [base if math.isnan(v) else min(max(v, low), high) for v in of_arm]
        axis.bar(place, [top - base for top in tops], width, bottom=base, color=colour, label=label)
        for at, (x, top, value) in enumerate(zip(place, tops, of_arm, strict=True)):
            reach = top
            if spread is not None and name in spread and not math.isnan(spread[name][at][0]):
                least, most = spread[name][at]
                axis.plot([x, x], [max(least, low), min(most, high)], color="#444444", linewidth=1.2)
                reach = max(top, min(most, high))
            up = reach >= base
            axis.annotate(
                _word(value),
                (x, reach),
                (0, 3 if up else -3),
                textcoords="offset points",
                ha="center",
                va="bottom" if up else "top",
                rotation=90 if len(groups) * len(values) > 12 else 0,
                fontsize=6.5,
            )
    if line is not None:
        axis.axhline(line, color="black", linewidth=1)
    axis.yaxis.set_major_formatter(plain_number)
    axis.set_xticks(np.arange(len(groups)), groups, fontsize=7.5)
    axis.set_ylabel(ylabel)
    axis.grid(visible=False, axis="x")
    wide = sum(map(len, values)) > 70
    figure.legend(loc="outside lower center", ncols=2 if wide else len(values))
    return figure


def _scale(axis: Axes, values: Mapping[str, Sequence[float]], base: float, log: bool) -> None:
    known = [v for of_arm in values.values() for v in of_arm if math.isfinite(v)]
    if log:
        above = [v for v in known if v > 0]
        axis.set_yscale("log")
        axis.set_ylim(max(min([*above, base / 2 or 0.1]) / 8, 1e-4), max([*above, 2 * base or 1.0]) * 4)
    else:
        axis.set_ylim(min([*known, 0]) * 1.25, max([*known, 1e-9]) * 1.25)


def _word(value: float) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def scatter(title: str, points: Mapping[str, tuple[Floats, Floats]], xlabel: str, ylabel: str) -> Figure:
    """Points of two measures."""
    figure = _figure(title, 5.0, 3.2)
    axis = figure.subplots()
    for at, (name, (x, y)) in enumerate(points.items()):
        colour, _, label = look(name, at)
        axis.scatter(x, y, s=10, color=colour, label=label, alpha=0.7)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    figure.legend(loc="outside lower center", ncols=len(points))
    return figure
