"""Two replicas of the service on one Lease, and a listener that only kube-scheduler may ask."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tools.control_plane.cluster import Cluster, Json
from tools.control_plane.deployed import find
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_gang, make_pod

from ..witness import nobody_shares, snapshot

LEASE = "/apis/coordination.k8s.io/v1/namespaces/hived/leases/hived"
PODS = "/api/v1/namespaces/hived/pods"


class Replicas(NamedTuple):
    """Two of them; ``one`` leads."""

    one: Service
    two: Service

    def start(self, name: str) -> None:
        """One of them, as its pod."""
        own = {"POD_NAME": f"hived-{name}", "POD_NAMESPACE": "hived"}
        options = ("--leader-elect", "--lease", "hived/hived", "--identity", name)
        getattr(self, name).start(*options, environment=own)


@pytest.fixture
def replicas(ground: Cluster, cluster: Cluster, tmp_path: Path, spec: Json) -> Iterator[Replicas]:
    """Both are ready, each with a pod of its own, and kube-scheduler asks the first."""
    cluster.delete(LEASE)
    template = find("StatefulSet", "hived")["spec"]["template"]
    for name in Replicas._fields:
        metadata = {**template["metadata"], "name": f"hived-{name}", "namespace": "hived"}
        cluster.create_pod({"metadata": metadata, "spec": {**template["spec"], "schedulerName": "nobody"}})
    replicas = Replicas(
        Service(ground.plane, tmp_path, spec, "hived"), Service(ground.plane, tmp_path, spec, "standby")
    )
    try:
        replicas.start("one")
        replicas.start("two")
        ground.plane.start_scheduler(replicas.one.extender)
        yield replicas
        assert replicas.one.bugs() + replicas.two.bugs() == []
    finally:
        ground.plane.stop_scheduler()
        for service in replicas:
            service.close()
        cluster.api("DELETE", PODS, gracePeriodSeconds="0")


def wait_for_roles(cluster: Cluster, leader: str, standby: str) -> None:
    """Until the pods say who leads."""

    def roles() -> dict[str, str | None]:
        return {name: pod["metadata"]["labels"].get("hived.io/role") for name, pod in cluster.pods("hived").items()}

    wanted = {f"hived-{leader}": "leader", f"hived-{standby}": "standby"}
    cluster.wait_until(lambda: roles() == wanted, "the pods say who leads")


def wait_leading(cluster: Cluster, service: Service) -> None:
    cluster.wait_until(lambda: service.metric("hived_leader") == 1 and service.is_ready(), "the other one leads")


def test_leader_is_killed_and_stopped(cluster: Cluster, replicas: Replicas) -> None:
    """The other one goes on from there: after a kill once the Lease has run out, after a stop at once."""
    one, two = replicas
    assert "one decides" in one.http.get("/readyz").text
    assert "stands by; one leads" in two.http.get("/readyz").text
    assert (one.metric("hived_leader"), two.metric("hived_leader")) == (1, 0)
    engine = two.get("/v1/engine")
    assert (engine["ready"], engine["replica"]) == (True, {"identity": "two", "leader": False, "holder": "one"})
    wait_for_roles(cluster, "one", "two")

    cluster.create_pods(*make_gang("train", "a", 2, 2), make_pod("lent", "b", 4, opportunistic=True))
    cluster.wait_placed("train-0", "train-1", "lent")
    cluster.create_pod(make_pod("late", "a", 4, group="late", group_size="2"))
    cluster.wait_event("late", "1 of its 2 pods exist")

    question = {"Pod": cluster.pod("late"), "NodeNames": ["n0"]}
    binding = {"PodName": "late", "PodNamespace": "x", "PodUID": "x", "Node": "n0"}
    for verb, body in (("filter", question), ("bind", binding)):
        assert "stands by; one leads" in two.http.post(f"/v1/extender/{verb}", json=body).json()["Error"]
    assert two.http.post("/v1/extender/preempt", json={"Pod": question["Pod"]}).status_code == 503
    answer = two.http.get("/v1/jobs")
    assert (answer.status_code, "one leads" in answer.json()["error"]["message"]) == (503, True)

    before = snapshot(one)
    one.kill()
    wait_leading(cluster, two)
    assert snapshot(two) == before
    cluster.plane.start_scheduler(two.extender)
    cluster.create_pod(make_pod("own", "b", 4))
    cluster.wait_placed("own")
    nobody_shares(cluster.pods())

    replicas.start("one")
    assert "stands by; two leads" in one.http.get("/readyz").text
    wait_for_roles(cluster, "two", "one")
    before = snapshot(two)
    assert two.stop() == 0
    assert cluster.api("GET", LEASE)["spec"]["holderIdentity"] in ("", "one"), "nobody waits until it has run out"
    wait_leading(cluster, one)
    assert snapshot(one) == before


# -- TLS --------------------------------------------------------------------------------------------------------------


class Certificate(NamedTuple):
    """A certificate of an authority, a server on loopback and a client in one, and its key."""

    file: str
    key: str


def create_certificate(folder: Path, name: str) -> Certificate:
    """Signed by itself."""
    made = Certificate(str(folder / f"{name}.crt"), str(folder / f"{name}.key"))
    what = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made.key, "-out", made.file)
    subprocess.run(["openssl", "req", "-x509", *what, *names], check=True, capture_output=True)
    return made


def test_tls_with_client_certificates(cluster: Cluster, ground: Cluster, tmp_path: Path, spec: Json) -> None:
    """Only a client with a certificate of the authority may ask as kube-scheduler does."""
    own, other = (create_certificate(tmp_path, name) for name in ("own", "other"))
    service = Service(ground.plane, tmp_path, spec, authority=Path(own.file))
    try:
        service.start("--tls-cert", own.file, "--tls-key", own.key, "--tls-client-ca", own.file)
        tls = {"caFile": own.file, "certFile": own.file, "keyFile": own.key}
        ground.plane.start_scheduler(service.extender, extender={"enableHTTPS": True, "tlsConfig": tls})
        cluster.create_pods(*make_gang("train", "a", 2, 4))
        cluster.wait_placed("train-0", "train-1")
        assert service.metric("hived_requests_total") > 0

        question = {"Pod": cluster.pod("train-0"), "NodeNames": ["n0"]}
        refused = service.http.post("/v1/extender/filter", json=question).json()["Error"]
        assert "has to show a client certificate" in refused
        assert service.http.post("/v1/extender/preempt", json={"Pod": question["Pod"]}).status_code == 403
        assert service.http.get("/healthz").status_code == 200, "probes have no certificate"

        trust = ssl.create_default_context(cafile=own.file)
        trust.load_cert_chain(*other)
        with httpx.Client(verify=trust, trust_env=False) as stranger, pytest.raises(httpx.TransportError):
            stranger.get(f"{service.url}/healthz")
        with httpx.Client(trust_env=False) as plain, pytest.raises(httpx.TransportError):
            plain.get(f"http://127.0.0.1:{service.port}/healthz")

        no_certificate = {"enableHTTPS": True, "tlsConfig": {"caFile": own.file}}
        ground.plane.start_scheduler(service.extender, extender=no_certificate)
        cluster.create_pod(make_pod("later", "b", 4))
        cluster.wait_event("later", "client certificate", reason="FailedScheduling")
        assert "later" not in cluster.placed()
        assert service.bugs() == []
    finally:
        ground.plane.stop_scheduler()
        service.close()
