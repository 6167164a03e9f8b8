"""What an experiment is: the simulations that it needs, a function from their results to series, and a text.

The text is a section of ``texts/PAPER.md``: the report itself, with places (Jinja) for numbers and verdicts. It has
the setting, the claims with ``shape(holds, seen)`` as their verdict, the paper's numbers beside ours, and what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .results import Result
from .simulations import Trial, Workload, trace_label

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

T = TypeVar("T")
_TEXTS = Path(__file__).parent / "texts"
#: a line of a text for its control alone
_CONTROL = re.compile(r"^% (.*)\n", re.MULTILINE)
_CLAIM = re.compile(r"(?<=: \*\*)[a-z ]+(?=\*\*$)", re.MULTILINE)


class Shape(StrEnum):
    """Whether the shape of the paper's figure is that of ours."""

    HOLDS = "holds"
    FAILS = "does not hold"
    NOT_SEEN = "not seen on this trace"
    #: nothing here can tell: a quick run has too little of the trace, and what only echoes the paper is no result
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment on one trace."""

    text: str  #: from the setting on
    figures: Mapping[str, Callable[[], Figure]]  #: by the name of the file, to draw

    @property
    def claims(self) -> list[Shape]:
        """The verdict on each claim."""
        return [Shape(verdict) for verdict in _CLAIM.findall(self.text)]

    @property
    def shape(self) -> Shape:
        """That of the claims: one that fails makes it fail, one that is not seen or judged keeps it from holding."""
        shapes = self.claims or [Shape.NOT_JUDGED]
        return next(
            (shape for shape in (Shape.FAILS, Shape.NOT_SEEN, Shape.NOT_JUDGED) if shape in shapes), Shape.HOLDS
        )

    def unjudged(self) -> Outcome:
        """The same numbers without a verdict on them."""
        return Outcome(_CLAIM.sub(Shape.NOT_JUDGED.value, self.text), self.figures)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of an experiment is run."""

    samples: int  #: windows of Figure 5
    soft_seeds: int
    requests: int  #: of section 5.3
    speeds: tuple[float, ...]  #: how much faster the clock is in Figures 10 and 11, to see what the load does

    def of(self, full: T, quick: T) -> T:
        """What a full run has, or a quick one."""
        return quick if self is QUICK else full


FULL = Scale(50, 5, 10_000, (1.25, 1.5, 2.0))
QUICK = Scale(4, 1, 1_000, ())

#: by a name or, of many, by what sets them apart; so are their results
Trials = Mapping[Any, Trial]
Results = Mapping[Any, Result]
Simulations = Callable[[Workload, Scale], Trials]
#: what the text of an experiment has places for, and ``figures``, by the name of the file, to draw
Series = Callable[[Workload, Scale, Results], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of a paper."""

    name: str  #: in the names of files
    title: str
    shows: str  #: in the paper
    text: str
    simulations: Simulations
    series: Series
    by_hand: bool  #: it is of jobs made by hand, so that a quick run is a full one
    second: bool  #: whether it is run on the synthetic trace too, where another is given

    def evaluate(self, workload: Workload, scale: Scale, results: Results) -> Outcome:
        """Its series, drawn and judged."""
        found = self.series(workload, scale, results)
        known = {"workload": workload, "trace": trace_label(workload), "scale": scale, "quick": scale is QUICK}
        text = templates().from_string(self.text).render(results=results, **known, **found)
        return Outcome(text.rstrip("\n"), found.get("figures", {}))


class Evaluation:
    """The experiments of a paper, in the order of their texts."""

    def __init__(self, paper: str, *, table1: bool, timed: bool = False) -> None:
        """``table1``: its traces have HiveD's tenants, and a second one is run; ``timed``: section 5.3 is run too."""
        head, *sections = _read(f"{paper}.md").split("\n## ")
        self.heading, _, self.intro = head.removeprefix("# ").strip().partition("\n\n")
        self._texts: dict[str, tuple[str, str, str]] = {}
        for section in sections:
            title, shows, text = section.split("\n\n", 2)
            title, _, name = title.removesuffix("}").partition(" {#")
            self._texts[name] = title, shows.removeprefix("*The paper:* ").removesuffix("."), text
        self.experiments: list[Experiment] = []
        self.table1, self.timed = table1, timed

    def add(
        self, name: str, simulations: Simulations, series: Series, *, by_hand: bool = False, second: bool = False
    ) -> None:
        """An experiment whose text has this name."""
        self.experiments.append(Experiment(name, *self._texts[name], simulations, series, by_hand, second))
        self.experiments.sort(key=lambda one: list(self._texts).index(one.name))

    def of(self, name: str, simulations: Simulations, **more: bool) -> Callable[[Series], Series]:
        """The experiment of the decorated series."""

        def added(series: Series) -> Series:
            self.add(name, simulations, series, **more)
            return series

        return added

    def __getitem__(self, name: str) -> Experiment:
        return next(one for one in self.experiments if one.name == name)


def _read(text: str) -> str:
    return _CONTROL.sub(r"{% \1 %}", (_TEXTS / text).read_text(encoding="utf-8"))


def nothing(workload: Workload, scale: Scale) -> Trials:
    """No simulations."""
    return {}


@lru_cache(maxsize=1)
def templates() -> Environment:
    """The language of the texts: ``% for`` lines, filters for numbers, and ``shape`` for verdicts."""
    from jinja2 import Environment as NewEnvironment
    from jinja2 import FunctionLoader, StrictUndefined

    made = NewEnvironment(loader=FunctionLoader(_read), undefined=StrictUndefined, autoescape=False)
    made.filters |= {"n": number, "pct": percent, "f": format, "each": each}
    made.globals |= {"shape": shape_of, "setting": setting, "zip": zip, "nan": float("nan")}
    return made


def each(values: Sequence[Any], text: Callable[..., str] | str = "") -> str:
    """Values in a line, each as text: of a function, or a format."""
    return ", ".join(text(value) if callable(text) else format(value, text) for value in values)


def shape_of(holds: Any, seen: Any = True) -> str:
    """The verdict on a claim. ``seen``: whether the trace shows what the claim is about at all."""
    return (Shape.NOT_SEEN if not seen else Shape.HOLDS if holds else Shape.FAILS).value


def setting(workload: Workload, result: Result, nodes: int) -> str:
    """The setting of a simulation in a line."""
    return (
        f"{trace_label(workload)}; {nodes} nodes of 8 GPUs; {result.number('jobs'):,.0f} jobs submitted in "
        f"{result.number('days'):.1f} days, offered load {result.number('load'):.2f}"
    )


def number(value: float, unit: str = "") -> str:
    """A number as text, with as many digits as it needs."""
    if value != value:
        return "-"
    if abs(value) == float("inf"):
        return "infinite"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size else "0"
    return f"{text} {unit}".rstrip()


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 job``, ``2 jobs``."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def percent(value: float) -> str:
    """A share as text."""
    return "-" if value != value else f"{100 * value:.1f}%"
