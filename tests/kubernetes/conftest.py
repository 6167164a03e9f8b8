"""A real control plane per worker, and in it a namespace per test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from tools.control_plane import binaries
from tools.control_plane.cluster import Api, Cluster, wait_until
from tools.control_plane.plane import ControlPlane

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and an API server; a test starts and stops other programs itself."""
    try:
        programs = binaries.find()
    except binaries.NoBinariesError as error:
        pytest.fail(str(error), pytrace=False)
    plane = ControlPlane(programs).start()
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def controller_manager(control_plane: ControlPlane) -> Iterator[None]:
    """The controller manager: Jobs get pods, and orphaned pods are collected."""
    control_plane.start_controller_manager()
    yield
    control_plane.stop_controller_manager()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, control_plane: ControlPlane) -> str:
    """A new namespace, named after the test. It stays, as no controller runs that could delete it; its pods do not."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-") + f"-{next(_numbers)}"
    api = Api(control_plane.kubeconfig())
    api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    wait_until(
        lambda: api("GET", f"/api/v1/namespaces/{name}")["status"]["phase"] == "Active", "the namespace is there"
    )
    api.close()
    return name


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Iterator[Cluster]:
    """The test's operations on the cluster; its nodes and pods are deleted afterwards."""
    cluster = Cluster(control_plane, namespace)
    yield cluster
    cluster.close()
