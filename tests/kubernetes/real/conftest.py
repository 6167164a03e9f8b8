"""What needs a control plane (it runs in one worker: see ``tests/conftest.py``), and the service on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.control_plane.cluster import Cluster, Json
from tools.control_plane.plane import ControlPlane
from tools.control_plane.service import Service, grant
from tools.control_plane.workloads import GUARANTEED, OPPORTUNISTIC, make_spec


@pytest.fixture(scope="module")
def nodes() -> list[str]:
    """Names of the nodes that Kubernetes has."""
    return ["n0", "n1", "n2", "n3"]


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> Json:
    """Two tenants with two nodes of four GPUs each; a file of tests may have another."""
    return make_spec(nodes, {"a": 2, "b": 2})


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    """Of the service; a file of tests may have others."""
    return ()


@pytest.fixture(scope="module")
def ground(control_plane: ControlPlane, nodes: list[str]) -> Iterator[Cluster]:
    """Nodes with kubelets, priority classes, and the rights of the service, for all tests of a file."""
    ground = Cluster(control_plane, "default")
    grant(ground.api)
    ground.create_priority_class(GUARANTEED, 1000)
    ground.create_priority_class(OPPORTUNISTIC, 1)
    ground.create_nodes(nodes)
    ground.start_kubelets()
    yield ground
    ground.close()


@pytest.fixture(scope="module")
def shared_service(
    ground: Cluster, spec: Json, options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """The service and its kube-scheduler, started once for all tests of a file."""
    service = Service(ground.plane, tmp_path_factory.mktemp("service"), spec, warm=True)
    try:
        service.start(*options)
        ground.plane.start_scheduler(service.extender)
        yield service
    finally:
        ground.plane.stop_scheduler()
        service.close()


@pytest.fixture
def service(shared_service: Service, cluster: Cluster) -> Iterator[Service]:
    """The same, with nothing left of what tests before did, and nothing wrong in what it says of this one."""
    before = len(shared_service.bugs())
    yield shared_service
    cluster.empty()
    if shared_service.process is not None and shared_service.is_ready():
        cluster.wait_until(lambda: shared_service.get("/v1/jobs")["total"] == 0, "the groups of the test are gone")
    assert shared_service.bugs()[before:] == []
