"""``hived status``, ``vc`` and ``groups``: the cluster on Kubernetes, its virtual clusters, its affinity groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, get_args

import typer
from rich.table import Table
from rich.text import Text

from hived.errors import InputError, UnavailableError
from hived.server.kubernetes.schema import GroupInfo, Groups, GroupStateName, NodeCounts, Status, VcDetail, VcSummary
from hived.server.pictures import Reserved
from hived.words import counted

from .client import Engine, group_path
from .console import note, output, show_verbs
from .formats import age, clean, columns, print_table, priority, where
from .options import Asking, NumberOption, OfVcOption, asks_scheduler, complete_vc, state_option

_STATES: tuple[str, ...] = get_args(GroupStateName)
_STYLES = {"placed": "green", "reserved": "cyan", "waiting": "yellow", "preempted": "magenta"}
_GROUP_COLUMNS = columns("GPUS PODS PRIO STATE AGE WHERE/WHY", right="GPUS PODS PRIO AGE", cut="WHERE/WHY")
_VC_COLUMNS = columns("VC RESERVED USED BORROWED WAITING", right="RESERVED USED BORROWED WAITING")
_PAGE = 1_000
_MOST = 100  #: groups of each list that the engine tells of a virtual cluster

vc_app = typer.Typer(invoke_without_command=True, callback=show_verbs, help="Virtual clusters (tenants) on Kubernetes.")


@asks_scheduler
def status(ask: Asking) -> None:
    """Show the cluster on Kubernetes: who decides, the spec, nodes, GPUs, virtual clusters.

    Exit code 0: it is ready; 69: it is not, or nobody answers.

    \bExamples:
      hived status
      hived status --engine http://hived.example:9096
      hived status -o json | jq .nodes.missing
    """
    with ask.scheduler("hived top") as there:
        answer = there.get("/v1/status")
        told = there.understood(Status, answer)
    if not ask.printed(answer):
        _print_status(told, there.address)
    if not told.ready:
        raise typer.Exit(UnavailableError.exit_code)


@vc_app.command("ls")
@asks_scheduler
def list_vcs(ask: Asking) -> None:
    """List the virtual clusters, in GPUs: reserved, used of that, borrowed from others. WAITING: groups.

    \bExamples:
      hived vc ls
      hived vc ls -o json | jq '.[].name'
    """
    with ask.scheduler("hived top") as there:
        answer = there.get("/v1/vcs")
        vcs = there.each(VcSummary, answer)
    if ask.printed(answer):
        return
    if vcs:
        print_table(_VC_COLUMNS, _vc_rows(vcs))
    else:
        note("the spec has no virtual clusters")


@vc_app.command("show")
@asks_scheduler
def show_vc(
    ask: Asking,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a virtual cluster.", autocompletion=complete_vc)],
) -> None:
    """Show one virtual cluster: its cells, the groups that run, and those that wait in the order of their turns.

    \bExamples:
      hived vc show vision
      hived vc show vision -o yaml
    """
    with ask.scheduler("hived top") as there:
        answer = there.get(group_path("vcs", name))
        told = there.understood(VcDetail, answer)
    if not ask.printed(answer):
        _print_vc(told)


@asks_scheduler
def groups(
    ask: Asking,
    vc: OfVcOption = None,
    state: Annotated[str | None, state_option("In this state", _STATES, "--state", show_default="any")] = None,
    number: NumberOption = 100,
) -> None:
    """List the affinity groups: pods that are placed all or none. Where they are, or why they are not there yet.

    PODS: there are, of those that there have to be. PRIO: opp for opportunistic. AGE: how long it is in this state.

    \bExamples:
      hived groups
      hived groups --vc vision --state waiting
      hived groups -n 0 -o json | jq '.groups[].name'
    """
    if state is not None and state not in _STATES:
        raise InputError(f"--state {state}: no state of a group; one of {', '.join(_STATES)}")
    with ask.scheduler("hived ps") as there:
        answer = _listed(there, vc, state, number)
    if ask.printed(answer.model_dump()):
        return
    if not answer.groups:
        note("no groups" + (f" of {clean(vc)}" if vc else "") + (f" that are {state}" if state else ""))
        return
    print_table(columns("NAME VC") + _GROUP_COLUMNS, _group_rows(answer.groups))
    if len(answer.groups) < answer.total:
        note(f"{len(answer.groups):,} of {answer.total:,} groups; all of them: -n 0")


def _listed(there: Engine, vc: str | None, state: str | None, number: int) -> Groups:
    """At most ``number`` groups (0: all), page by page."""
    found: list[GroupInfo] = []
    while True:
        limit = min(_PAGE, number - len(found)) if number else _PAGE
        answer = there.get("/v1/groups", vc=vc, state=state, limit=limit, offset=len(found))
        page = there.understood(Groups, answer)
        found += page.groups
        if len(page.groups) < limit or len(found) == number:
            return Groups(groups=found, total=max(page.total, len(found)))


# -- rows and facts ---------------------------------------------------------------------------------------------------


def _vc_rows(vcs: Iterable[VcSummary]) -> Iterator[tuple[str | Text, ...]]:
    """What :data:`_VC_COLUMNS` say of virtual clusters."""
    for vc in vcs:
        waiting = Text(f"{vc.waiting:,}", "yellow" if vc.waiting else "")
        yield vc.name, f"{vc.reserved:,}", f"{vc.used:,}", f"{vc.borrowed:,}", waiting


def _group_rows(groups: Iterable[GroupInfo], *, vc: bool = True) -> Iterator[tuple[str | Text, ...]]:
    """Groups, one a line: the name, the VC too unless all are of one, and what :data:`_GROUP_COLUMNS` say."""
    now = time.time()
    for group in groups:
        yield (
            group.name,
            *((group.vc,) if vc else ()),
            f"{group.gpus:,}",
            f"{len(group.pods):,}/{group.size:,}",
            priority(group.priority),
            Text(group.state, _STYLES[group.state]),
            age(now - group.since),
            _where_or_why(group),
        )


def _where_or_why(group: GroupInfo) -> str:
    place = where(pod for pod in group.pods if pod.node)
    if group.kind == "opportunistic" and group.priority >= 0:
        place += " (GPUs that others leave idle)"  # it was preempted lazily, or its turn is yet to come
    if group.state == "placed" and place:
        return place
    return " ".join(filter(None, (place, "; ".join(group.why)))) or "-"


def _print_facts(facts: Sequence[tuple[str, str | Text]]) -> None:
    """A name and what there is to say of it, a line each; on a terminal long ones go on below themselves."""
    console = output()
    if console.is_terminal:
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, said in facts:
            table.add_row(Text(name, "dim"), said if isinstance(said, Text) else Text(said))
        console.print(table)
        return
    width = max(len(name) for name, _ in facts)
    for name, said in facts:
        console.print(f"{name:<{width}}  {said}".rstrip(), markup=False, soft_wrap=True)


def _styled(text: str, style: str) -> Text:
    """Somebody else's words, harmless."""
    return Text(clean(text), style)


# -- one virtual cluster ----------------------------------------------------------------------------------------------


def _print_vc(told: VcDetail) -> None:
    summary = told.summary
    used = f"{summary.used:,} of {counted(summary.reserved, 'reserved GPU')}, {summary.borrowed:,} borrowed"
    facts: list[tuple[str, str | Text]] = [("VC", Text(clean(summary.name), "bold")), ("in use", used)]
    facts += [("cells" if n == 0 else "", _cells(cells)) for n, cells in enumerate(told.cells)]
    facts += [("doomed" if n == 0 else "", _styled(words, "red")) for n, words in enumerate(told.doomed)]
    _print_facts(facts)
    for head, groups in (("RUNNING", told.running), ("WAITING", told.waiting)):
        if groups:
            typer.echo()
            print_table(columns(head) + _GROUP_COLUMNS, _group_rows(groups, vc=False))
        if len(groups) == _MOST:
            note(f"the first {_MOST}; all of them: hived groups --vc {clean(summary.name)} -n 0")
    if not told.running and not told.waiting:
        note("no groups")


def _cells(cells: Reserved) -> str:
    what = f"{cells.number:,} x {clean(cells.cell_type)} of {counted(cells.gpus, 'GPU')}"
    return f"{what}, pinned: {clean(cells.pinned)}" if cells.pinned is not None else what


# -- the status -------------------------------------------------------------------------------------------------------


def _print_status(told: Status, address: str) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("engine", _engine(told, address)),
        ("spec", f"{clean(told.spec.source)}, loaded {age(time.time() - told.spec.loaded_at)} ago"),
    ]
    if told.spec.problem:
        facts.append(("", _styled(f"a later one was refused: {told.spec.problem}", "red")))
    facts.append(("nodes", _nodes(told.nodes)))
    facts += [("", _styled(line, "yellow")) for line in told.nodes.why]
    facts.append(("GPUs", _gpus(told)))
    facts += [("", _styled(line, "yellow")) for line in told.foreign_pods]
    groups = ", ".join(f"{number:,} {clean(state)}" for state, number in told.groups.items() if number)
    facts += [("groups", groups or "none"), ("safety", _safety(told.safety_margin))]
    reserved = sum(vc.reserved for vc in told.vcs)
    if told.ready and reserved:
        facts.append(("now", _now(reserved, told.unavailable, told.doomed)))
    _print_facts(facts)
    if told.vcs:
        typer.echo()
        print_table(_VC_COLUMNS, _vc_rows(told.vcs))


def _engine(told: Status, address: str) -> Text:
    if told.leader:
        role = f"decides as {clean(told.identity)}" if told.holder else "decides"
    else:
        role = "stands by; " + (f"{clean(told.holder)} decides" if told.holder else "nobody decides")
    ready = ("ready", "green") if told.ready else ("not ready", "bold red")
    up = age(time.time() - told.started_at)
    return Text.assemble(
        ready,
        f", {role}",
        (f"; hived {clean(told.version)} on {clean(address)}, up {up}", "dim"),
    )


def _nodes(nodes: NodeCounts) -> Text:
    line = Text(f"{nodes.total:,}: {nodes.healthy:,} healthy")
    if nodes.bad:
        line.append(", ").append(f"{nodes.bad:,} bad", "yellow")
    if nodes.unmanaged:
        line.append(f"; {nodes.unmanaged:,} more in Kubernetes that the spec does not have", "dim")
    return line


def _gpus(told: Status) -> Text:
    idle = max(0, told.gpus - told.guaranteed - told.opportunistic - told.reserved - told.foreign - told.bad)
    line = Text(f"{told.gpus:,}: {told.guaranteed:,} guaranteed, {told.opportunistic:,} opportunistic")
    if told.reserved:
        line.append(f", {told.reserved:,} kept for a group")
    if told.foreign:
        line.append(", ").append(f"{told.foreign:,} of pods that HiveD did not place", "yellow")
    if told.bad:
        line.append(", ").append(f"{told.bad:,} bad", "yellow")
    return line.append(f", {idle:,} idle")


def _safety(margin: int | None) -> str:
    """What the spec promises, whatever is bad."""
    if margin is None:
        return "nothing is reserved"
    if margin < 0:
        return "broken: some VC cannot have what it reserved; this is a bug, and the log of the engine has more"
    spare = f"with {counted(margin, 'cell')} to spare where it is tightest"
    return f"no VC can take what the spec reserves for another, {spare}"


def _now(reserved: int, unavailable: int, doomed: int) -> str | Text:
    """What of it can be had, with the hardware as it is."""
    if not unavailable:
        return f"all {reserved:,} reserved GPUs can be had"
    left = reserved - unavailable
    line = f"{left:,} of {reserved:,} reserved GPUs can be had; {unavailable:,} are bad or kept for others"
    if doomed:
        line += f", {counted(doomed, 'reserved cell')} cannot be healthy (hived vc show VC)"
    return _styled(line, "yellow")
