"""What an experiment is: the simulations that it needs, and a function from their results to tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from hived.simulator.parallel import Task

from .results import Result
from .simulations import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Runnable(Protocol):
    """What an experiment needs the result of: a simulation of HiveD's evaluation, or a trial."""

    def task(self, label: str) -> Task:
        """The task that runs it; its result is plain data."""

    @property
    def cost(self) -> float:
        """Roughly, to begin with the longest."""


class Shape(StrEnum):
    """Whether the shape of the paper's figure is that of ours."""

    HOLDS = "holds"
    FAILS = "does not hold"
    NOT_SEEN = "not seen on this trace"
    #: nothing here can tell: a quick run has too little of the trace, and what only echoes the paper is no result
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Row:
    """One number of the paper beside ours."""

    what: str
    paper: str  #: a dash where it gives none
    ours: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that the paper's figure shows, and whether ours does."""

    text: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment on one trace."""

    setting: str  #: cluster, clock, window, seeds
    rows: Sequence[Row]
    claims: Sequence[Claim]
    differs: str  #: what differs from the paper, and why
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  #: by the name of the file, to draw

    @property
    def shape(self) -> Shape:
        """That of the claims: one that fails makes it fail, one that is not seen or judged keeps it from holding."""
        shapes = [claim.shape for claim in self.claims] or [Shape.NOT_JUDGED]
        return next(
            (shape for shape in (Shape.FAILS, Shape.NOT_SEEN, Shape.NOT_JUDGED) if shape in shapes), Shape.HOLDS
        )

    def unjudged(self) -> Outcome:
        """The same numbers without a verdict on them."""
        return replace(self, claims=[replace(claim, shape=Shape.NOT_JUDGED) for claim in self.claims])


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an experiment is run."""

    samples: int  #: windows of Figure 5
    soft_seeds: int
    requests: int  #: of section 5.3
    speeds: tuple[float, ...]  #: how much faster the clock is in Figures 10 and 11, to see what the load does


FULL = Scale(50, 5, 10_000, (1.25, 1.5, 2.0))
QUICK = Scale(4, 1, 1_000, ())


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of a paper."""

    name: str  #: in the names of files
    title: str
    shows: str  #: in the paper
    simulations: Callable[[Workload, Scale], Mapping[str, Runnable]]
    evaluate: Callable[[Workload, Scale, Mapping[str, Result]], Outcome]
    by_hand: bool = False  #: it is of jobs made by hand, so that a quick run is a full one
    second: bool = False  #: whether it is run on the synthetic trace too, where another is given


def shape_of(seen: bool, holds: bool) -> Shape:
    """``seen``: whether the trace shows what the claim is about at all."""
    if not seen:
        return Shape.NOT_SEEN
    return Shape.HOLDS if holds else Shape.FAILS


def trace_label(workload: Workload) -> str:
    """The trace in a title: a synthetic one is called so."""
    label = "synthetic trace of Table 1" if workload.path is None else workload.name
    return label if workload.window is None else f"{label}, days {workload.window[0]:g} to {workload.window[1]:g}"


def setting(workload: Workload, result: Result, nodes: int, more: str = "") -> str:
    """The setting of a simulation in a line."""
    text = (
        f"{trace_label(workload)}; {nodes} nodes of 8 GPUs; {result.number('jobs'):,.0f} jobs submitted in "
        f"{result.number('days'):.1f} days, offered load {result.number('load'):.2f}"
    )
    return f"{text}; {more}" if more else text


def number(value: float, unit: str = "") -> str:
    """A number as text, with as many digits as it needs."""
    if value != value:
        return "-"
    if abs(value) == float("inf"):
        return "infinite"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size else "0"
    return f"{text} {unit}".rstrip()


def percent(value: float) -> str:
    """A share as text."""
    return "-" if value != value else f"{100 * value:.1f}%"
