"""``hived top``: virtual clusters, devices, and jobs, live on the whole screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hived.server.pictures import Chain, Holder, Layout, Picture, Stretch, Update, Waiting, named, updated
from hived.words import counted

from .client import Engine, NoAnswerError
from .console import full_screen, has_screen, output
from .escaping import clean
from .formats import Form, age, clock, columns, duration, priority, rich_table
from .options import Asking, asks_engine

#: distinguishable for the colour-blind too (Okabe and Ito)
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#0072b2", "#999999")
_USED, _BORROWED, _KEPT, _IDLE, _BAD, _DRAINED = "█", "▒", "░", "·", "×", "-"
_BAR, _NARROW, _NARROW_BAR = 24, 90, 10
_LEAST_ROWS = 3
_AGAIN_S = 1.0  #: before the next try to reach an engine that does not answer
_RUNNING = columns("ID RUNNING USER VC GPUS PRIO RUN WHERE", right="ID GPUS PRIO RUN", cut="WHERE")
_WAITING = columns("ID WAITING USER VC GPUS PRIO FOR WHY", right="ID GPUS PRIO FOR", cut="WHY")


@asks_engine
def top(ask: Asking) -> None:
    """Show the cluster live: virtual clusters, devices, jobs. q or Ctrl-C leaves.

    Into a pipe it is printed once.

    \bExamples:
      hived top
      hived top | cat
      hived top -o json | jq .totals
    """
    with ask.connect() as there:
        if ask.form is not Form.TABLE:
            ask.printed(there.get("/v1/dashboard/picture"))
            return
        if has_screen():
            with _Live(there) as live:
                full_screen(live.draw)
            return
        width = output().width
        output().print(_drawn(_layout(there), _picture(there), width if output().is_terminal else 120, None))


def _layout(there: Engine) -> Layout:
    return there.parsed(Layout, there.get("/v1/dashboard/layout"))


def _picture(there: Engine) -> Picture:
    return there.parsed(Picture, there.get("/v1/dashboard/picture"))


class _Live:
    """The latest picture, kept while no engine answers.

    A thread follows the engine's stream: a picture costs O(cluster), an update O(changes).
    """

    def __init__(self, there: Engine) -> None:
        self._there = there
        self._layout = _layout(there)
        self._picture: Picture | None = None
        self._received = 0.0  #: arrival of the picture
        self._trouble = ""
        self._failure: Exception | None = None  #: the fatal error of the thread
        self._begun = threading.Event()
        self._left = False

    def __enter__(self) -> _Live:
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True

    def draw(self, width: int, height: int) -> RenderableType:
        self._begun.wait()
        if self._failure is not None:
            raise self._failure
        assert self._picture is not None
        now = self._picture
        if not self._trouble and self._layout.end is None:  # time goes on while nothing changes
            now = now.model_copy(update={"at": now.at + time.monotonic() - self._received})
        return _drawn(self._layout, now, width, height, self._trouble)

    def _follow(self) -> None:
        try:
            if self._layout.end is not None:
                self._take("picture", self._there.get("/v1/dashboard/picture"))
            while self._layout.end is None and not self._left:
                try:
                    for name, value in self._there.stream("/v1/dashboard/stream"):
                        self._take(name, value)
                except NoAnswerError as error:
                    if self._picture is None:
                        raise
                    self._trouble = str(error)
                time.sleep(_AGAIN_S)
        except Exception as error:  # raised again by draw()
            self._failure = error
        finally:
            self._begun.set()

    def _take(self, name: str, value: object) -> None:
        if name == "open":
            self._layout = _layout(self._there)  # a different engine may answer now
        elif name == "layout":
            self._layout = self._there.parsed(Layout, value)
        elif name in ("picture", "update"):
            if name == "picture":
                self._picture = self._there.parsed(Picture, value)
            elif self._picture is not None:
                self._picture = updated(self._picture, self._there.parsed(Update, value))
            self._received, self._trouble = time.monotonic(), ""
            self._begun.set()


def _drawn(layout: Layout, picture: Picture, width: int, height: int | None, trouble: str = "") -> RenderableType:
    """The whole picture; ``height`` None: uncut."""
    colours = {vc.name: _COLOURS[n % len(_COLOURS)] for n, vc in enumerate(layout.vcs)}
    head = [_title(layout, picture, trouble), _totals(layout, picture), Text()]
    vcs = list(_vc_lines(picture, colours, _BAR if width >= _NARROW else _NARROW_BAR))
    room = None if height is None else max(4 * _LEAST_ROWS, height - len(head) - 2)
    vcs = _cut(vcs, None if room is None else max(_LEAST_ROWS, room // 3), "virtual clusters")
    nodes = list(_node_lines(layout, picture, colours, width))
    nodes = _cut(nodes, None if room is None else max(_LEAST_ROWS, room // 3), "lines of nodes")
    for line in (*head, *vcs, *nodes):
        line.no_wrap, line.overflow = True, "crop"
    left = None if room is None else max(2 * _LEAST_ROWS, room - len(vcs) - len(nodes) - 5)
    running, waiting = _shares(left, len(picture.holders), picture.queue_total)
    parts: list[RenderableType] = [*head, *vcs, Text(), *nodes, Text()]
    parts.append(_running(layout, picture, colours, running))
    if picture.queue_total:
        parts += [Text(), _waiting(picture, colours, waiting)]
    return Group(*parts)


def _shares(left: int | None, running: int, waiting: int) -> tuple[int, int]:
    """The numbers of lines for the two lists of jobs."""
    if left is None:
        return running, waiting
    first = min(running, max(left - waiting, left // 2))
    return first, min(waiting, left - first)


def _cut(lines: list[Text], room: int | None, what: str) -> list[Text]:
    if room is None or len(lines) <= room:
        return lines
    return [*lines[: room - 1], Text(f"  and {len(lines) - room + 1:,} more {what}", "dim")]


def _title(layout: Layout, picture: Picture, trouble: str) -> Text:
    made = "  simulated devices" if layout.synthetic else ""
    line = Text.assemble(("hived", "bold"), f"  {clean(layout.title)}", (f"{made}  {clock(picture.at)}", "dim"))
    if trouble:
        line.append(f"  {clean(trouble)}", "bold red")
    return line


def _totals(layout: Layout, picture: Picture) -> Text:
    totals = picture.totals
    used = totals.guaranteed + totals.opportunistic + totals.reserved
    idle = max(0, totals.gpus - used - totals.bad - totals.drained)
    line = Text(f"{counted(totals.gpus, 'GPU')}: ")
    for number, words, sign, style in (
        (totals.guaranteed, "guaranteed", _USED, ""),
        (totals.opportunistic, "opportunistic", _BORROWED, ""),
        (totals.reserved, "kept for a job", _KEPT, ""),
        (totals.bad, "bad", _BAD, "red"),
        (totals.drained, "drained", _DRAINED, "yellow"),
        (idle, "idle", _IDLE, "dim"),
    ):
        if number or words in ("guaranteed", "idle"):
            line.append(f"{sign} ", style).append(f"{number:,} {words}   ")
    if all(sum(len(chain.nodes) for chain in view.chains) > 1 for view in layout.views):  # of one node it is 0 or 1
        line.append(f"{100 * totals.fragmentation:.0f}% of nodes in guaranteed use", "dim")
    return line


def _vc_lines(picture: Picture, colours: dict[str, str], bar: int) -> Iterator[Text]:
    """A bar per virtual cluster: its cells in use, lent and idle."""
    rows = [usage for usage in picture.usage if usage.reserved or usage.used or usage.borrowed or usage.waiting]
    if not rows:
        return
    name_width = max(10, *(len(clean(usage.vc)) for usage in rows))
    most = max(usage.reserved for usage in rows) or 1
    yield Text(f"{'VC':<{name_width}}  {'':<{bar}}   USED  OF    LENT  BORROWED  WAITING", "dim")
    for usage in rows:
        size = max(1, round(bar * usage.reserved / most)) if usage.reserved else 0
        used = min(size, round(size * usage.used / max(1, usage.reserved)))
        lent = min(size - used, round(size * usage.lent / max(1, usage.reserved)))
        colour = colours.get(usage.vc, "white")
        yield Text.assemble(
            (f"{clean(usage.vc):<{name_width}}  ", colour),
            (_USED * used, colour),
            (_BORROWED * lent, "dim"),
            (_IDLE * (size - used - lent), "dim"),
            " " * (bar - size),
            f"  {usage.used:>5,}  {usage.reserved:<5,}{usage.lent:>5,.0f}  {usage.borrowed:>8,}  ",
            (f"{usage.waiting:>7,}", "yellow" if usage.waiting else ""),
        )


# -- devices ----------------------------------------------------------------------------------------------------------


def _node_lines(layout: Layout, picture: Picture, colours: dict[str, str], width: int) -> Iterator[Text]:
    """Nodes side by side, a character per device."""
    if not layout.views:
        return
    signs = _signs(picture, colours)
    marks = {place: (_DRAINED, "yellow") for stretch in picture.drained for place in _places(stretch)}
    marks |= {place: (_BAD, "bold red") for stretch in picture.bad for place in _places(stretch)}
    signs = {**marks, **signs}
    for number, chain in enumerate(layout.views[0].chains):
        per_node = chain.gpus_per_node
        label = (
            max(len(clean(name)) for name in chain.nodes) if len(chain.nodes) <= 10_000 else len(chain.nodes[-1]) + 2
        )
        wide = 2 if label + 2 * per_node + 3 <= width and len(chain.nodes) <= 8 else 1
        across = max(1, width // (label + wide * per_node + 4))
        for start in range(0, len(chain.nodes), across):
            line = Text()
            for node in range(start, min(start + across, len(chain.nodes))):
                line.append(f"{clean(chain.nodes[node]):<{label}} ")
                for leaf in range(per_node):
                    sign, style = signs.get((number, node, leaf), (_IDLE, "dim"))
                    line.append(sign, style)
                    if wide > 1:  # room to show that a device in use takes no more jobs
                        line.append(*marks.get((number, node, leaf), (sign, style)))
                    if wide > 1 and leaf + 1 < per_node:
                        line.append(" ")
                line.append("   ")
            yield line


def _signs(picture: Picture, colours: dict[str, str]) -> dict[tuple[int, int, int], tuple[str, str]]:
    kinds = {"guaranteed": _USED, "opportunistic": _BORROWED, "guest": _BORROWED, "reserved": _KEPT}
    signs: dict[tuple[int, int, int], tuple[str, str]] = {}

    def rank(holder: Holder) -> int:
        """A running job covers a reservation; one that runs covers a suspended one there, an owner its guests."""
        return 0 if holder.kind == "reserved" else 1 if holder.suspended else 2 if holder.kind == "guest" else 3

    for holder in sorted(picture.holders, key=rank):
        sign = (kinds[holder.kind], colours.get(holder.vc, "white"))
        signs.update((place, sign) for stretch in holder.parts for place in _places(stretch))
    return signs


def _places(stretch: Stretch) -> Iterator[tuple[int, int, int]]:
    chain, node, first, number = stretch
    return ((chain, node, leaf) for leaf in range(first, first + number))


def _where(chains: Sequence[Chain], holder: Holder) -> str:
    words, more = named(holder.parts, chains, 4)
    note = "  kept for it" if holder.kind == "reserved" else "  guest" if holder.kind == "guest" else ""
    note += "  stopping" if holder.stopping else "  suspended" if holder.suspended else ""
    return " ".join(words) + (f" +{more} nodes" if more else "") + note


# -- jobs -------------------------------------------------------------------------------------------------------------


def _running(layout: Layout, picture: Picture, colours: dict[str, str], most: int) -> RenderableType:
    if not picture.holders:
        return Text("no job runs", "dim")
    chains = layout.views[0].chains if layout.views else []
    holders = sorted(picture.holders, key=lambda holder: (holder.kind != "guaranteed", holder.since, holder.id))
    shown = holders[: most if most >= len(holders) else max(1, most - 1)]
    rows = [
        (
            *_of(holder, colours),
            "opp" if holder.kind == "opportunistic" else priority(holder.priority),
            duration(picture.at - holder.since),
            _where(chains, holder),
        )
        for holder in shown
    ]
    return _with_rest(rich_table(_RUNNING, rows), len(holders) - len(shown), "run")


def _waiting(picture: Picture, colours: dict[str, str], most: int) -> RenderableType:
    shown = picture.queue[: most if most >= picture.queue_total else max(1, most - 1)]
    rows = [
        (*_of(job, colours), priority(job.priority), age(picture.at - job.since), "; ".join(job.why) or job.kind)
        for job in shown
    ]
    return _with_rest(rich_table(_WAITING, rows), picture.queue_total - len(shown), "wait")


def _of(job: Holder | Waiting, colours: dict[str, str]) -> tuple[str | Text, ...]:
    return job.id, job.name, job.user or "-", Text(clean(job.vc), colours.get(job.vc, "")), f"{job.gpus:,}"


def _with_rest(table: RenderableType, rest: int, verb: str) -> RenderableType:
    return Group(table, Text(f"and {counted(rest, 'job')} more that {verb}", "dim")) if rest > 0 else table
