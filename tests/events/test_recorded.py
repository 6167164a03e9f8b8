"""A cluster whose calls are written down: which calls, in what words, and what it is else."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

from hived import Bind, CheckedCluster, Cluster, InvariantError, Member, RecordedCluster, Request, RequestError, replay
from hived.cluster.decisions import Placement, PodPlacement, VirtualLeaves
from hived.cluster.placement_request import (
    ANYWHERE,
    ON_IDLE,
    Beside,
    OnHosts,
    OnIdle,
    Over,
    PlacementConstraint,
    PlacementRequest,
)
from hived.events.codec import from_line
from hived.events.journal import Call, Event, Placed, Scheduled

from ..contract.driver import Driver
from ..contract.specs import flat, lent, wants
from ..strategies import NODE, cluster_of, nodes_of_8, vc

NODES = nodes_of_8(2)
SPEC = cluster_of(NODES, vc("a", (NODES, NODE, 2)))
CONSTRAINTS: list[PlacementConstraint] = [
    ANYWHERE,
    ON_IDLE,
    OnHosts(((0, 1),)),
    VirtualLeaves(0, ((0, 1),)),
    Beside((PodPlacement("node-node-0", (0,)),)),
    Over(("other",)),
]
CALLS = [kind for kind in get_args(Event) if issubclass(kind, Call)]


def job(name: str, gpus: int = 8) -> Request:
    return Request(name, "a", members=(Member(1, gpus),))


@pytest.mark.parametrize("kind", [kind for kind in CALLS if kind is not Placed], ids=lambda kind: kind.__name__)
def test_fields_are_the_arguments_of_the_call(kind: type[Call]) -> None:
    taken = list(inspect.signature(getattr(Cluster, kind.call)).parameters)
    taken = [name for name in taken if name not in ("self", "demand")]  # a demand only spares checking the request
    answer = "decision" if kind is Scheduled else "answer"
    assert [field.name for field in fields(kind) if field.name != answer] == taken  # type: ignore[arg-type]
    assert kind.call in vars(RecordedCluster), "it is written down"


class Echo:
    """Answers a question with the question."""

    @staticmethod
    def place(asked: PlacementRequest, keep: bool) -> tuple[PlacementRequest, bool]:
        return asked, keep


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: type(constraint).__name__)
def test_placement_request_is_in_the_call(constraint: PlacementConstraint) -> None:
    asked = PlacementRequest(job("one"), constraint, 2.0, Placement("NODE", ()), ("node-node-1",))
    assert Placed.asked(asked, asked.excluded_nodes, True).apply(Echo) == (asked, True)


def test_constraints_are_all() -> None:
    assert {type(constraint) for constraint in CONSTRAINTS} == set(get_args(PlacementConstraint))


@pytest.mark.parametrize("constraint", [None, *CONSTRAINTS[1:]], ids=lambda constraint: type(constraint).__name__)
def test_constraint_of_another_request(constraint: PlacementConstraint) -> None:
    loan = replace(job("loan"), priority=-1)
    request = job("one") if constraint is None or isinstance(constraint, OnIdle | Beside) else loan
    lines: list[str] = []
    cluster = RecordedCluster(SPEC, lines.append)
    cluster.commit(cluster.schedule(job("other")))
    with pytest.raises(RequestError, match=r"constraint|no running opportunistic group"):
        cluster.place(PlacementRequest(request, constraint))


def test_what_is_no_placement_request() -> None:
    cluster = RecordedCluster(SPEC, list[str]().append)
    with pytest.raises(RequestError, match="a PlacementRequest"):
        cluster.place(job("one"))  # type: ignore[arg-type]
    for kind in (OnHosts, Over):
        with pytest.raises(RequestError, match="at least one"):
            kind(())


def test_made_as_other_clusters_are(tmp_path: Path) -> None:
    lines: list[str] = []
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(flat({"a": 1})))
    for cluster in (RecordedCluster.load(file, lines.append), RecordedCluster.from_spec(SPEC, lines.append)):
        assert type(cluster) is RecordedCluster
        cluster.commit(cluster.schedule(job("one", 1)))
    opened = ["Opened"] * 2
    assert [type(from_line(line)).__name__ for line in lines] == [*opened, *["Scheduled", "Committed"] * 2]


def test_recorded_and_checked_at_once() -> None:
    class Both(RecordedCluster, CheckedCluster):
        pass

    lines: list[str] = []
    cluster = Both(SPEC, lines.append)
    cluster.commit(cluster.schedule(job("one")))
    cluster._state.chains[0].used[0] += 1  # a deliberate fault
    with pytest.raises(InvariantError):
        cluster.release("one")
    assert len(lines) == 3, "what failed is not written as done"


def test_questions_of_a_scheduler_are_replayed() -> None:
    lines: list[str] = []
    cluster = RecordedCluster(SPEC, lines.append)
    loan = cluster.place(PlacementRequest(Request("loan", "a", -1, (Member(1, 3),)), ON_IDLE))
    assert loan is not None
    cluster.commit(loan)
    near = cluster.place(PlacementRequest(job("near"), now=2.5, near=loan.placement))
    other = cluster.place(PlacementRequest(job("other")))
    assert near is not None
    assert other is not None
    assert near != other
    cluster.commit(near)  # not the last answer, and distinguished by its placement
    assert cluster.place(PlacementRequest(Request("third", "a", members=(Member(2, 8),)), now=3)) is None
    with pytest.raises(RequestError, match="holds leaf cells already"):
        cluster.place(PlacementRequest(job("near")))
    with pytest.raises(RequestError, match="seconds, not"):
        cluster.place(PlacementRequest(job("late"), now=float("nan")))
    assert cluster.place(PlacementRequest(job("fourth", 1), excluded_nodes={"node-node-1", "node-node-0"})) is None
    assert cluster.promote(job("loan", 3)) is False
    nodes = cluster.spec.node_names
    assert cluster.promote(job("loan", 3), excluded_nodes=nodes) is None
    assert cluster.place(PlacementRequest(job("fifth", 1)), keep=True) is not None
    kinds = [type(from_line(line)).__name__ for line in lines]
    asked = ["Opened", "Placed", "Committed", *["Placed"] * 2, "Committed", "Placed", *["Refused"] * 2]
    assert kinds == [*asked, "Placed", *["Promoted"] * 2, "Placed"]
    again: list[str] = []
    assert replay(lines, lambda spec: RecordedCluster(spec, again.append)).snapshot() == cluster.snapshot()
    assert again == lines


def test_decision_made_by_hand_is_refused() -> None:
    """It looks like one that was offered since the last change, and was not the last."""
    lines: list[str] = []
    cluster = RecordedCluster(SPEC, lines.append)
    offered = cluster.schedule(job("one"))
    assert isinstance(offered, Bind)
    cluster.schedule(job("two"))
    with pytest.raises(RequestError, match="out of date"):
        cluster.commit(Bind(offered.group, offered.placement, offered.within))
    assert replay(lines, Cluster).snapshot() == cluster.snapshot()
    cluster.commit(offered)
    assert replay(lines, Cluster).snapshot() == cluster.snapshot()


def test_replay_keeps_no_outdated_decision() -> None:
    lines: list[str] = []
    cluster = RecordedCluster(SPEC, lines.append)
    for number in range(100):
        name = f"job-{number}"
        cluster.commit(cluster.schedule(job(name)))
        cluster.release(name)
    kept: list[int] = []

    def watched() -> Iterator[str]:
        for number, line in enumerate(lines):
            if number in (50, len(lines) - 1):
                gc.collect()
                kept.append(sum(type(found) is Bind and found.provenance is not None for found in gc.get_objects()))
            yield line

    replay(watched(), Cluster)
    assert kept[0] == kept[1]


def test_log_can_be_cut_anywhere() -> None:
    driver = Driver(flat({"a": 1, "b": 1}, spare=2), log=True)
    seen = [(len(driver.lines), driver.cluster.snapshot())]
    for i, gpus in enumerate((1, 3, 2, 4)):
        driver.run(wants(f"job-{i}", "ab"[i % 2], gpus, priority=i))
        seen.append((len(driver.lines), driver.cluster.snapshot()))
    for count, snapshot in seen:
        if count:
            assert replay(driver.lines[:count], Cluster).snapshot() == snapshot


def test_refusal_of_an_old_decision_is_replayed() -> None:
    """Three decisions that look alike: one kept, one carried out, one only answered where the group runs."""
    driver = Driver(flat({"a": 2}, spare=1), log=True)
    job = lent("job", "a", 2)
    old = driver.ask(job)
    driver.bind(job)
    driver.ask(job)
    driver.release("job")
    driver.bind(wants("other", "a", 4))
    with pytest.raises(RequestError):
        driver.cluster.commit(old)
    again = replay(driver.lines, Cluster)
    assert again.snapshot() == driver.cluster.snapshot()
