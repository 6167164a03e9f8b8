"""Answers of the scheduler extender: one node or a reason per node (filter), and the victims (preempt)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import msgspec

from hived.cluster.explain.reasons import ReasonKind
from hived.engine.states import JobState
from hived.engines.kubernetes.pods.objects import Pod
from hived.words import shortened

from .explaining import GangExplainer
from .gang import Bind, Gang, PodEntry, RecordEvent
from .gang_table import GangTable

_LONGEST = 140  #: characters of a reason that is repeated for every node
_LONGEST_EVENT = 1000


class FilterArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The request of filter, with Go's names."""

    Pod: Pod
    NodeNames: list[str] | None = None
    Nodes: msgspec.Raw = msgspec.Raw(b"null")


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to filter; ``Nodes`` instead of names if the request had whole nodes.

    With an ``Error`` or empty it is the answer to bind.
    """

    NodeNames: list[str] | None = None
    Nodes: object = None
    FailedNodes: Mapping[str, str] | None = None
    FailedAndUnresolvableNodes: Mapping[str, str] | None = None
    Error: str = ""


#: encodes all answers
encoder = msgspec.json.Encoder()


class MetaPod(msgspec.Struct, frozen=True):
    """A victim pod."""

    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The request of preempt; its nodes are those where kube-scheduler's own preemption would help."""

    Pod: Pod
    NodeNameToMetaVictims: dict[str, MetaVictims | None] | None = None


class Victims(msgspec.Struct, frozen=True):
    """The answer to preempt."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class BindArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The request of bind."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


def answer(
    table: GangTable, entry: PodEntry, offered: Sequence[str], unresolvable: bool, partial: bool = False
) -> tuple[str, Answer]:
    """The result label and the filter answer for a pod. O(nodes).

    ``partial``: kube-scheduler filters other nodes next. ``unresolvable``: its own preemption must skip the refused
    nodes (from 1.22 on; older versions call preempt only about nodes that their own preemption may try).
    """
    gang = entry.gang
    if gang is None:
        entry.needs_wake = True
        return "refused", refusal(str(entry.refused), offered, unresolvable)
    if gang.state is JobState.RUNNING and entry.given is not None:
        node = entry.given.node
        if node in offered:
            entry.needs_wake, entry.reported = False, ""
            return "node", Answer(NodeNames=[node])
        entry.needs_wake = True
        if partial:
            return "not offered", refusal(f"its place is on {node}", offered, False)
        if gang.ask.anywhere and not entry.holds:
            table.instruct(Bind(entry.uid, entry.key))
            why = f"bound to {node} whatever kube-scheduler makes of it"
            return "forced", refusal(why, offered, unresolvable)
        text = f"its place is on {node}, which kube-scheduler does not take for it"
        _record(table, entry, "not offered", [text])
        return "not offered", refusal(text, offered, unresolvable)
    entry.needs_wake = True
    lines = GangExplainer(table).explain_pod(entry, None)
    why = next(iter(GangExplainer(table).shortly(gang)), lines[-1])
    _record(table, entry, _summary(table, gang), lines)
    return "preempting" if gang.reserved else "wait", refusal(why, offered, unresolvable)


def _summary(table: GangTable, gang: Gang) -> str:
    """The kind of the decisive reason why a gang waits. Changed numbers or queue positions are not worth a new Event.

    A changed reservation is, since it has other victims.
    """
    if gang.state is JobState.RESERVED and gang.placement is not None:
        return f"{ReasonKind.WAITING_FOR_PREEMPTION.value} {crc32(repr(gang.placement.pods).encode()):08x}"
    kinds = [reason.kind for reason in GangExplainer(table).reasons(gang)]
    own = [kind for kind in kinds if kind is not ReasonKind.BEHIND_OTHERS]
    return (own or kinds)[0].value if kinds else gang.state.value


def repeat_reasons(table: GangTable, gang: Gang) -> None:
    """Record new Events for waiting pods of a gang that lost its reservation, if they had one before. O(its pods)."""
    if not gang.holds:
        for entry in gang.pods.values():
            if entry.reported:
                _record(table, entry, _summary(table, gang), GangExplainer(table).explain_pod(entry, None))


def _record(table: GangTable, entry: PodEntry, summary: str, lines: list[str]) -> None:
    """Record an Event of a waiting pod, unless its last one had the same ``summary``."""
    if entry.reported != summary:
        entry.reported = summary
        text = shortened(" ".join([*lines[:1], "; ".join(lines[1:])]).rstrip(), _LONGEST_EVENT)
        table.instruct(RecordEvent(entry.uid, entry.key, "HivedWaiting", text, summary=summary))


def refusal(why: str, offered: Sequence[str], unresolvable: bool) -> Answer:
    """Refuse all nodes for the same reason. ``unresolvable``: preemption would not help either."""
    nodes = dict.fromkeys(offered, shortened(f"hived: {' '.join(why.split())}", _LONGEST))
    if unresolvable:
        return Answer(NodeNames=[], FailedAndUnresolvableNodes=nodes)
    return Answer(NodeNames=[], FailedNodes=nodes)


def preemption(table: GangTable, entry: PodEntry) -> Victims:
    """The preempt answer: by node, the victims that ``entry`` waits for. O(pods of the victims).

    kube-scheduler deletes those of one node; the gang scheduler evicts the rest.
    """
    found: dict[str, list[MetaPod]] = {}
    if entry.gang is not None and entry.gang.reserved:
        for name in table.cluster.group(entry.gang.name).victims:
            for pod in table.gangs[name].pods.values():
                if pod.bound and pod.pod.spec.node_name:
                    found.setdefault(pod.pod.spec.node_name, []).append(MetaPod(pod.uid))
    return Victims({node: MetaVictims(pods) for node, pods in found.items()})
