"""``hived usage``: GPU hours by user, virtual cluster and use, by day and month."""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from hived.engine.holdings import Use
from hived.errors import InputError
from hived.server.schema import Account, Accounts, JobsOf

from .console import note
from .formats import columns, print_table, time_of, timestamp
from .options import Asking, OfUserOption, OfVcOption, asks_engine

#: the longest time that is shown in parts, in parts
_MOST_PARTS = 1_000


class By(StrEnum):
    """What GPU hours are summed by."""

    USER = "user"
    VC = "vc"


class Per(StrEnum):
    """Parts of the time."""

    DAY = "day"
    MONTH = "month"


class Row(NamedTuple):
    """GPU hours of some users of some virtual clusters, over some time."""

    period: str
    user: str
    vc: str
    hours: dict[Use, float]
    jobs: int

    @property
    def used(self) -> float:
        """By jobs that ran."""
        return sum(self.hours[use] for use in (Use.GUARANTEED, Use.OPPORTUNISTIC, Use.GUEST))

    @property
    def idle(self) -> float:
        """Of what was reserved, not used by guaranteed jobs: lent out, or of nobody."""
        return max(0.0, self.hours[Use.RESERVED] - self.hours[Use.GUARANTEED])

    def plain(self) -> dict[str, object]:
        """As data, in GPU hours; what a row is not of is left out."""
        of = {"period": self.period, "user": self.user, "vc": self.vc}
        hours = {str(use): round(self.hours[use], 4) for use in Use if use is not Use.RESERVED}
        whole = {"reserved": round(self.hours[Use.RESERVED], 4), "idle": round(self.idle, 4)} if not self.user else {}
        return {name: text for name, text in of.items() if text} | {"jobs": self.jobs, **hours, **whole}


@asks_engine
def usage(
    ask: Asking,
    by: Annotated[list[By] | None, typer.Option(help="What to sum by; again for both.", show_default="vc")] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From when: a duration before now (30d), or a date (2026-11-01).")
    ] = "30d",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Until when.", show_default="now")] = None,
    per: Annotated[Per | None, typer.Option(help="A row for each day or month.", show_default="all at once")] = None,
    vc: OfVcOption = None,
    user: OfUserOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets: values separated by commas.")] = False,
) -> None:
    """Sum up GPU hours: who has used how much, on cells of their virtual cluster, on loans and as guests.

    SUSPENDED: of jobs that stood still on GPUs that they shared. RESERVED, IDLE: of the virtual cluster, and what of it
    its own jobs did not use. A GPU that several jobs share counts for each. Days are those of your time zone.

    \bExamples:
      hived usage
      hived usage --by user --since 30d
      hived usage --by user --by vc --per month --since 2026-01-01 --csv > year.csv
    """  # fmt: skip
    now = time.time()
    start, end = time_of("--since", since, now), now if until is None else time_of("--until", until, now)
    if not start < end:
        raise InputError(f"--since {since}: is not before the end")
    chosen = tuple(dict.fromkeys(by or [By.VC]))
    rows: list[Row] = []
    begins: float | None = None
    with ask.connect() as there:
        for period, first, last in _parts(start, end, per):
            found = there.parsed(Accounts, there.get("/v1/accounts", start=first, end=last))
            of = [one for one in found.accounts if vc in (None, one.vc) and user in (None, one.user)]
            rows += _rows(period, of, found.jobs, chosen)
            begins = found.begins
    if begins is not None and start < begins:
        note(f"accounts begin at {timestamp(begins)}")
    if ask.printed([row.plain() for row in rows]):
        return
    if not rows:
        note("nobody had GPUs in this time")
        return
    whole = By.USER not in chosen and user is None  # what is reserved is nobody's
    names = [*(["PERIOD"] if per else []), *(one.upper() for one in chosen), "JOBS"]
    names += ["GUARANTEED", "OPPORTUNISTIC", "GUEST", "SUSPENDED", "USED", *(["RESERVED", "IDLE"] if whole else [])]
    lines = [_line(row, per, chosen, whole, as_csv) for row in rows]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([[name.lower() for name in names], *lines])
        return
    print_table(columns(" ".join(names), right=" ".join(names[len(chosen) + bool(per) :])), lines)
    note("in GPU hours")


def _line(row: Row, per: Per | None, by: Sequence[By], whole: bool, exactly: bool) -> list[str]:
    own = {By.USER: row.user or "-", By.VC: row.vc}
    hours = [row.hours[use] for use in (Use.GUARANTEED, Use.OPPORTUNISTIC, Use.GUEST, Use.SUSPENDED)]
    hours += [row.used, *([row.hours[Use.RESERVED], row.idle] if whole else [])]
    shown = [f"{value:.4f}" if exactly else f"{value:,.2f}" for value in hours]
    return [*([row.period] if per else []), *(own[one] for one in by), f"{row.jobs}", *shown]


def _rows(period: str, accounts: Sequence[Account], many: Sequence[JobsOf], by: Sequence[By]) -> Iterator[Row]:
    """Sums of accounts, the most used first."""
    hours: defaultdict[tuple[str, str], defaultdict[Use, float]] = defaultdict(lambda: defaultdict(float))
    jobs: defaultdict[tuple[str, str], int] = defaultdict(int)
    for one in accounts:
        if one.use is Use.RESERVED and By.USER in by:
            continue
        key = one.user if By.USER in by else "", one.vc if By.VC in by else ""
        hours[key][one.use] += one.gpu_seconds / 3600
    shown = {(one.user, one.vc) for one in accounts}
    for of in many:
        if (of.user, of.vc) in shown:
            jobs[of.user if By.USER in by else "", of.vc if By.VC in by else ""] += of.jobs
    rows = [Row(period, *key, of, jobs[key]) for key, of in hours.items()]
    yield from sorted(rows, key=lambda row: (-row.used, row.user, row.vc))


def _parts(start: float, end: float, per: Per | None) -> Iterator[tuple[str, float, float]]:
    """The days or months of a time, and the ends of each in it."""
    if per is None:
        yield "", start, end
        return
    at, number = datetime.fromtimestamp(start).astimezone(), 0
    while at.timestamp() < end:
        number += 1
        if number > _MOST_PARTS:
            raise InputError(f"--per {per}: more than {_MOST_PARTS:,} rows; choose a shorter time")
        day = at.date()
        following = day + timedelta(days=1)
        if per is Per.MONTH:
            following = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        # of the wall clock: a day on which that is changed has 23 or 25 hours
        then = datetime(following.year, following.month, following.day).astimezone()
        name = f"{day:%Y-%m-%d}" if per is Per.DAY else f"{day:%Y-%m}"
        yield name, max(start, at.timestamp()), min(end, then.timestamp())
        at = then
