"""``hived vc``: virtual clusters, their cells, the jobs that run and wait in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.text import Text

from hived.server.schema import Job, Reserved, Rules, Usage, Vc, VcUsage
from hived.words import counted

from .client import path_of
from .console import note
from .escaping import clean
from .formats import Fact, columns, limits_of_members, print_facts, print_table, styled
from .job_lists import job_table
from .options import Asking, asks_engine, complete_vc

_VC_COLUMNS = columns("VC RESERVED USED BORROWED WAITING", right="RESERVED USED BORROWED WAITING")
_MOST = 100  #: maximum of jobs in each of the engine's lists of a virtual cluster


@asks_engine
def list_vcs(ask: Asking) -> None:
    """List the virtual clusters, in GPUs: reserved, used of that, borrowed from others. WAITING: jobs.

    Below them the GPUs of the whole cluster, and what the spec promises.

    \bExamples:
      hived vc ls
      hived vc ls -o json | jq '.vcs[].name'
    """
    with ask.connect() as there:
        answer = there.get("/v1/usage")
        usage = there.parsed(Usage, answer)
    if ask.printed(answer):
        return
    if usage.vcs:
        print_table(_VC_COLUMNS, _vc_rows(usage.vcs))
        typer.echo()
    else:
        note("the spec has no virtual clusters")
    jobs = ", ".join(f"{number:,} {clean(state)}" for state, number in usage.jobs.items() if number)
    facts: list[Fact] = [("GPUs", _gpus(usage)), ("jobs", jobs or "none"), ("safety", _safety(usage.safety_margin))]
    if reserved := sum(vc.reserved for vc in usage.vcs):
        facts.append(("now", _now(reserved, usage.unavailable, usage.doomed)))
    print_facts(facts)


@asks_engine
def show_vc(
    ask: Asking,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a virtual cluster.", autocompletion=complete_vc)],
) -> None:
    """Show one virtual cluster: its cells, the jobs that run, and those that wait in the order of their turns.

    \bExamples:
      hived vc show vision
      hived vc show vision -o yaml
    """
    with ask.connect() as there:
        answer = there.get(path_of("vcs", name))
        found = there.parsed(Vc, answer)
    if not ask.printed(answer):
        _print_vc(found)
        return
    for jobs in (found.running, found.waiting):
        _note_more(found, jobs)


def _vc_rows(vcs: Iterable[VcUsage]) -> Iterator[tuple[str | Text, ...]]:
    """The rows of virtual clusters for :data:`_VC_COLUMNS`."""
    for vc in vcs:
        waiting = Text(f"{vc.waiting:,}", "yellow" if vc.waiting else "")
        yield vc.name, f"{vc.reserved:,}", f"{vc.used:,}", f"{vc.borrowed:,}", waiting


def _print_vc(vc: Vc) -> None:
    summary = vc.usage
    used = f"{summary.used:,} of {counted(summary.reserved, 'reserved GPU')}, {summary.borrowed:,} borrowed"
    facts: list[Fact] = [("VC", Text(clean(summary.name), "bold")), ("in use", used)]
    facts += [] if vc.rules is None else list(_rules(vc.rules))
    facts += [("cells" if n == 0 else "", _cells(cells)) for n, cells in enumerate(vc.cells)]
    facts += [("doomed" if n == 0 else "", styled(words, "red")) for n, words in enumerate(vc.doomed)]
    print_facts(facts)
    for head, jobs in (("running", vc.running), ("waiting", vc.waiting)):
        if jobs:
            typer.echo(f"\n{head}:")
            print_table(*job_table(jobs, vc=False))
        _note_more(vc, jobs)
    if not vc.running and not vc.waiting:
        note("no jobs")


def _note_more(vc: Vc, jobs: Sequence[Job]) -> None:
    """Say of a list that it was cut, to who reads JSON too."""
    if len(jobs) == _MOST:
        note(f"the first {_MOST}; all of them: hived ps --vc {clean(vc.usage.name)} -n 0")


def _rules(rules: Rules) -> Iterator[Fact]:
    """Who may use it, and how much of it."""
    yield "policy", clean(rules.policy)
    if rules.admins:
        yield "admins", clean(", ".join(rules.admins))
    if rules.members:
        yield "members", clean(", ".join(rules.members))
    if limits := limits_of_members(rules.max_jobs, rules.max_gpus, rules.max_priority, rules.max_grace_seconds):
        yield "a member", limits
    if rules.file_group:
        yield "files", f"read by the group {clean(rules.file_group)} too"


def _cells(cells: Reserved) -> str:
    what = f"{cells.number:,} x {clean(cells.cell_type)} of {counted(cells.gpus, 'GPU')}"
    return f"{what}, pinned: {clean(cells.pinned)}" if cells.pinned is not None else what


def _gpus(usage: Usage) -> Text:
    idle = max(0, usage.gpus - usage.guaranteed - usage.opportunistic - usage.reserved - usage.foreign - usage.bad)
    line = Text(f"{usage.gpus:,}: {usage.guaranteed:,} guaranteed, {usage.opportunistic:,} opportunistic")
    if usage.reserved:
        line.append(f", {usage.reserved:,} kept for a job")
    if usage.foreign:
        line.append(", ").append(f"{usage.foreign:,} of pods that HiveD did not place", "yellow")
    if usage.bad:
        line.append(", ").append(f"{usage.bad:,} bad or drained", "yellow")
    return line.append(f", {idle:,} idle")


def _safety(margin: int | None) -> str:
    """The guarantee of the spec, independent of bad hardware."""
    if margin is None:
        return "nothing is reserved"
    if margin < 0:
        return "broken: some VC cannot have what it reserved; this is a bug, and the log of the engine has more"
    spare = f"with {counted(margin, 'cell')} to spare where it is tightest"
    return f"no VC can take what the spec reserves for another, {spare}"


def _now(reserved: int, unavailable: int, doomed: int) -> str | Text:
    """The available part of the reservations, with the present hardware."""
    if not unavailable:
        return f"all {reserved:,} reserved GPUs can be had"
    left = reserved - unavailable
    are = "is" if unavailable == 1 else "are"
    line = f"{left:,} of {reserved:,} reserved GPUs can be had; {unavailable:,} {are} bad, drained or kept for others"
    if doomed:
        line += f", {counted(doomed, 'reserved cell')} cannot be healthy (hived vc show VC)"
    return styled(line, "yellow")
