"""Accounts in ConfigMaps of a real control plane, with the rights of deploy/, by the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tools.control_plane.cluster import Cluster
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_pod

from hived.engines.kubernetes.account_pages import head_of
from hived.engines.kubernetes.stored_accounts import KEY

RECORD = "/api/v1/namespaces/hived/configmaps/hived-accounts"


@pytest.fixture(scope="module")
def options(ground: Cluster) -> Iterator[tuple[str, ...]]:
    """They are kept in ConfigMaps that the service makes."""
    yield ("--accounts-configmap", "hived/hived-accounts")
    ground.delete(RECORD)


def usage(service: Service) -> dict[str, Any]:
    """By user: the only row of it."""
    told = service.cli("usage", "--by", "user", "--since", "1h", "-o", "json")
    assert told.returncode == 0, told.stderr
    return {row["user"]: row for row in json.loads(told.stdout)}


def test_accounts_through_a_kill(service: Service, cluster: Cluster) -> None:
    """Who runs on is counted through it; who has ended before stays counted, and the API server has it."""
    began, user = time.time(), f"{cluster.namespace}/default"
    cluster.create_pods(make_pod("one", "a", 4), make_pod("two", "a", 4))
    cluster.wait_placed("one", "two")
    placed = time.time()
    cluster.wait_until(lambda: user in usage(service), "it is in the accounts")
    cluster.delete_pod("two")
    cluster.wait_until(lambda: usage(service)[user]["guaranteed"] * 3600 > 8 * 2, "two seconds of both")
    cluster.wait_gone("two")
    gone = time.time()
    cluster.wait_until(lambda: head_of(cluster.api("GET", RECORD)["binaryData"][KEY]).as_of > gone + 1, "it is written")
    service.restart()
    cluster.wait_until(lambda: usage(service)[user]["jobs"] == 2, "the next one knows of both")
    now = time.time()
    seconds = usage(service)[user]["guaranteed"] * 3600
    assert 4 * (now - placed) <= seconds <= 8 * (now + 5 - began)
    assert service.cli("usage", "--since", "10d").stderr.count("accounts begin at") == 1
