"""``hived status``, ``vc`` and ``groups``: the cluster on Kubernetes, its virtual clusters, its affinity groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from hived.engine.states import JobState
from hived.errors import InputError, UnavailableError
from hived.server.kubernetes.schema import GroupInfo, Groups, NodeCounts, Status, VcDetail, VcSummary
from hived.server.pictures import Reserved
from hived.words import counted

from .client import Engine, group_path
from .console import note, output, show_verbs
from .escaping import clean
from .formats import ACTIVE, STATE_STYLES, age, columns, print_table, priority, where
from .options import Asking, NumberOption, OfVcOption, asks_scheduler, complete_vc, state_option

_GROUP_COLUMNS = columns("GPUS PODS PRIO STATE AGE WHERE/WHY", right="GPUS PODS PRIO AGE", cut="WHERE/WHY")
_VC_COLUMNS = columns("VC RESERVED USED BORROWED WAITING", right="RESERVED USED BORROWED WAITING")
_PAGE = 1_000
_MOST = 100  #: maximum of groups in each of the engine's lists of a virtual cluster

vc_app = typer.Typer(invoke_without_command=True, callback=show_verbs, help="Virtual clusters (tenants) on Kubernetes.")


@asks_scheduler
def status(
    ask: Asking,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="A training job of this machine, as hived run named it.")
    ] = None,
) -> None:
    """Show the cluster on Kubernetes: who decides, the spec, nodes, GPUs, virtual clusters. Or a training job here.

    Exit code 0: it is ready; 69: it is not, or nobody answers.

    \bExamples:
      hived status
      hived status train
      hived status --engine http://hived.example:9096
      hived status -o json | jq .nodes.missing
    """
    if job is not None:
        from .training import print_job

        print_job(job, ask.form)
        return
    with ask.scheduler("hived top") as there:
        answer = there.get("/v1/status")
        found = there.parsed(Status, answer)
    if not ask.printed(answer):
        _print_status(found, there.address)
    if not found.ready:
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
        found = there.parsed(VcDetail, answer)
    if not ask.printed(answer):
        _print_vc(found)


@asks_scheduler
def groups(
    ask: Asking,
    vc: OfVcOption = None,
    state: Annotated[str | None, state_option("In this state", ACTIVE, "--status", show_default="any")] = None,
    number: NumberOption = 100,
) -> None:
    """List the affinity groups: pods that are placed all or none. Where they are, or why they are not there yet.

    PODS: there are, of those that there have to be. PRIO: opp for opportunistic. AGE: how long it is in this state.

    \bExamples:
      hived groups
      hived groups --vc vision --status queued
      hived groups -n 0 -o json | jq '.groups[].name'
    """
    if state is not None and state not in ACTIVE:
        raise InputError(f"--status {state}: no state of a group; one of {', '.join(ACTIVE)}")
    with ask.scheduler("hived ps") as there:
        answer = _listed(there, vc, state, number)
    if ask.printed(answer.model_dump(mode="json")):
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
        page = there.parsed(Groups, answer)
        found += page.groups
        if len(page.groups) < limit or len(found) == number:
            return Groups(groups=found, total=max(page.total, len(found)))


# -- rows and facts ---------------------------------------------------------------------------------------------------


def _vc_rows(vcs: Iterable[VcSummary]) -> Iterator[tuple[str | Text, ...]]:
    """The rows of virtual clusters for :data:`_VC_COLUMNS`."""
    for vc in vcs:
        waiting = Text(f"{vc.waiting:,}", "yellow" if vc.waiting else "")
        yield vc.name, f"{vc.reserved:,}", f"{vc.used:,}", f"{vc.borrowed:,}", waiting


def _group_rows(groups: Iterable[GroupInfo], *, vc: bool = True) -> Iterator[tuple[str | Text, ...]]:
    """The rows of groups: the name, the VC unless all groups are of one, and :data:`_GROUP_COLUMNS`."""
    now = time.time()
    for group in groups:
        yield (
            group.name,
            *((group.vc,) if vc else ()),
            f"{group.gpus:,}",
            f"{len(group.pods):,}/{group.size:,}",
            priority(group.priority),
            Text(group.state, STATE_STYLES[group.state]),
            age(now - group.since),
            _where_or_why(group),
        )


def _where_or_why(group: GroupInfo) -> str:
    place = where(pod for pod in group.pods if pod.node)
    if group.kind == "opportunistic" and group.priority >= 0:
        place += " (GPUs that others leave idle)"  # it was preempted lazily, or waits for its turn
    if group.state is JobState.RUNNING and place:
        return place
    return " ".join(filter(None, (place, "; ".join(group.why)))) or "-"


def _print_facts(facts: Sequence[tuple[str, str | Text]]) -> None:
    """Print names with their values, a line each; on a terminal long values wrap below themselves."""
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
    """Untrusted text, escaped."""
    return Text(clean(text), style)


# -- one virtual cluster ----------------------------------------------------------------------------------------------


def _print_vc(vc: VcDetail) -> None:
    summary = vc.summary
    used = f"{summary.used:,} of {counted(summary.reserved, 'reserved GPU')}, {summary.borrowed:,} borrowed"
    facts: list[tuple[str, str | Text]] = [("VC", Text(clean(summary.name), "bold")), ("in use", used)]
    facts += [("cells" if n == 0 else "", _cells(cells)) for n, cells in enumerate(vc.cells)]
    facts += [("doomed" if n == 0 else "", _styled(words, "red")) for n, words in enumerate(vc.doomed)]
    _print_facts(facts)
    for head, groups in (("RUNNING", vc.running), ("WAITING", vc.waiting)):
        if groups:
            typer.echo()
            print_table(columns(head) + _GROUP_COLUMNS, _group_rows(groups, vc=False))
        if len(groups) == _MOST:
            note(f"the first {_MOST}; all of them: hived groups --vc {clean(summary.name)} -n 0")
    if not vc.running and not vc.waiting:
        note("no groups")


def _cells(cells: Reserved) -> str:
    what = f"{cells.number:,} x {clean(cells.cell_type)} of {counted(cells.gpus, 'GPU')}"
    return f"{what}, pinned: {clean(cells.pinned)}" if cells.pinned is not None else what


# -- the status -------------------------------------------------------------------------------------------------------


def _print_status(status: Status, address: str) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("engine", _engine(status, address)),
        ("spec", f"{clean(status.spec.source)}, loaded {age(time.time() - status.spec.loaded_at)} ago"),
    ]
    if status.spec.problem:
        facts.append(("", _styled(f"a later one was refused: {status.spec.problem}", "red")))
    facts.append(("nodes", _nodes(status.nodes)))
    facts += [("", _styled(line, "yellow")) for line in status.nodes.why]
    facts.append(("GPUs", _gpus(status)))
    facts += [("", _styled(line, "yellow")) for line in status.foreign_pods]
    groups = ", ".join(f"{number:,} {clean(state)}" for state, number in status.groups.items() if number)
    facts += [("groups", groups or "none"), ("safety", _safety(status.safety_margin))]
    reserved = sum(vc.reserved for vc in status.vcs)
    if status.ready and reserved:
        facts.append(("now", _now(reserved, status.unavailable, status.doomed)))
    _print_facts(facts)
    if status.vcs:
        typer.echo()
        print_table(_VC_COLUMNS, _vc_rows(status.vcs))


def _engine(status: Status, address: str) -> Text:
    if status.leader:
        role = f"decides as {clean(status.identity)}" if status.holder else "decides"
    else:
        role = "stands by; " + (f"{clean(status.holder)} decides" if status.holder else "nobody decides")
    ready = ("ready", "green") if status.ready else ("not ready", "bold red")
    up = age(time.time() - status.started_at)
    return Text.assemble(
        ready,
        f", {role}",
        (f"; hived {clean(status.version)} on {clean(address)}, up {up}", "dim"),
    )


def _nodes(nodes: NodeCounts) -> Text:
    line = Text(f"{nodes.total:,}: {nodes.healthy:,} healthy")
    if nodes.bad:
        line.append(", ").append(f"{nodes.bad:,} bad", "yellow")
    if nodes.unmanaged:
        line.append(f"; {nodes.unmanaged:,} more in Kubernetes that the spec does not have", "dim")
    return line


def _gpus(info: Status) -> Text:
    idle = max(0, info.gpus - info.guaranteed - info.opportunistic - info.reserved - info.foreign - info.bad)
    line = Text(f"{info.gpus:,}: {info.guaranteed:,} guaranteed, {info.opportunistic:,} opportunistic")
    if info.reserved:
        line.append(f", {info.reserved:,} kept for a group")
    if info.foreign:
        line.append(", ").append(f"{info.foreign:,} of pods that HiveD did not place", "yellow")
    if info.bad:
        line.append(", ").append(f"{info.bad:,} bad", "yellow")
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
    line = f"{left:,} of {reserved:,} reserved GPUs can be had; {unavailable:,} are bad or kept for others"
    if doomed:
        line += f", {counted(doomed, 'reserved cell')} cannot be healthy (hived vc show VC)"
    return _styled(line, "yellow")
