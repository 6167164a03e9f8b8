"""What people read: reasons and decisions as sentences."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Wait
from hived.cluster.explain.reasons import (
    BadHardware,
    BehindOthers,
    CellsGiven,
    Fragmented,
    KeptForEnded,
    LostReservation,
    Misconfigured,
    NeverFits,
    NotAsked,
    NothingIdle,
    NotSuggested,
    OutOfService,
    PodsMissing,
    PreemptedBy,
    Reason,
    ReasonKind,
    ShareUsedUp,
    Suspended,
    VcExhausted,
    WaitingForGang,
    WaitingForPreemption,
)
from hived.cluster.explain.sentences import MAX_NAMED, explained, in_lines, say
from hived.cluster.requests import Member, Request
from hived.errors import InvariantError

from ..events.values import values
from ..kubernetes.pods import flat_spec

MANY = tuple(f"g{number}" for number in range(20))

SENTENCES: list[tuple[Reason, str]] = [
    (
        PreemptedBy("serve", "prod", priority=3, own_priority=0, ended=False),
        "it is of priority 0 and has to go for serve of VC prod, which is guaranteed with priority 3",
    ),
    (
        PreemptedBy("serve", "prod", priority=3, own_priority=-1, ended=True),
        "it is opportunistic and had to go for serve of VC prod, which is guaranteed with priority 3",
    ),
    (
        PreemptedBy("loan", "prod", priority=-1, own_priority=-1, ended=True),
        "it had to go for loan of VC prod: both are opportunistic, and its own VC was above its fair share",
    ),
    (LostReservation("urgent", None), "it had GPUs reserved, and urgent, of a higher priority, took them; ask again"),
    (LostReservation(None, "n7"), "it had GPUs reserved, and node n7 turned bad under them; ask again"),
    (LostReservation(None, None), "it had GPUs reserved, and the cluster was reconfigured since; ask again"),
    (
        Suspended(1, "own"),
        "it was a guest on 1 GPU, and own has some of them now, and its VC has no such guests; "
        "schedule it again to go on",
    ),
    (
        KeptForEnded("a", 2, ("train-2",)),
        "2 GPUs of VC a are kept for train-2, which ended early: its safety is exact, so its turns are those of a "
        "private cluster; loans use them",
    ),
    (
        CellsGiven("a", "b", "RACK.NODE", 2, 1_795_500_000.0, 7),
        "VC a has given 2 x RACK.NODE to VC b until 2026-11-24 06:00 UTC (trade 7)",
    ),
    (Suspended(8), "it is suspended, and has given its 8 GPUs up; schedule it again to go on"),
    (
        Misconfigured("vc", "no VC `reserch` (did you mean `research`?)"),
        "its request is not right for this cluster: vc: no VC `reserch` (did you mean `research`?)",
    ),
    (
        NeverFits("research", need=32, have=16, largest_pod=8, largest_host=8, within=None),
        "it needs 32 GPUs, and VC research has 16 of that kind in all: it can never start; "
        "ask for fewer GPUs, or for a larger reservation",
    ),
    (
        NeverFits("", need=1, have=0, largest_pod=1, largest_host=0, within=None),
        "it needs 1 GPU, and the cluster has 0 of that kind in all: it can never start; "
        "ask for fewer GPUs, or for a larger reservation",
    ),
    (
        NeverFits("research", need=16, have=16, largest_pod=16, largest_host=8, within=None),
        "a pod of it needs 16 GPUs together, and VC research has at most 8 together: it can never start; "
        "split the pod into smaller ones",
    ),
    (
        NeverFits("research", need=16, have=64, largest_pod=8, largest_host=8, within="RACK"),
        "VC research has 64 GPUs for the 16 it needs, but never in one RACK: it can never start; "
        "ask for a wider cell or for soft affinity",
    ),
    (
        NeverFits("research", need=15, have=16, largest_pod=5, largest_host=8, within=None),
        "VC research has 16 GPUs for the 15 it needs, but its pods never fit side by side: it can never start; "
        "ask for smaller pods",
    ),
    (
        VcExhausted("research", need=16, have=4, size=16, held_by=(("job-1", 8), ("job-2", 4)), more=0),
        "VC research has 4 of the 16 GPUs it needs: 12 of its 16 are held by job-1 (8), job-2 (4); "
        "it starts when enough of them end, or with a higher priority than theirs",
    ),
    (
        VcExhausted("research", need=1, have=0, size=4, held_by=(("job-1", 1), ("job-2", 4)), more=0),
        "VC research has 0 of the 1 GPU it needs: all 4 of it are held by job-1 (1), job-2 (4), some of whom make room "
        "for others of these; it starts when enough of them end, or with a higher priority than theirs",
    ),
    (
        VcExhausted("research", need=1, have=0, size=1, held_by=(("job-1", 1),), more=0),
        "VC research has 0 of the 1 GPU it needs: 1 of its 1 is held by job-1 (1); "
        "it starts when that ends, or with a higher priority than its own",
    ),
    (
        VcExhausted("research", need=16, have=4, size=16, held_by=(("job-1", 8),), more=0),
        "VC research has 4 of the 16 GPUs it needs: 8 of its 16 are held by job-1 (8), and 4 cannot be used now; "
        "it starts when enough of all these can be used",
    ),
    (
        VcExhausted("research", need=16, have=4, size=40, held_by=(("job-1", 8), ("job-2", 4)), more=3),
        "VC research has 4 of the 16 GPUs it needs: the rest of its 40 are held by job-1 (8), job-2 (4), "
        "3 more jobs; it starts when enough of them end, or with a higher priority than theirs",
    ),
    (
        VcExhausted("research", need=16, have=4, size=16, held_by=(), more=0),
        "VC research has 4 of the 16 GPUs it needs: the rest of its 16 cannot be used now",
    ),
    (
        Fragmented("research", need=8, have=12, largest_pod=8, largest_free=6, within=None),
        "VC research has 12 GPUs free for the 8 it needs, but not close enough together: a pod needs 8, and the most "
        "free together are 6; it starts when others in the VC end, and sooner with smaller pods",
    ),
    (
        Fragmented("research", need=8, have=12, largest_pod=4, largest_free=4, within="NODE"),
        "VC research has 12 GPUs free for the 8 it needs, but not in one NODE; "
        "it starts when others in the VC end, and sooner with a wider cell or soft affinity",
    ),
    (
        Fragmented("research", need=8, have=9, largest_pod=4, largest_free=5, within=None),
        "VC research has 9 GPUs free for the 8 it needs, but not close enough together for all its pods; "
        "it starts when others in the VC end, and sooner with smaller pods",
    ),
    (WaitingForPreemption(("job-1",)), "its GPUs are reserved; it starts once job-1 has ended"),
    (
        WaitingForPreemption(("job-1", "job-2", "job-3")),
        "its GPUs are reserved; it starts once job-1, job-2 and job-3 have ended",
    ),
    (
        WaitingForPreemption(MANY),
        "its GPUs are reserved; it starts once g0, g1, g2, g3, g4, g5, g6, g7 and 12 others have ended",
    ),
    (WaitingForGang(fit=3, pods=5), "3 of its 5 pods would fit now, but a group starts with all its pods or none"),
    (BadHardware(1, ("node-1",), 0), "it would fit if 1 GPU on node-1 was healthy; it starts once enough is repaired"),
    (
        BadHardware(9, ("node-1", "node-2"), 1),
        "it would fit if 9 GPUs on node-1, node-2 and 1 other node were healthy; it starts once enough is repaired",
    ),
    (BehindOthers(1, ("job-1",)), "1 job of its VC is ahead of it in line: job-1"),
    (BehindOthers(4, ("job-1", "job-2")), "4 jobs of its VC are ahead of it in line: job-1, job-2 and 2 others"),
    (
        ShareUsedUp("research", need=4, held=12, share=10),
        "it needs 4 GPUs on loan, and VC research has 12 on loan already, where its fair share is 10; "
        "beyond that it gets only what is idle",
    ),
    (
        ShareUsedUp("research", need=8, held=0, share=5),
        "it needs 8 GPUs on loan, more than the fair share of VC research, which is 5 now; "
        "beyond that it gets only what is idle",
    ),
    (PodsMissing(1, 2, 0), "1 of its 2 pods exist; it is placed once all do"),
    (
        PodsMissing(2, 2, 1),
        "2 of its 2 pods exist, of which 1 cannot be bound (a scheduling gate, or being deleted); it is placed once "
        "all do",
    ),
    (NotAsked("volcano", ""), "its scheduler, volcano, has not asked for it yet"),
    (NotAsked("hived", "0/3 nodes:\n no"), "its scheduler, hived, has not asked for it: 0/3 nodes: no"),
    (OutOfService((), (), (), (), ()), "it waits for GPUs that are out of service"),
    (OutOfService((), (), (), (), ("job-1",)), "it waits for GPUs that are out of service, after job-1"),
    (
        OutOfService((("node", (0, 1, 5)),), (), (), ()),
        "it would start with GPUs 0-1,5 of node not drained (an operator undoes that: hived drain node --device 0 "
        "--device 1 --device 5 --undo)",
    ),
    (
        OutOfService((("node", (0,)),), (("node", (2,)), ("other", (1,))), (("other", (0,)),), ("job-1", "job-2")),
        "it would start with GPU 0 of node not drained (an operator undoes that: hived drain node --device 0 --undo) "
        "and GPU 2 of node, GPU 1 of other healthy and GPU 0 of other free, when job-1 and job-2 have ended",
    ),
    (
        OutOfService(tuple((f"n{number}", (0, 1)) for number in range(10)), (), (), ()),
        "it would start with "
        + ", ".join(f"GPUs 0-1 of n{number}" for number in range(8))
        + " and 4 GPUs elsewhere not drained (an operator undoes that: hived drain NODE --undo)",
    ),
    (NothingIdle(need=8, idle=0), "it needs 8 idle GPUs, and none are idle; it starts once enough are"),
    (NothingIdle(need=8, idle=1), "it needs 8 idle GPUs, and 1 is idle; it starts once enough are"),
    (
        NothingIdle(need=8, idle=12),
        "12 GPUs are idle, but not close enough together for the 8 it needs; it starts once enough of them are",
    ),
    (
        NotSuggested(1, searched_all=True),
        "it would fit elsewhere, but not on the 1 suggested node; "
        "suggest more nodes, or none at all to allow every node",
    ),
    (
        NotSuggested(3, searched_all=False),
        "it would fit elsewhere, and no place was found on the 3 suggested nodes, though not every way was tried; "
        "suggest more nodes, or none at all to allow every node",
    ),
    (NotSuggested(0, searched_all=True), "it would fit, but no node of the cluster was suggested; suggest some"),
]


@pytest.mark.parametrize(("reason", "sentence"), SENTENCES, ids=[reason.kind.value for reason, _ in SENTENCES])
def test_reason_is_one_sentence(reason: Reason, sentence: str) -> None:
    """Numbers and nouns agree, and no code is shown."""
    assert say(reason) == sentence
    assert not re.search(r"\b1 (GPUs|pods|groups|nodes|others)\b", sentence)
    assert not re.search(r"_|\bNone\b|\bTrue\b|\(\)|[A-Z]\w+\(", sentence.replace(getattr(reason, "message", ""), ""))


def test_every_kind_has_its_sentence() -> None:
    assert {type(reason) for reason, _ in SENTENCES} == set(get_args(Reason))
    assert {reason.kind for reason in get_args(Reason)} == set(ReasonKind)


def test_wait() -> None:
    wait = Wait("job-7", (BehindOthers(1, ("job-1",)), NothingIdle(8, 0)))
    assert in_lines(explained(wait)).splitlines() == [
        "job-7 waits:",
        "- 1 job of its VC is ahead of it in line: job-1",
        "- it needs 8 idle GPUs, and none are idle; it starts once enough are",
    ]


def test_names_that_cannot_be_printed() -> None:
    wait = Wait("a\nb", (Misconfigured("vc", "no\nvc"), WaitingForPreemption(("x\ny", "z\x1b[1m"))))
    text = in_lines(explained(wait))
    assert len(text.splitlines()) == 3
    assert "a\\nb waits:" in text
    assert "once x\\ny and z\\x1b[1m have" in text


@given(values(Reason))
def test_any_reason_is_one_line(reason: Reason) -> None:
    assert say(reason).isprintable()


@given(values(Decision))
def test_any_decision_can_be_explained(decision: Decision) -> None:
    assert all(line and line.isprintable() for line in explained(decision))


def test_start() -> None:
    placement = Placement("RACK", (PodPlacement("n1", (0, 1, 2, 3)), PodPlacement("n2", (0, 2, 3, 7))), (4, 4))
    bind = Bind(
        "job-7", placement, within="RACK", relaxed=("NODE",), downgraded=("job-1",), overtaken=("job-2", "job-3")
    )
    assert in_lines(explained(bind)).splitlines() == [
        "job-7 can start on 8 GPUs:",
        "- pod 1: n1, GPUs 0-3",
        "- pod 2: n2, GPUs 0, 2-3, 7",
        "- guaranteed: it stands in cells that its VC reserved",
        "- all of it is in one RACK",
        "- soft affinity: it could not be had in one NODE",
        "- job-1 runs on as opportunistic for its sake",
        "- job-2 and job-3 lose their reservations and wait again",
    ]


def test_lent_start() -> None:
    bind = Bind("job-7", Placement("NODE", (PodPlacement("n1", (5,)),)))
    assert in_lines(explained(bind)).splitlines() == [
        "job-7 can start on 1 GPU:",
        "- pod 1: n1, GPU 5",
        "- opportunistic: it is lent, and taken back when its owner needs it",
        "- no single cell holds all of it",
    ]


def test_preemption_names_all_victims() -> None:
    placement = Placement("NODE", (PodPlacement("n1", (0, 1)),), (1,))
    preempt = Preempt("job-7", placement, MANY, within="NODE", relaxed=("PAIR", "SOCKET"), overtaken=("job-9",))
    lines = in_lines(explained(preempt)).splitlines()
    assert lines[0] == "job-7 can start on 2 GPUs, once 20 groups have ended:"
    assert lines[1].startswith("- to be ended: g0, g1, ")
    assert lines[1].endswith(" g18 and g19")
    assert lines[1].count("g") >= len(MANY) > MAX_NAMED
    assert lines[2:] == [
        "- pod 1: n1, GPUs 0-1",
        "- guaranteed: it stands in cells that its VC reserved",
        "- all of it is in one NODE",
        "- soft affinity: it could not be had in one PAIR or one SOCKET",
        "- job-9 loses its reservation and waits again",
    ]


def test_what_is_tried_is_not_for_good() -> None:
    """Reservations, waits and health, each decided beside the others."""
    cluster = Cluster(flat_spec(a=2, b=1, spare=1))
    node = Member(1, 4)

    def commit(of: Cluster, name: str, vc: str, priority: int = 0) -> Decision:
        decision = of.schedule(Request(name, vc, priority, (node,)))
        of.commit(decision)
        return decision

    cluster.set_node_health("n3", healthy=False)
    for number in range(3):
        commit(cluster, f"loan-{number}", "b", -1)
    assert isinstance(commit(cluster, "own", "a"), Preempt)
    before = cluster.snapshot()
    with cluster.what_if():
        assert isinstance(commit(cluster, "second", "a"), Preempt)
        assert isinstance(commit(cluster, "third", "a"), Wait)
        cluster.set_node_health("n3", healthy=True)
        assert isinstance(commit(cluster, "b", "b"), Bind)
        cluster.release("b")
        cluster.validate()
        for call in (cluster.reconfigure, cluster.trade):
            with pytest.raises(InvariantError, match="is for good"):
                call(cluster.spec)
    assert cluster.snapshot() == before
