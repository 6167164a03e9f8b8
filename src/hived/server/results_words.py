"""What the files of a simulation tell of a job, in words. Nothing is guessed: what they do not tell is not said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.words import counted

from .pictures import Chain, Moment, Stay, Stretch
from .places import named
from .results_files import NEVER, Tenant

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_NODES_NAMED = 3


def length(ms: int) -> str:
    """A length of time, its two largest units: ``2 d 4 h``, ``40 min``, ``0.5 s``.

    >>> length(187_200_000), length(2_400_000), length(500), length(0)
    ('2 d 4 h', '40 min', '0.5 s', '0 s')
    """
    for place, (name, size) in enumerate(_UNITS[:-1]):
        if ms >= size:
            small, of = _UNITS[place + 1]
            rest = ms % size // of
            return f"{ms // size} {name}" + (f" {rest} {small}" if rest else "")
    return f"{ms / 1000:g} s"


def place_words(parts: Sequence[Stretch], chains: Sequence[Chain]) -> str:
    """``node-3:0-3``, with the device indices; of many nodes the first few."""
    words, more = named(parts, chains, _NODES_NAMED)
    return ", ".join(words) + (f" and {counted(more, 'more node')}" if more else "")


@dataclass(frozen=True, slots=True)
class Wait:
    """What is known of a job that waits at a moment."""

    vc: Tenant
    gpus: int  #: it asks for
    quota: bool  #: what the VC has is a number, and not cells
    lends: bool  #: whether idle GPUs are lent, and the cluster has the nodes for this job
    outsized: bool  #: too large for its VC, so that its turn never comes
    ahead: int  #: jobs of its VC that wait and come first (of an outsized one: outsized ones)
    ahead_lent: int  #: jobs of its VC that run on lent GPUs and come first when the VC's own fall free
    used: int  #: GPUs in guaranteed use by its VC
    room: bool  #: whether the VC has enough GPUs left in number
    since: int  #: milliseconds that it has waited
    lost: bool  #: whether it ran before


def why(wait: Wait) -> list[str]:
    """Why a job waits, the most decisive first."""
    words = [_outsized(wait)] if wait.outsized else _in_line(wait)
    if wait.lends and not wait.ahead:
        words.append("no idle GPUs suit it as a loan")
    words.append(f"has waited {length(wait.since)}" + (" since it lost its lent GPUs" if wait.lost else ""))
    return words


def _outsized(wait: Wait) -> str:
    vc = wait.vc.name
    limit = f"the quota of {vc} allows" if wait.quota else f"the cells of {vc} can ever hold for one job"
    words = f"{counted(wait.gpus, 'GPU')} are more than {limit}"
    if not wait.lends:
        return f"{words}: it never starts"
    others = f", after {counted(wait.ahead, 'such job')} of {vc}" if wait.ahead else ""
    return f"{words}: it can only borrow{others}"


def _in_line(wait: Wait) -> list[str]:
    has = f"its quota of {wait.vc.usable:,} GPUs" if wait.quota else f"its {wait.vc.usable:,} GPUs"
    use = f"{wait.vc.name} uses {wait.used:,} of {has}"
    if wait.vc.pinned:
        use += f" (and has {wait.vc.pinned:,} in pinned cells, which only jobs that name them use)"
    if not wait.ahead and not wait.ahead_lent:
        if not wait.room:
            return [f"{use}, and this job asks for {wait.gpus:,}"]
        return [f"{use}; what is free is not as close together as the {wait.gpus:,} of this job have to be"]
    ahead = []
    if wait.ahead:
        ahead.append(f"{counted(wait.ahead, 'job')} of {wait.vc.name} {'is' if wait.ahead == 1 else 'are'} ahead")
    if wait.ahead_lent:
        run = "runs on lent GPUs and comes" if wait.ahead_lent == 1 else "run on lent GPUs and come"
        ahead.append(f"{counted(wait.ahead_lent, 'job')} of {wait.vc.name} {run} first when its own fall free")
    return [use, *ahead]


@dataclass(frozen=True, slots=True)
class Span:
    """A run of one job."""

    start: int
    end: int
    lent: bool
    parts: tuple[Stretch, ...]
    place: str  #: as in the file


@dataclass(frozen=True, slots=True)
class Life:
    """A job in one scheme and policy. Times in milliseconds."""

    submit: int
    finish: int  #: :data:`~.results_files.NEVER`: it did not
    end: int  #: of the simulation
    spans: Sequence[Span]

    @property
    def cut(self) -> bool:
        """Whether it held GPUs when the simulation stopped."""
        return self.finish == NEVER and bool(self.spans) and self.spans[-1].end == self.end

    @property
    def state(self) -> str:
        """Where it had come to at the end."""
        if self.finish < NEVER:
            return "finished"
        return "running" if self.cut else "queued" if self.submit <= self.end else "not submitted"


def stays(life: Life) -> list[Stay]:
    """Its runs, and the waiting between them."""
    found: list[Stay] = []
    at = life.submit

    def wait(until: int) -> None:
        if until > at:
            end = None if until == NEVER else until / 1000
            found.append(Stay(start=at / 1000, end=end, kind="waiting", where=""))

    for span in life.spans:
        wait(span.start)
        found.append(
            Stay(
                start=span.start / 1000,
                end=span.end / 1000,
                kind="opportunistic" if span.lent else "guaranteed",
                where=span.place,
            )
        )
        at = span.end
    if not life.cut and life.state != "not submitted":
        wait(life.finish)
    return found


def moments(life: Life, chains: Sequence[Chain]) -> list[Moment]:
    """What happened to it, in order."""
    if life.state == "not submitted":
        return []
    found = [Moment(at=life.submit / 1000, text="submitted")]

    def say(at: int, text: str) -> None:
        found.append(Moment(at=at / 1000, text=text))

    before: Span | None = None
    for span in life.spans:
        kind = "lent" if span.lent else "guaranteed"
        where = f"on {place_words(span.parts, chains)}"
        if before is None:
            say(span.start, f"started, {kind}, {where}")
        elif before.end == span.start and before.lent and not span.lent:
            stays_there = before.parts == span.parts
            say(span.start, "its turn came: guaranteed from now on" + ("" if stays_there else f", {where}"))
        else:
            say(before.end, "preempted" if before.lent else "lost its GPUs")
            say(span.start, f"started again, {kind}, {where}")
        before = span
    if life.finish < NEVER:
        if before is None:
            say(life.finish, "its turn came, and with no work to do it was finished")
        else:
            say(life.finish, "finished")
    elif life.cut:
        say(life.end, "was running when the simulation stopped")
    elif before is not None:
        say(before.end, "preempted" if before.lent else "lost its GPUs")
    return found
