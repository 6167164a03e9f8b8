"""The picture of a timeline of GPUs: a band per GPU; below it the rates, as in Gandiva (OSDI'18, Figures 9, 11)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hived.errors import InputError

from .figures import need_matplotlib, styled
from .timeline import DAY_MS, GUESTS, Box, Lane, Recorded, Timeline, Way, choose_nodes, choose_window, timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerBase
    from matplotlib.patches import Patch

#: colours of jobs: Okabe and Ito's, which people with any kind of colour vision tell apart, and a brown
HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C6D4F")
_WIDTH = 9.0  #: inches: 900 px on a screen
_GREY = "#777777"
_IDLE = "#EEEEEE"
_HATCH = "/////"
_FONT = 7.5  #: points, of names in boxes
_MOST_LISTED = 24  #: jobs in the legend
_LONGEST = 18  #: letters of a name in the legend
_MOST_BOXES = 40_000
_WAYS = {
    Way.WHOLE: "alone on the GPU",
    Way.SLICED: "sliced: height is the share of its time",
    Way.PACKED: "hatched: packed, run at the same time",
    Way.GUEST: "thin band on top: guest of the owner below",
}
_UNITS = ((2 * DAY_MS, DAY_MS, "days"), (3 * 3_600_000, 3_600_000, "hours"), (180_000, 60_000, "minutes"))


def write_timeline(figure: Figure, file: Path) -> Path:
    """Write a timeline as PNG or SVG, as the file's name says; returns it. Raises :class:`~hived.errors.InputError`."""
    check_picture(file)
    no_date = {"Software": None} if file.suffix == ".png" else {"Date": None, "Creator": None}
    try:
        with styled():
            figure.savefig(file, metadata=no_date)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); choose another --out") from None
    return file


def picture_of(
    recorded: Recorded, nodes: Sequence[str] = (), days: tuple[float, float] | None = None, rates: bool = False
) -> Figure:
    """The timeline of these nodes on these days; without them, where and when jobs share GPUs."""
    need_matplotlib()
    chosen = choose_nodes(recorded, nodes)
    start, end = choose_window(recorded, chosen, days)
    return draw_timeline(timeline(recorded, chosen, start, end), f"{', '.join(chosen)}: {recorded.label}", rates)


def check_picture(file: Path) -> None:
    """Raise :class:`~hived.errors.InputError` unless the name is that of a picture; called before long work."""
    if file.suffix not in (".png", ".svg"):
        raise InputError(f"{file}: a timeline is written as .svg or .png; name the file so")
    if not file.absolute().parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it, or choose another --out")


def draw_timeline(shown: Timeline, title: str, rates: bool = False) -> Figure:
    """A band per GPU; with ``rates`` below it the rate of progress of every job, and their sum."""
    need_matplotlib()
    from matplotlib.figure import Figure as NewFigure

    boxes = sum(len(lane.boxes) for lane in shown.lanes)
    if boxes > _MOST_BOXES:
        raise InputError(f"{boxes:,} changes are too many for one picture; give fewer nodes or a shorter window")
    with styled():
        floors = _floors(shown)
        heights = [min(max(0.5 * len(shown.lanes), 0.7), max(8.0, 0.12 * len(shown.lanes))), 1.7]
        figure = NewFigure(figsize=(_WIDTH, 1.5 + sum(heights[: 1 + rates])), layout="constrained")
        axes = figure.subplots(1 + rates, 1, sharex=True, squeeze=False, height_ratios=heights[: 1 + rates])[:, 0]
        unit, word = next(((unit, word) for least, unit, word in _UNITS if shown.end - shown.start >= least),
                          (1000, "seconds"))  # fmt: skip
        _bands(axes[0], shown, unit, floors)
        if rates:
            _lines(axes[1], shown, unit)
        axes[-1].set_xlabel(f"{word} since the start of the trace")
        axes[0].set_xlim(shown.start / unit, shown.end / unit)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        figure.legend(
            handles=_fills(shown, rates), handler_map=_samples(), loc="outside lower center", ncols=3, fontsize=7.5,
            handlelength=2.4, handleheight=1.2,
        )  # fmt: skip
        if jobs := _jobs(shown):
            figure.legend(handles=jobs, loc="outside right upper", fontsize=7.5, handlelength=1.2)
        figure.draw_without_rendering()  # lays out: names are put where there is room
        figure.set_layout_engine("none")
        _names(axes[0], shown, unit, floors)
    return figure


def _floors(timeline: Timeline) -> list[float]:
    """Where each lane stands, the first at 0 and the others below; a little apart from those of another node."""
    pitch = 1.15 + (GUESTS if Way.GUEST in timeline.ways else 0)
    floors = [0.0]
    for before, lane in pairwise(timeline.lanes):
        floors.append(floors[-1] - pitch - (0.25 if lane.node != before.node else 0))
    return floors


def _bands(axis: Axes, timeline: Timeline, unit: float, floors: list[float]) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    lanes = timeline.lanes
    axis.barh(
        floors, (timeline.end - timeline.start) / unit, 1, timeline.start / unit,
        align="edge", color=_IDLE, linewidth=0, zorder=0,
    )  # fmt: skip
    narrow = (timeline.end - timeline.start) / 450  # two pixels: an edge would hide the fill
    alike: dict[tuple[int, bool, bool, bool], list[list[tuple[float, float]]]] = {}
    for floor, lane in zip(floors, lanes, strict=True):
        for box in lane.boxes:
            low, high, left, right = floor + box.bottom, floor + box.top, box.start, box.end
            style = (
                timeline.colours[box.job], box.way is Way.PACKED, not box.rate, right - left < narrow
            )  # fmt: skip
            alike.setdefault(style, []).append(
                [(left / unit, low), (right / unit, low), (right / unit, high), (left / unit, high)]
            )
    for (colour, packed, paused, thin), corners in sorted(alike.items()):
        rgb = to_rgb(HUES[colour])
        face = tuple(1 - 0.22 * (1 - part) for part in rgb) if paused else rgb
        axis.add_collection(
            PolyCollection(
                corners, facecolors=[face], edgecolors=["none" if thin else "white"], linewidths=0.5,
                hatch=_HATCH if packed and not thin else None, zorder=2,
            ),
            autolim=False,
        )  # fmt: skip
    several = len({lane.node for lane in lanes}) > 1
    axis.set_yticks(
        [floor + 0.5 for floor in floors],
        [f"{lane.node} GPU {lane.device}" if several else f"GPU {lane.device}" for lane in lanes],
        fontsize=8 if len(lanes) <= 32 else 5,
    )
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(floors[-1] - 0.12, 1.05 + (GUESTS if Way.GUEST in timeline.ways else 0))
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)


class _Named(NamedTuple):
    """A stretch of a job at one place of a lane, with room for its name."""

    text: str
    job: int
    start: int
    end: int
    bottom: float
    top: float
    pale: bool


def _names(axis: Axes, timeline: Timeline, unit: float, floors: list[float]) -> None:
    """Names in the boxes that have room for them."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    area = axis.get_window_extent()
    dots = axis.figure.dpi
    across = area.width / (timeline.end - timeline.start)
    upward = area.height / abs(axis.get_ylim()[1] - axis.get_ylim()[0])
    widths: dict[str, float] = {}
    for floor, lane in zip(floors, timeline.lanes, strict=True):
        for one in _stretches(lane, timeline):
            size = min(_FONT, (one.top - one.bottom) * upward / dots * 72 / 1.25)
            if size < 5:
                continue
            for text in dict.fromkeys((one.text, timeline.names[one.job])):
                room = (one.end - one.start) * across / dots * 72 - 4
                if room < 2 * size * 0.5:
                    break
                if text not in widths:
                    widths[text] = TextPath((0, 0), text, size=100, prop=FontProperties()).get_extents().x1 / 100
                if widths[text] * size > room:
                    continue
                axis.text(
                    (one.start + one.end) / 2 / unit, floor + (one.bottom + one.top) / 2, text,
                    fontsize=size, color="black" if one.pale else _ink(HUES[timeline.colours[one.job]]),
                    ha="center", va="center_baseline", clip_on=True, zorder=4,
                )  # fmt: skip
                break


def _stretches(lane: Lane, timeline: Timeline) -> Iterator[_Named]:
    """The boxes of a lane, those that touch and look alike as one."""
    begun: list[Box] = []
    for box in lane.boxes:
        if begun and (begun[-1].end, _looks(begun[-1])) != (box.start, _looks(box)):
            yield _named(begun, timeline)
            begun = []
        begun.append(box)
    if begun:
        yield _named(begun, timeline)


def _looks(box: Box) -> tuple[object, ...]:
    return box.job, box.bottom, box.top, box.way, not box.rate


def _named(boxes: list[Box], timeline: Timeline) -> _Named:
    first = boxes[0]
    name = timeline.names[first.job]
    sliced = first.share < 1 and first.way is not Way.GUEST
    text = f"{name}  {100 * first.share:.0f}%" if sliced else name
    return _Named(text, first.job, first.start, boxes[-1].end, first.bottom, first.top, not first.rate)


def _ink(colour: str) -> str:
    """Black or white, as can be read on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "white" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.2 else "black"


def _lines(axis: Axes, timeline: Timeline, unit: float) -> None:
    """The rate of progress of each job, and their sum."""
    for job, steps in timeline.rates.items():
        at = [moment / unit for moment in (*steps.at, timeline.end)]
        axis.step(at, [*steps.values, steps.values[-1]], where="post", color=HUES[timeline.colours[job]], linewidth=1.2)
    total = timeline.total()
    at = [moment / unit for moment in (*total.at, timeline.end)]
    axis.step(at, [*total.values, total.values[-1]], where="post", color="black", linewidth=1.6)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("rate of progress")


def _fills(timeline: Timeline, rates: bool) -> list[Artist]:
    """What the fills mean, of those that occur; with the rates, the line of their sum."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Artist] = [Patch(facecolor=_GREY, label=said, gid=way.value) for way, said in _WAYS.items()
                           if way in timeline.ways]  # fmt: skip
    if timeline.pauses:
        found.append(Patch(facecolor="#D8D8D8", label="pale: paused, holds the GPU (migrates or resumes)"))
    found.append(Patch(facecolor=_IDLE, label="idle"))
    if rates:
        found.append(Line2D([], [], color="black", linewidth=1.6, label="sum of all rates"))
    return found


def _samples() -> dict[type, HandlerBase]:
    """Draws the sample of a fill: what is in a lane, as (bottom, top, hatched, colour)."""
    from matplotlib.legend_handler import HandlerBase as Base
    from matplotlib.patches import Patch, Rectangle

    dark = "#444444"
    parts = {
        Way.SLICED.value: [(0, 0.62, False, _GREY), (0.7, 1, False, dark)],
        Way.PACKED.value: [(0, 0.5, True, _GREY), (0.5, 1, True, dark)],
        Way.GUEST.value: [(0, 0.6, False, _GREY), (0.7, 1, False, dark)],
    }

    class Sample(Base):
        def create_artists(  # type: ignore[no-untyped-def]
            self, legend, handle, xdescent, ydescent, width, height, fontsize, trans
        ):
            return [
                Rectangle(
                    (-xdescent, -ydescent + low * height), width, (high - low) * height, facecolor=colour,
                    edgecolor="white" if hatched else "none", linewidth=0, hatch=_HATCH if hatched else None,
                    transform=trans,
                )
                for low, high, hatched, colour in parts.get(
                    handle.get_gid(), [(0, 1, False, handle.get_facecolor())]
                )
            ]  # fmt: skip

    return {Patch: Sample()}


def _jobs(timeline: Timeline) -> list[Patch]:
    """The jobs with their colours, where they are few."""
    from matplotlib.patches import Patch as NewPatch

    if len(timeline.names) > _MOST_LISTED:
        return []
    short = {job: name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for job, name in timeline.names.items()}
    # a label that begins with a _ would be left out
    return [NewPatch(facecolor=HUES[timeline.colours[job]], label=f"\u200b{name}") for job, name in short.items()]
