"""What kube-scheduler is answered: one node, or why not, node by node; and which pods have to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import msgspec

from hived.cluster.reasons import ReasonKind
from hived.engines.kubernetes.pods.objects import Pod
from hived.words import shortened

from .explaining import explain_pod, reasons, shortly
from .gang import Bind, Gang, GangState, PodEntry, Tell
from .gang_table import GangTable

_LONGEST = 140  #: characters of a reason that is repeated for every node
_LONGEST_EVENT = 1000


class FilterArgs(msgspec.Struct, frozen=True, kw_only=True):
    """kube-scheduler's question, with Go's names."""

    Pod: Pod
    NodeNames: list[str] | None = None
    Nodes: msgspec.Raw = msgspec.Raw(b"null")


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to filter; ``Nodes`` instead of their names, where kube-scheduler has sent them whole.

    With an ``Error`` or nothing it is the answer to bind.
    """

    NodeNames: list[str] | None = None
    Nodes: object = None
    FailedNodes: Mapping[str, str] | None = None
    FailedAndUnresolvableNodes: Mapping[str, str] | None = None
    Error: str = ""


#: writes all answers
encoder = msgspec.json.Encoder()


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    """Victims on one node."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True, kw_only=True):
    """kube-scheduler's question; the nodes are those where its own preemption would help."""

    Pod: Pod
    NodeNameToMetaVictims: dict[str, MetaVictims | None] | None = None


class Victims(msgspec.Struct, frozen=True):
    """The answer to preempt."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class BindArgs(msgspec.Struct, frozen=True, kw_only=True):
    """kube-scheduler's wish."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


def answer(
    table: GangTable, entry: PodEntry, offered: Sequence[str], unresolvable: bool, some: bool = False
) -> tuple[str, Answer]:
    """What filter is answered about a pod that was asked for, and that in one word. O(nodes).

    ``some``: kube-scheduler asks about other nodes next. ``unresolvable``: its own preemption is not to try the nodes
    that are refused (from 1.22 on; before, it asks who has to go only about nodes that it may try).
    """
    gang = entry.gang
    if gang is None:
        entry.waited = True
        return "refused", refusal(str(entry.refused), offered, unresolvable)
    if gang.state is GangState.PLACED and entry.given is not None:
        node = entry.given.node
        if node in offered:
            entry.waited, entry.told = False, ""
            return "node", Answer(NodeNames=[node])
        entry.waited = True
        if some:
            return "not offered", refusal(f"its place is on {node}", offered, False)
        if gang.ask.anywhere and not entry.holds:
            table.instruct(Bind(entry.uid, entry.key))
            why = f"bound to {node} whatever kube-scheduler makes of it"
            return "forced", refusal(why, offered, unresolvable)
        text = f"its place is on {node}, which kube-scheduler does not take for it"
        _tell(table, entry, "not offered", [text])
        return "not offered", refusal(text, offered, unresolvable)
    entry.waited = True
    lines = explain_pod(table, entry, None)
    why = next(iter(shortly(table, gang)), lines[-1])
    _tell(table, entry, _gist(table, gang), lines)
    return "preempting" if gang.reserved else "wait", refusal(why, offered, unresolvable)


def _gist(table: GangTable, gang: Gang) -> str:
    """The decisive reason for a gang's waiting, in a word: its numbers, and who is before it, are no news.

    Which GPUs are reserved for it is: others have to go for other ones.
    """
    if gang.state is GangState.RESERVED and gang.placement is not None:
        return f"{ReasonKind.WAITING_FOR_PREEMPTION.value} {crc32(repr(gang.placement.pods).encode()):08x}"
    kinds = [reason.kind for reason in reasons(table, gang)]
    own = [kind for kind in kinds if kind is not ReasonKind.BEHIND_OTHERS]
    return (own or kinds)[0].value if kinds else gang.state.value


def repeat_reasons(table: GangTable, gang: Gang) -> None:
    """Its reservation has ended: pods of it that still wait, and were told for whom, are told why now. O(its pods)."""
    if not gang.holds:
        for entry in gang.pods.values():
            if entry.told:
                _tell(table, entry, _gist(table, gang), explain_pod(table, entry, None))


def _tell(table: GangTable, entry: PodEntry, gist: str, lines: list[str]) -> None:
    """An Event of a pod, where its ``gist`` is news."""
    if entry.told != gist:
        entry.told = gist
        line = " ".join([*lines[:1], "; ".join(lines[1:])]).rstrip()
        table.instruct(Tell(entry.uid, entry.key, "HivedWaiting", shortened(line, _LONGEST_EVENT), gist=gist))


def refusal(why: str, offered: Sequence[str], unresolvable: bool) -> Answer:
    """The same reason for all nodes. ``unresolvable``: preempting would not help either."""
    nodes = dict.fromkeys(offered, shortened(f"hived: {' '.join(why.split())}", _LONGEST))
    if unresolvable:
        return Answer(NodeNames=[], FailedAndUnresolvableNodes=nodes)
    return Answer(NodeNames=[], FailedNodes=nodes)


def preemption(table: GangTable, entry: PodEntry) -> Victims:
    """What preempt is answered: by node, the pods that have to go before ``entry`` can come. O(pods of the victims).

    kube-scheduler takes one node; the gang scheduler sees to the rest.
    """
    found: dict[str, list[MetaPod]] = {}
    if entry.gang is not None and entry.gang.reserved:
        for name in table.cluster.group(entry.gang.name).victims:
            for pod in table.gangs[name].pods.values():
                if pod.bound and pod.pod.spec.node_name:
                    found.setdefault(pod.pod.spec.node_name, []).append(MetaPod(pod.uid))
    return Victims({node: MetaVictims(pods) for node, pods in found.items()})
