"""Virtual clusters that trade cells, on a real control plane, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tools.control_plane.cluster import Cluster
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_pod

RECORD = "/api/v1/namespaces/hived/configmaps/hived-exchange"


@pytest.fixture(scope="module")
def options(ground: Cluster) -> Iterator[tuple[str, ...]]:
    """Trades are kept in the ConfigMap of deploy/."""
    ground.api("POST", RECORD.rpartition("/")[0], {"metadata": {"name": "hived-exchange"}})
    yield ("--exchange-configmap", "hived/hived-exchange")
    ground.delete(RECORD)


def test_trade_through_a_kill(service: Service, cluster: Cluster) -> None:
    """Cells of another are guaranteed, with the rights of deploy/; the next process reads so in the ConfigMap."""

    def kinds() -> list[str | None]:
        return [group["kind"] for group in service.groups().values()]

    told = service.cli("trade", "offer", "NODE=1", "--vc", "a", "--for", "2h")
    assert (told.returncode, "it waits for a request" in told.stdout) == (0, True), told.stderr
    told = service.cli("trade", "request", "NODE", "--vc", "b", "--for", "1h")
    assert "trade 1: a gives b 1 x NODE until" in told.stdout, told.stderr
    cluster.create_pods(*(make_pod(f"b{number}", "b", 4) for number in range(3)))
    cluster.wait_placed("b0", "b1", "b2")
    cluster.wait_until(lambda: kinds() == ["guaranteed"] * 3, "all three are guaranteed")
    cluster.create_pods(*(make_pod(f"a{number}", "a", 4) for number in range(2)))
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "one of the giver's pods is placed")
    (waits,) = set(cluster.pods()) - set(cluster.placed())
    cluster.wait_event(waits, "a has given 1 x NODE to VC b")

    service.restart()
    market = json.loads(service.cli("trade", "ls", "-o", "json").stdout)
    assert [(trade["giver"], trade["taker"], trade["on"]) for trade in market["trades"]] == [("a", "b", True)]
    assert market["offers"] == []
    assert kinds().count("guaranteed") == 4
