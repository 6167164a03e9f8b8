"""``hived status``: the cluster on Kubernetes at a glance."""

from __future__ import annotations

import time

import typer
from rich.text import Text

from hived.errors import UnavailableError
from hived.server.kubernetes.schema import NodeCounts, Status
from hived.words import counted

from .formats import Form, age, clean, print_answer, print_table
from .kubernetes import VC_COLUMNS, print_facts, scheduler, styled, vc_rows
from .options import FormOption, SchedulerOption, TokenOption


def status(
    form: FormOption = Form.TABLE,
    engine: SchedulerOption = None,
    token_file: TokenOption = None,
) -> None:
    """Show the cluster on Kubernetes: who decides, the spec, nodes, GPUs, virtual clusters.

    Exit code 0: it is ready; 69: it is not, or nobody answers.

    \bExamples:
      hived status
      hived status --engine http://hived.example:9096
      hived status -o json | jq .nodes.missing
    """
    with scheduler(engine, token_file, "hived top") as there:
        answer = there.get("/v1/status")
        told = there.understood(Status, answer)
    if form is not Form.TABLE:
        print_answer(answer, form)
    else:
        _print(told, there.address)
    if not told.ready:
        raise typer.Exit(UnavailableError.exit_code)


def _print(told: Status, address: str) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("engine", _engine(told, address)),
        ("spec", f"{clean(told.spec.source)}, loaded {age(time.time() - told.spec.loaded_at)} ago"),
    ]
    if told.spec.problem:
        facts.append(("", styled(f"a later one was refused: {told.spec.problem}", "red")))
    facts.append(("nodes", _nodes(told.nodes)))
    facts += [("", styled(line, "yellow")) for line in told.nodes.why]
    facts.append(("GPUs", _gpus(told)))
    facts += [("", styled(line, "yellow")) for line in told.foreign_pods]
    groups = ", ".join(f"{number:,} {clean(state)}" for state, number in told.groups.items() if number)
    facts += [("groups", groups or "none"), ("safety", _safety(told.safety_margin))]
    reserved = sum(vc.reserved for vc in told.vcs)
    if told.ready and reserved:
        facts.append(("now", _now(reserved, told.unavailable, told.doomed)))
    print_facts(facts)
    if told.vcs:
        typer.echo()
        print_table(VC_COLUMNS, vc_rows(told.vcs))


def _engine(told: Status, address: str) -> Text:
    if told.leader:
        role = f"decides as {clean(told.identity)}" if told.holder else "decides"
    else:
        role = "stands by; " + (f"{clean(told.holder)} decides" if told.holder else "nobody decides")
    ready = ("ready", "green") if told.ready else ("not ready", "bold red")
    return Text.assemble(
        ready, f", {role}", (f"; hived {clean(told.version)} on {clean(address)}, {_up(told.started_at)}", "dim")
    )


def _up(started_at: float) -> str:
    return f"up {age(time.time() - started_at)}"


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
    return styled(line, "yellow")
