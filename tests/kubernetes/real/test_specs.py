"""A cluster spec that changes under running pods: a file, and a ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.control_plane.cluster import MERGE, Cluster, Json, RefusedError
from tools.control_plane.service import Service
from tools.control_plane.workloads import PREFIX, make_pod, make_spec

CONFIG_MAPS = "/api/v1/namespaces/hived/configmaps"
REFUSED = 'hived_spec_reloads_total{result="refused"}'


@pytest.fixture(autouse=True)
def the_spec_is_as_before(service: Service, spec: Json, cluster: Cluster) -> Iterator[None]:
    """After each test."""
    yield
    cluster.empty()
    loaded = service.get("/v1/spec")["loaded_at"]
    if service.spec_file.read_bytes() != yaml.safe_dump(spec).encode():
        service.write_spec(spec)
        cluster.wait_until(lambda: service.get("/v1/spec")["loaded_at"] != loaded, "the old spec is back")


def reserved(service: Service) -> dict[str, int]:
    return {vc["name"]: vc["reserved"] for vc in service.get("/v1/vcs")}


def wait_reserved(cluster: Cluster, service: Service, **gpus: int) -> None:
    """Until this spec is used."""
    cluster.wait_until(lambda: reserved(service) == gpus, f"the spec is used that reserves {gpus}")
    assert service.get("/v1/spec")["problem"] == ""


def wait_problem(cluster: Cluster, service: Service, words: str) -> None:
    """Until the status says this of the spec."""
    cluster.wait_until(lambda: words in service.get("/v1/spec")["problem"], f"the status says {words}")


def cell_types(cluster: Cluster, name: str) -> list[str]:
    """Of the reserved cells that a pod is in, as its annotation says."""
    info = yaml.safe_load(cluster.pod(name)["metadata"]["annotations"][f"{PREFIX}/pod-bind-info"])
    placements = [pod for group in info["affinityGroupBindInfo"] for pod in group["podPlacements"]]
    return [kind for pod in placements for kind in pod["preassignedCellTypes"]]


def test_nodes_change_their_tenant(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """Pods of the one that loses a node run on, and the one that gains it uses it."""
    for name in ("early", "late"):
        cluster.create_pod(make_pod(name, "a", 4))
        cluster.wait_placed(name)
    uids = {name: cluster.pod(name)["metadata"]["uid"] for name in ("early", "late")}
    service.write_spec(make_spec(nodes, {"a": 1, "b": 3}))
    wait_reserved(cluster, service, a=4, b=12)

    def kinds() -> dict[str, str]:
        return {group["kind"]: name.partition("/")[2] for name, group in service.groups().items()}

    now = cluster.wait_until(
        lambda: found if len(found := kinds()) == 2 else {}, "one is guaranteed, and the other opportunistic"
    )
    kept, lost = now["guaranteed"], now["opportunistic"]
    cluster.wait_until(lambda: cell_types(cluster, lost) == [""] * 4, "its annotation says so")
    assert cell_types(cluster, kept) == ["NODE"] * 4
    assert {name: cluster.pod(name)["metadata"]["uid"] for name in uids} == uids

    cluster.create_pods(*(make_pod(f"new-{number}", "b", 4) for number in range(3)))
    cluster.wait_placed("new-0", "new-1", "new-2")
    cluster.wait_gone(lost)
    assert kept in cluster.placed()


def test_refused_file(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """The spec before it stays in force; the status, the log and a metric say why."""

    def write_wrong(text: str, *words: str) -> None:
        refused, before = service.metric(REFUSED) + 1, service.get("/v1/spec")["text"]
        service.write_spec(text)
        cluster.wait_until(lambda: service.metric(REFUSED) == refused, "it is refused")
        problem = service.get("/v1/spec")["problem"]
        assert service.get("/v1/spec")["text"] == before
        assert all(word in problem for word in words), problem
        logged = [json.loads(line)["message"] for line in service.log().splitlines() if "is refused" in line]
        assert problem in logged[-1]
        assert reserved(service) == {"a": 8, "b": 8}

    cluster.create_pod(make_pod("first", "a", 4))
    cluster.wait_placed("first")
    service.expected.add("the new spec is refused")
    write_wrong("physicalCluster:\n  cellTypos: {}\n", ":2", "cellTypos", "cellTypes")
    write_wrong(yaml.safe_dump(make_spec(nodes, {"a": 3, "b": 2})), "5", "4")
    write_wrong("", "empty")
    cluster.create_pod(make_pod("second", "a", 4))
    cluster.wait_placed("second")
    service.write_spec(make_spec(nodes, {"a": 3, "b": 1}))
    wait_reserved(cluster, service, a=12, b=4)


def test_config_map(cluster: Cluster, tmp_path: Path, nodes: list[str]) -> None:
    """It is followed with no more than the granted rights, whatever is written there, and while it is away."""
    path = f"{CONFIG_MAPS}/hived-spec"

    def write(new: Json | str) -> None:
        data = {"spec.yaml": new if isinstance(new, str) else yaml.safe_dump(new)}
        try:
            cluster.api("PATCH", path, {"data": data}, MERGE)
        except RefusedError as error:
            if error.status != 404:
                raise
            cluster.api("POST", CONFIG_MAPS, {"metadata": {"name": "hived-spec"}, "data": data})

    cluster.delete(path)
    service = Service(cluster.plane, tmp_path, {}, warm=True)
    try:
        service.start("--spec-configmap", "hived/hived-spec", ready=False)
        assert service.process is not None
        assert service.process.wait(120) != 0
        lacks = "configmap/hived/hived-spec: there is none; kubectl -n hived create configmap hived-spec"
        assert lacks in service.log()
        service.expected |= {lacks, "the new spec is refused"}
        service.kill()

        write(make_spec(nodes, {"a": 2, "b": 2}))
        service.start()
        assert service.get("/v1/spec")["source"] == "configmap/hived/hived-spec"
        write(make_spec(nodes, {"a": 1, "b": 3}))
        wait_reserved(cluster, service, a=4, b=12)
        write("virtualClusters: 3\n")
        wait_problem(cluster, service, "virtualClusters")
        assert (service.metric(REFUSED), reserved(service)) == (1, {"a": 4, "b": 12})
        write(make_spec(nodes, {"a": 2, "b": 2}))
        wait_reserved(cluster, service, a=8, b=8)
        cluster.api("PATCH", path, {"data": {"spec.yaml": None, "one": "1", "two": "2"}}, MERGE)
        wait_problem(cluster, service, "no key spec.yaml (it has one, two)")
        assert reserved(service) == {"a": 8, "b": 8}
        cluster.api("DELETE", path)
        wait_problem(cluster, service, "it is not there any more; kubectl")
        assert reserved(service) == {"a": 8, "b": 8}
        write(make_spec(nodes, {"a": 3, "b": 1}))
        wait_reserved(cluster, service, a=12, b=4)
        assert service.bugs() == []
    finally:
        service.close()
        cluster.delete(path)
