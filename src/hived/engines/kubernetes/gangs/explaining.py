"""Why a gang waits or where it is placed: reasons as data, and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hived.cluster.explain.reasons import BadHardware, NotSuggested, Reason, ReasonKind, WaitingForPreemption
from hived.cluster.explain.sentences import MAX_NAMED, say
from hived.engine.explaining import cells_taken, early_text, why_it_waits
from hived.engine.states import JobState
from hived.engines.kubernetes.pods import keys
from hived.words import counted, duration, plural

from .gang import Gang, PodEntry
from .gang_table import REJECTED_S, GangTable


@dataclass(frozen=True, slots=True)
class PodsMissing:
    """Some pods of the gang do not exist, or cannot be bound; it is placed once all do and can."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_GANG
    there: int
    pods: int
    held_back: int  #: of those that exist


@dataclass(frozen=True, slots=True)
class NotAsked:
    """kube-scheduler has not asked for the gang yet."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_GANG
    scheduler: str  #: schedulerName of its pods
    said: str  #: the scheduler's message about one of them; "" for none


WhyNot = Reason | PodsMissing | NotAsked


def reasons(table: GangTable, gang: Gang) -> tuple[WhyNot, ...]:
    """Why a gang waits, the most decisive first; () for one that does not. O(log gangs)."""
    if gang.state is JobState.RESERVED:
        return (WaitingForPreemption(table.cluster.group(gang.name).victims),)
    if gang.state is not JobState.QUEUED:
        return ()
    found: list[WhyNot] = []
    if not gang.complete:
        found.append(PodsMissing(len(gang.pods), gang.ask.size, gang.held_back))
    elif not gang.asked:
        first = next(iter(gang.pods.values()))
        said = next(iter(first.pod.turned_down), "")
        found.append(NotAsked(first.pod.spec.scheduler_name or "default-scheduler", said))
    # a gang never asked about has its queue as reason, another keeps the reasons of the core
    return (*found, *why_it_waits(table.scheduler, table.trading, gang, gang.reasons, table.usage.lent))


def shortly(table: GangTable, gang: Gang) -> list[str]:
    """The reasons in words, for lists."""
    if gang.state is JobState.STOPPING:
        by = gang.preempted_by
        return [f"it has to go for {by.name} of {by.vc}" if by is not None else "its turn has come, on other GPUs"]
    said = in_words(table, reasons(table, gang)) or (
        ["its turn is about to come"] if gang.state is JobState.QUEUED else []
    )
    if said:
        nodes = table.rejections.get(gang.family, {}).items()
        said += [f"{node} is avoided for up to {REJECTED_S:g} s: {why}" for node, (_, why) in nodes]
    if said and gang.part_of is not None and gang.barred:
        near = f"the {gang.part_of.ask.within}" if gang.part_of.ask.within else "nodes of the kind"
        said.append(
            f"it has to be in {near} of the pods of {gang.part_of.name} that run; if those are deleted too, all of it "
            "is placed anew"
        )
    return said


def in_words(table: GangTable, found: Sequence[WhyNot]) -> list[str]:
    """Reasons as sentences, with the terms of Kubernetes for nodes."""
    lines = []
    for reason in found:
        match reason:
            case PodsMissing():
                held = f", of which {reason.held_back} cannot be bound (a scheduling gate, or being deleted)"
                them = held if reason.held_back else ""
                lines.append(f"{reason.there} of its {reason.pods} pods exist{them}; it is placed once all do")
            case NotAsked():
                said = f": {' '.join(reason.said.split())}" if reason.said else ""
                lines.append(f"its scheduler, {reason.scheduler}, has not asked for it{said or ' yet'}")
            case NotSuggested():
                lines.append(
                    f"kube-scheduler takes {reason.suggested:,} of the cluster's nodes for it (taints, selectors, CPU, "
                    "memory), and it does not fit on those alone"
                )
            case BadHardware():
                nodes = ", ".join(f"{name} ({_why_bad(table, name)})" for name in reason.nodes[:MAX_NAMED])
                more = f" and {reason.more:,} more nodes" if reason.more else ""
                lines.append(f"it would fit if {reason.leaf_cells:,} GPUs were not kept from jobs, on {nodes}{more}")
            case _:
                lines.append(say(reason))
    return lines


def _why_bad(table: GangTable, node: str) -> str:
    return table.nodes.bad_nodes.get(node) or "; ".join(table.nodes.bad_parts(node)) or "some of its GPUs"


def explain(table: GangTable, gang: Gang, at: float | None) -> list[str]:
    """The situation of a gang, line by line; ``at``: now (None: without the time that it waits)."""
    if not gang.holds:
        since = "" if at is None else f", for {duration(at - gang.since)} now"
        return [f"{gang.name} of {gang.vc} waits for {counted(gang.gpus, 'GPU')}{since}:", *shortly(table, gang)]
    lines = table.cluster.explained(gang.name)
    waiting = [entry for entry in gang.pods.values() if not entry.bound]
    if waiting:
        lines.append(f"{len(waiting)} of its {len(gang.pods)} pods are not on their nodes yet: {_some(waiting)}")
    late = [] if gang.rest is None else list(gang.rest.pods.values())
    if len(gang.pods) + len(late) < gang.ask.size:
        gone = gang.ask.size - len(gang.pods) - len(late)
        lines.append(f"{gone} of its {gang.ask.size} pods do not exist (any more)")
    if gang.rest is not None:
        lines.append(f"{len(late)} of its {gang.ask.size} pods wait for a place ({_some(late)}):")
        lines += shortly(table, gang.rest)
    entry = gang.entry
    if gang.state is JobState.RUNNING and not gang.guaranteed and (entry.early or entry.place_in is not None):
        lines.append(early_text(table.scheduler, gang.entry))
    if gang.guaranteed:
        lines += cells_taken(table.trading, gang.vc)
    lines += _sharing(table, gang)
    if gang.state is JobState.STOPPING and gang.preempted_by is not None:
        lines.append(_eviction(gang, at))
    return lines


def _eviction(gang: Gang, at: float | None) -> str:
    """The progress of the eviction of a gang."""
    at = gang.evict_at if at is None else at
    if gang.evict_from is None:
        return f"its pods are told to go in {max(0.0, gang.evict_at - at):.1f} s"
    stay = [entry for entry in gang.pods.values() if entry.bound and not entry.evicted and not entry.terminating]
    if not stay:
        return "its pods are being deleted"
    return f"the eviction of {_some(stay)} was refused (a disruption budget, mostly), and is tried again"


def _sharing(table: GangTable, gang: Gang) -> list[str]:
    """Foreign pods that may share GPUs with a gang. O(its pods)."""
    nodes = dict.fromkeys(node for node, _ in gang.devices())
    here = (pod for node in nodes for pod in table.foreign.on.get(node, {}).values() if pod.short)
    return [f"{pod} of {pod.node} and may share some with it: {table.conflicts[pod.uid]}" for pod in here]


def explain_pod(table: GangTable, entry: PodEntry, at: float | None) -> list[str]:
    """The situation of a pod, line by line."""
    gang = entry.gang
    if gang is None:
        return [f"{entry.key} cannot be scheduled:", str(entry.refused or "it is not known what it asks for")]
    lines = explain(table, gang, at)
    if (place := entry.given) is not None:
        gpus = ", ".join(map(str, place.leaf_cells))
        state = "is" if entry.bound else "is to be"
        lines.append(f"{entry.key} {state} on {place.node}, with {plural(len(place.leaf_cells), 'GPU')} {gpus}")
    elif entry.bound:
        lines.append(f"{entry.key} is on {entry.pod.spec.node_name}, on devices that the spec does not have (any more)")
    elif gang.state is JobState.RUNNING:
        why = f"other pods have all {gang.ask.size} places of its group ({_size_source(entry)})"
        if None in gang.slots:
            why = "the GPUs that its group has left are not as many, or a pod of no group may be using them"
        lines.append(f"{entry.key} waits: {why}")
    return lines


def _size_source(entry: PodEntry) -> str:
    """The field that gives the number of pods of a pod's group."""
    if entry.pod.annotation(keys.POD_SPEC) is not None:
        return f"affinityGroup.members of annotation {keys.POD_SPEC}"
    if entry.pod.label(keys.GROUP_SIZE) is not None:
        return f"label {keys.GROUP_SIZE}"
    return f"pods of {entry.ask.title or entry.ask.group}" if entry.ask is not None and entry.ask.owner else "one pod"


def _some(entries: Sequence[PodEntry]) -> str:
    names = ", ".join(entry.key for entry in entries[:MAX_NAMED])
    return names + (f" and {len(entries) - MAX_NAMED} more" if len(entries) > MAX_NAMED else "")
