"""A cluster spec that changes under running pods: a file, and a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.cluster import MERGE, Cluster, RefusedError
from tests.kubernetes.service import Service

from . import scenes

BIND_INFO = "hivedscheduler.microsoft.com/pod-bind-info"
CONFIG_MAPS = "/api/v1/namespaces/hived/configmaps"


@pytest.fixture(autouse=True)
def the_spec_is_as_before(service: Service, spec: scenes.Json, cluster: Cluster) -> Iterator[None]:
    """After each test."""
    yield
    cluster.empty()
    loaded = service.get("/v1/status")["spec"]["loaded_at"]
    if service.spec_file.read_bytes() != yaml.safe_dump(spec).encode():
        service.write_spec(spec)
        cluster.wait_until(lambda: service.get("/v1/status")["spec"]["loaded_at"] != loaded, "the old spec is back")


def reserved(service: Service) -> dict[str, int]:
    return {vc["name"]: vc["reserved"] for vc in service.get("/v1/status")["vcs"]}


def cell_types(cluster: Cluster, name: str) -> list[str]:
    """Of the reserved cells that a pod stands in, as its annotation says."""
    info = yaml.safe_load(cluster.pod(name)["metadata"]["annotations"][BIND_INFO])
    return [kind for group in info["affinityGroupBindInfo"] for pod in group["podPlacements"]
            for kind in pod["preassignedCellTypes"]]  # fmt: skip


def kinds(service: Service, cluster: Cluster) -> dict[str, str]:
    return {name.removeprefix(f"{cluster.namespace}/"): group["kind"] for name, group in service.groups().items()}


def test_a_tenant_that_loses_nodes_runs_on_and_one_that_gains_them_uses_them(
    cluster: Cluster, service: Service, nodes: list[str]
) -> None:
    for name in ("early", "late"):
        cluster.create_pod(scenes.pod(name, "a", 4))
        scenes.wait_for_places(cluster, name)
    uids = {name: cluster.pod(name)["metadata"]["uid"] for name in ("early", "late")}
    service.write_spec(scenes.spec(nodes, {"a": 1, "b": 3}))
    cluster.wait_until(lambda: reserved(service) == {"a": 4, "b": 12}, "the new spec is used")

    now = cluster.wait_until(
        lambda: found if sorted((found := kinds(service, cluster)).values()) == ["guaranteed", "opportunistic"] else {},
        "one of them has become opportunistic",
    )
    lost = next(name for name, kind in now.items() if kind == "opportunistic")
    kept = next(name for name, kind in now.items() if kind == "guaranteed")
    cluster.wait_until(lambda: cell_types(cluster, lost) == [""] * 4, "its annotation says so")
    assert cell_types(cluster, kept) == ["NODE"] * 4
    assert {name: cluster.pod(name)["metadata"]["uid"] for name in uids} == uids

    for number in range(3):
        cluster.create_pod(scenes.pod(f"new-{number}", "b", 4))
    scenes.wait_for_places(cluster, "new-0", "new-1", "new-2")
    cluster.wait_until(lambda: lost not in cluster.pods(), "b's third node is that of the opportunistic one")
    assert kept in cluster.placed()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("physicalCluster:\n  cellTypos: {}\n", [":2", "cellTypos", "cellTypes"]),
        (yaml.safe_dump(scenes.spec(["n0", "n1", "n2", "n3"], {"a": 3, "b": 2})), ["5", "4"]),
        ("", ["empty"]),
    ],
    ids=["unknown key", "more than there is", "empty"],
)
def test_a_spec_that_cannot_be_is_refused_and_the_old_one_stays(
    cluster: Cluster, service: Service, text: str, words: list[str]
) -> None:
    cluster.create_pod(scenes.pod("first", "a", 4))
    scenes.wait_for_places(cluster, "first")
    refusals = service.metric('hived_spec_reloads_total{result="refused"}')
    service.expected.add("the new spec is refused")
    service.write_spec(text)
    problem = cluster.wait_until(lambda: service.get("/v1/status")["spec"]["problem"], "the status says why")
    assert all(word in problem for word in words), problem
    assert service.metric('hived_spec_reloads_total{result="refused"}') == refusals + 1
    logged = [json.loads(line)["message"] for line in service.log().splitlines() if "is refused" in line]
    assert any(problem in message for message in logged)

    assert reserved(service) == {"a": 8, "b": 8}
    cluster.create_pod(scenes.pod("second", "a", 4))
    scenes.wait_for_places(cluster, "second")
    service.write_spec(scenes.spec(["n0", "n1", "n2", "n3"], {"a": 3, "b": 1}))
    cluster.wait_until(lambda: not service.get("/v1/status")["spec"]["problem"], "a good one mends it")
    assert reserved(service) == {"a": 12, "b": 4}


def test_a_config_map_is_followed_with_no_more_than_the_granted_rights(
    cluster: Cluster, ground: Cluster, tmp_path: Path, nodes: list[str], spec: scenes.Json
) -> None:
    def write(new: scenes.Json | str) -> None:
        data = {"spec.yaml": new if isinstance(new, str) else yaml.safe_dump(new)}
        try:
            cluster.api("PATCH", f"{CONFIG_MAPS}/hived-spec", {"data": data}, MERGE)
        except RefusedError as error:
            if error.status != 404:
                raise
            cluster.api("POST", CONFIG_MAPS, {"metadata": {"name": "hived-spec"}, "data": data})

    write(spec)
    service = Service(cluster.plane, tmp_path, {})
    try:
        service.start("--spec-configmap", "hived/hived-spec")
        assert service.get("/v1/status")["spec"]["source"] == "configmap/hived/hived-spec"
        write(scenes.spec(nodes, {"a": 1, "b": 3}))
        cluster.wait_until(lambda: reserved(service) == {"a": 4, "b": 12}, "the new one is used")
        service.expected.add("the new spec is refused")
        write("virtualClusters: 3\n")
        problem = cluster.wait_until(lambda: service.get("/v1/status")["spec"]["problem"], "the status says why")
        assert "configmap/hived/hived-spec" in problem
        assert "virtualClusters" in problem
        assert service.metric('hived_spec_reloads_total{result="refused"}') == 1
        assert reserved(service) == {"a": 4, "b": 12}
        write(spec)
        cluster.wait_until(lambda: reserved(service) == {"a": 8, "b": 8}, "a good one mends it")
        assert service.get("/v1/status")["spec"]["problem"] == ""

        cluster.api("PATCH", f"{CONFIG_MAPS}/hived-spec", {"data": {"spec.yaml": None, "one": "1", "two": "2"}}, MERGE)
        problem = cluster.wait_until(lambda: service.get("/v1/status")["spec"]["problem"], "the status says why")
        assert "no key spec.yaml (it has one, two)" in problem
        assert reserved(service) == {"a": 8, "b": 8}
        cluster.api("DELETE", f"{CONFIG_MAPS}/hived-spec")
        cluster.wait_until(
            lambda: "it is not there any more; kubectl" in service.get("/v1/status")["spec"]["problem"],
            "the status says that the spec is gone",
        )
        assert reserved(service) == {"a": 8, "b": 8}
        write(scenes.spec(nodes, {"a": 3, "b": 1}))
        cluster.wait_until(lambda: reserved(service) == {"a": 12, "b": 4}, "it is deleted and made anew")
        assert service.bugs() == []
    finally:
        service.close()


def test_a_config_map_that_is_not_there_ends_the_service_with_its_name(ground: Cluster, tmp_path: Path) -> None:
    ground.delete(f"{CONFIG_MAPS}/hived-spec")
    service = Service(ground.plane, tmp_path, {})
    try:
        service.start("--spec-configmap", "hived/hived-spec", ready=False)
        assert service.process is not None
        assert service.process.wait(30) != 0
        assert (
            "configmap/hived/hived-spec: there is none; kubectl -n hived create configmap hived-spec" in service.log()
        )
    finally:
        service.close()
