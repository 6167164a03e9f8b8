"""A log carried out again: what must be the same, and what is said when it is not."""

from __future__ import annotations

import pytest

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Decision, Placement
from hived.cluster.requests import Member, Request
from hived.errors import InputError, RequestError
from hived.events.codec import from_line
from hived.events.recorded import RecordedCluster
from hived.events.replay import ReplayError, replay
from hived.spec import ClusterSpec

from ..strategies import chain_of, cluster_of, nodes_of_8, vc


def nodes_of_1(number: int) -> ClusterSpec:
    """So many nodes of one GPU, all of ``a``."""
    chain = chain_of((), number, 1)
    return cluster_of(chain, vc("a", (chain, 1, number)))


SPEC, LARGER = nodes_of_1(2), nodes_of_1(3)
ONE, OTHER = chain_of((), 2, 1).node_names


def asks(group: str, pods: int = 1, priority: int = 0) -> Request:
    return Request(group, "a", priority, (Member(pods, 1),))


def where(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """The nodes of every group that runs."""
    return {record.group: tuple(pod.node for pod in record.placement.pods) for record in cluster.records()}


def a_day() -> list[str]:
    """The log of a cluster that everything happened to."""
    before = Cluster(SPEC)
    before.commit(before.schedule(asks("old"), [OTHER]))
    log: list[str] = []
    cluster = RecordedCluster(SPEC, log.append)
    cluster.recover(before.records())
    cluster.commit(cluster.schedule(asks("a"), (ONE, OTHER), 0.1))
    cluster.schedule(asks("b"), None, 2)
    cluster.commit(cluster.schedule(asks("c", priority=1), None, 3.5))
    cluster.release("old")
    cluster.set_node_health(OTHER, healthy=False)
    cluster.set_device_health(OTHER, 0, healthy=False)
    cluster.set_node_health(OTHER, healthy=True)
    cluster.cancel("c")
    with pytest.raises(RequestError):
        cluster.commit(Bind("d", Placement("NODE", ())))
    with pytest.raises(RequestError):
        cluster.release("nobody")
    with pytest.raises(RequestError):
        cluster.schedule(asks("d", priority="high"), (OTHER,))  # type: ignore[arg-type]
    cluster.reconfigure(LARGER)
    cluster.commit(cluster.schedule(asks("e", pods=2)))
    return log


def test_log_is_carried_out_on_a_new_cluster() -> None:
    log = a_day()
    again: list[str] = []
    cluster = replay([f"{line}\n" for line in log], lambda spec: RecordedCluster(spec, again.append))
    assert where(cluster) == {"a": (ONE,), "e": (OTHER, LARGER.chains[0].node_names[2])}
    assert again == log
    kinds = "Opened Scheduled Committed Released Cancelled NodeHealth DeviceHealth Recovered Reconfigured Refused"
    assert {type(from_line(line)).__name__ for line in log} == set(kinds.split())


def test_forged_decision_is_refused_again() -> None:
    log: list[str] = []
    with pytest.raises(RequestError):
        RecordedCluster(SPEC, log.append).commit(Bind("a", Placement("NODE", [])))  # type: ignore[arg-type]
    assert len(log) == 2
    assert replay(log, Cluster).groups() == ()


def test_call_not_refused_any_more_is_reported() -> None:
    class Careless(Cluster):
        def schedule(self, request: Request, *_: object, **__: object) -> Decision:
            return super().schedule(request)

    log: list[str] = []
    cluster = RecordedCluster(SPEC, log.append)
    with pytest.raises(RequestError):
        cluster.schedule(asks("a", priority="high"), now=float("nan"))  # type: ignore[arg-type]
    log[1] = log[1].replace('"priority":"high"', '"priority":0')
    with pytest.raises(ReplayError, match="schedule is not refused any more"):
        replay(log, Careless)


def changed(log: list[str], old: str, new: str) -> tuple[list[str], int]:
    """The log with the first ``old`` replaced, and the number of that line."""
    number = next(number for number, line in enumerate(log) if old in line)
    return [*log[:number], log[number].replace(old, new, 1), *log[number + 1 :]], number + 1


@pytest.mark.parametrize(
    ("old", "new", "what", "replayed"),
    [
        ('["top-node-0",[0]]', '["top-node-1",[0]]', "another decision", '["top-node-0",[0]]'),
        ('"have":0', '"have":1', "another decision", '"have":0'),
        ('{"is":"Released","group":"old"}', '{"is":"Released","group":"b"}', "release is refused", "'b': it waits"),
        ('"arguments":["nobody"]', '"arguments":["a"]', "release is not refused any more", '{"is":"Released"'),
        ("'nobody': no", "'somebody': no", "release is refused with another error", "'nobody': no"),
        ('"priority":"high"', '"priority":1', "schedule is not refused any more", '{"is":"Scheduled"'),
        ('"now":2.0', '"now":2', "not as hived writes it", '"now":2.0'),
        ('"call":"release"', '"call":"free"', "free is refused with another error", "no such call with 1 arguments"),
        ('"arguments":["nobody"]', '"arguments":[]', "release is refused with another", "no such call with 0"),
    ],
)
def test_difference_names_the_line_and_shows_both(old: str, new: str, what: str, replayed: str) -> None:
    log, number = changed(a_day(), old, new)
    with pytest.raises(ReplayError) as caught:
        replay(log, Cluster)
    error = caught.value
    assert error.number == number
    assert error.recorded == log[number - 1]
    assert replayed in error.replayed
    assert str(error).splitlines() == [
        f"event log, line {number}: {error.what}",
        f"  the log has {error.recorded}",
        f"  the replay has {error.replayed}",
    ]
    assert what in error.what


def test_cluster_that_decides_otherwise_is_found() -> None:
    with pytest.raises(ReplayError, match="event log, line 5: another decision"):
        replay(a_day(), lambda _: Cluster(LARGER))


LENGTH = len(a_day())


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ([], "the event log is empty"),
        (a_day()[1:], "event log, line 1: the first event opens the cluster; give the log from its"),
        (a_day() * 2, f"event log, line {LENGTH + 1}: the cluster is opened twice"),
        ([*a_day()[:-1], a_day()[-1][:-10]], f"event log, line {LENGTH}: not one line of JSON .* drop that line"),
    ],
    ids=["empty", "without its start", "two logs", "cut short"],
)
def test_log_that_is_not_whole(log: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replay(log, Cluster)


def test_bug_passes_through() -> None:
    class Broken(Cluster):
        def release(self, group: str) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(a_day(), Broken)


def test_excluded_nodes_are_in_the_log_if_any() -> None:
    log: list[str] = []
    chain = nodes_of_8(3)
    cluster = RecordedCluster(cluster_of(chain, vc("a", (chain, chain.node_level, 3))), log.append)
    cluster.commit(cluster.schedule(asks("anywhere"), excluded_nodes=[]))
    cluster.commit(cluster.schedule(asks("elsewhere"), excluded_nodes={"node-node-2", "node-node-0"}))
    with pytest.raises(RequestError):
        cluster.schedule(asks("wrong"), excluded_nodes="n0")
    assert ["excluded_nodes" in line for line in log[1::2]] == [False, True, True]
    assert '"excluded_nodes":["node-node-0","node-node-2"]' in log[3]
    again: list[str] = []
    assert replay(log, lambda spec: RecordedCluster(spec, again.append)).groups() == ("anywhere", "elsewhere")
    assert again == log
