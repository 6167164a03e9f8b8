"""Virtual clusters that trade cells, on a real control plane, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, RefusedError
from tests.kubernetes.service import Service

from . import scenes

CONFIG_MAPS = "/api/v1/namespaces/hived/configmaps"
KEEPS = ("--exchange-configmap", "hived/hived-exchange")


@pytest.fixture
def trading(service: Service, cluster: Cluster) -> Iterator[Service]:
    """The service, with the ConfigMap of deploy/; after the test without."""
    cluster.api("POST", CONFIG_MAPS, {"metadata": {"name": "hived-exchange"}})
    service.stop()
    service.start(*KEEPS)
    try:
        yield service
    finally:
        cluster.empty()
        service.stop()
        cluster.delete(f"{CONFIG_MAPS}/hived-exchange")
        service.start()


def kinds(service: Service) -> dict[str, str]:
    return {name.partition("/")[2]: group["kind"] for name, group in service.groups().items()}


def test_cells_of_another_are_guaranteed_for_a_while_through_a_kill(trading: Service, cluster: Cluster) -> None:
    told = trading.cli("offer", "NODE=1", "--vc", "a", "--for", "1h")
    assert (told.returncode, "it waits for a request" in told.stdout) == (0, True), told.stderr
    told = trading.cli("request", "NODE", "--vc", "b", "--for", "25s")
    assert "trade 1: a gives b 1 x NODE until" in told.stdout, told.stderr
    for number in range(3):
        cluster.create_pod(scenes.pod(f"b{number}", "b", 4))
    scenes.wait_for_places(cluster, "b0", "b1", "b2")
    cluster.wait_until(lambda: list(kinds(trading).values()) == ["guaranteed"] * 3, "all three are guaranteed")
    assert "a has given 1 x NODE to VC b" in trading.cli("explain", f"{cluster.namespace}/b2").stdout

    trading.kill()
    trading.start(*KEEPS)
    market = json.loads(trading.cli("trades", "-o", "json").stdout)
    assert [(trade["giver"], trade["taker"], trade["on"]) for trade in market["trades"]] == [("a", "b", True)]
    assert [offer["vc"] for offer in market["offers"]] == []
    assert sorted(kinds(trading).values()) == ["guaranteed"] * 3

    for number in range(2):
        cluster.create_pod(scenes.pod(f"a{number}", "a", 4))
    # at the end the cells are a's again: one of b's pods is on a loan, and goes for a's second pod
    cluster.wait_until(lambda: len(cluster.pods()) == 4, "one of b's pods has gone", 90)
    placed = scenes.wait_for_places(cluster, "a0", "a1")
    assert len(placed) == 4
    assert json.loads(trading.cli("trades", "-o", "json").stdout)["trades"] == []


def test_what_cannot_be_traded_is_refused_and_nothing_is_written(trading: Service, cluster: Cluster) -> None:
    path = f"{CONFIG_MAPS}/hived-exchange"
    before = cluster.api("GET", path).get("data")
    for arguments, code, says in (
        (("offer", "NODE=3", "--vc", "a", "--for", "1h"), 2, "a has 2 x NODE in that time, and offers 3"),
        (("offer", "NODE", "--vc", "nobody", "--for", "1h"), 2, "no such virtual cluster; there is a, b"),
        (("request", "NODE=3", "--vc", "a", "--for", "1h"), 2, "no other tenant has 3 x NODE"),
        (("withdraw", "7", "--vc", "a"), 4, "no offer or request 7 on the board"),
    ):
        told = trading.cli(*arguments)
        assert (told.returncode, says in told.stderr) == (code, True), told.stderr
    assert cluster.api("GET", path).get("data") == before
    told = trading.cli("offer", "NODE", "--vc", "a", "--for", "1h", token="another-token-0123456789")
    assert told.returncode == 77


def test_without_a_config_map_nothing_is_traded(service: Service, cluster: Cluster) -> None:
    told = service.cli("offer", "NODE", "--vc", "a", "--for", "1h")
    assert (told.returncode, "--exchange-configmap NS/NAME" in told.stderr) == (77, True)
    with pytest.raises(RefusedError):
        cluster.api("GET", f"{CONFIG_MAPS}/hived-exchange")
