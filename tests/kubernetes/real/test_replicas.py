"""Two replicas of the service on one Lease, and a listener that only kube-scheduler may ask."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.manifests import PLAIN, by_key, in_folder, pod_templates
from tests.kubernetes.service import Service

from . import scenes

ELECTION = ("--leader-elect", "--lease", "hived/hived")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/hived/leases/hived"
ROLE = "hived.io/role"


class Replicas(NamedTuple):
    """Two of them; ``first`` leads."""

    first: Service
    second: Service

    def start(self, number: int, ready: bool = True) -> None:
        identity = ("one", "two")[number]
        own = {"POD_NAME": f"hived-{identity}", "POD_NAMESPACE": "hived"}
        self[number].start(*ELECTION, "--identity", identity, ready=ready, environment=own)


@pytest.fixture
def replicas(ground: Cluster, cluster: Cluster, tmp_path: Path, spec: scenes.Json) -> Iterator[Replicas]:
    """Both are ready, each with a pod of its own, and kube-scheduler asks the first."""
    cluster.delete(LEASE)
    cluster.api("DELETE", "/api/v1/namespaces/hived/pods", gracePeriodSeconds="0")
    (template,) = pod_templates(by_key(in_folder(PLAIN))["StatefulSet", "hived", "hived"])
    for identity in ("one", "two"):
        metadata = {**template["metadata"], "name": f"hived-{identity}", "namespace": "hived"}
        cluster.create_pod({"metadata": metadata, "spec": {**template["spec"], "schedulerName": "nobody"}})
    replicas = Replicas(
        Service(ground.plane, tmp_path, spec, "hived"), Service(ground.plane, tmp_path, spec, "standby")
    )
    try:
        replicas.start(0)
        replicas.start(1)
        ground.plane.start_scheduler(replicas.first.extender)
        yield replicas
        assert replicas.first.bugs() + replicas.second.bugs() == []
    finally:
        ground.plane.stop_scheduler()
        for service in replicas:
            service.close()
        cluster.api("DELETE", "/api/v1/namespaces/hived/pods", gracePeriodSeconds="0")


def roles(cluster: Cluster) -> dict[str, str | None]:
    return {name: pod["metadata"]["labels"].get(ROLE) for name, pod in cluster.pods("hived").items()}


def told(service: Service) -> str:
    """Of its readiness."""
    answer = service.http.get("/readyz")
    assert answer.status_code == 200
    return answer.text


def standing(service: Service) -> scenes.Json:
    """The groups, and where they are."""
    return {name: (group["state"], group["kind"], sorted((pod["name"], pod["node"], pod["devices"])
            for pod in group["pods"])) for name, group in service.groups().items()}  # fmt: skip


def test_one_decides_and_when_it_is_killed_the_other_goes_on_from_there(cluster: Cluster, replicas: Replicas) -> None:
    first, second = replicas
    assert "one decides" in told(first)
    assert "stands by; one leads" in told(second)
    assert (first.metric("hived_leader"), second.metric("hived_leader")) == (1, 0)
    status = second.get("/v1/status")
    assert (status["leader"], status["ready"], status["holder"]) == (False, True, "one")
    cluster.wait_until(
        lambda: roles(cluster) == {"hived-one": "leader", "hived-two": "standby"}, "the pods say who leads"
    )

    for pod in [*scenes.gang("train", "a", 2, 2), scenes.pod("lent", "b", 4, opportunistic=True)]:
        cluster.create_pod(pod)
    scenes.wait_for_places(cluster, "train-0", "train-1", "lent")
    cluster.create_pod(scenes.pod("late", "a", 4, group="late", group_size="2"))
    scenes.wait_for_words(cluster, "late", "1 of its 2 pods exist")

    question = {"Pod": cluster.pod("late"), "NodeNames": ["n0"]}
    for verb, body in (
        ("filter", question),
        ("bind", {"PodName": "late", "PodNamespace": "x", "PodUID": "x", "Node": "n0"}),
    ):
        assert "stands by; one leads" in second.http.post(f"/v1/extender/{verb}", json=body).json()["Error"]
    assert second.http.post("/v1/extender/preempt", json={"Pod": cluster.pod("late")}).status_code == 503
    answer = second.http.get("/v1/groups")
    assert (answer.status_code, "one leads" in answer.json()["error"]["message"]) == (503, True)

    before = standing(first)
    first.kill()
    cluster.wait_until(lambda: second.metric("hived_leader") == 1 and second.is_ready(), "the other leads")
    assert standing(second) == before
    cluster.plane.start_scheduler(second.extender)
    cluster.create_pod(scenes.pod("own", "b", 4))
    scenes.wait_for_places(cluster, "own")
    scenes.nobody_shares(cluster.pods())
    assert cluster.pods("hived")["hived-two"]["metadata"]["labels"][ROLE] == "leader"

    replicas.start(0)
    assert "stands by; two leads" in told(first)
    cluster.wait_until(
        lambda: roles(cluster) == {"hived-one": "standby", "hived-two": "leader"}, "the pods say who leads"
    )


def test_a_leader_that_is_stopped_hands_over_before_it_ends(cluster: Cluster, replicas: Replicas) -> None:
    first, second = replicas
    cluster.create_pod(scenes.pod("first", "a", 4))
    scenes.wait_for_places(cluster, "first")
    before = standing(first)
    assert first.stop() == 0
    lease = cluster.api("GET", LEASE)["spec"]
    assert lease["holderIdentity"] in ("", "two"), "nobody has to wait until it has run out"
    cluster.wait_until(lambda: second.metric("hived_leader") == 1 and second.is_ready(), "the other leads")
    assert standing(second) == before


# -- TLS --------------------------------------------------------------------------------------------------------------


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _authority(folder: Path, name: str) -> None:
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-keyout", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip


def _certificate(folder: Path, authority: str, name: str) -> None:
    """For the server on loopback, or for a client."""
    (folder / "more").write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
             "-out", f"{name}.csr")  # fmt: skip
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key",
             "-CAcreateserial", "-days", "2", "-extfile", "more", "-out", f"{name}.crt")  # fmt: skip


def test_over_tls_only_clients_with_a_certificate_of_the_authority_may_ask(
    cluster: Cluster, ground: Cluster, tmp_path: Path, spec: scenes.Json
) -> None:
    _authority(tmp_path, "authority")
    _authority(tmp_path, "stranger")
    for authority, name in (("authority", "server"), ("authority", "kube-scheduler"), ("stranger", "other")):
        _certificate(tmp_path, authority, name)
    paths = {name: str(tmp_path / name) for name in (
        "authority.crt", "server.crt", "server.key", "kube-scheduler.crt", "kube-scheduler.key", "other.crt",
        "other.key")}  # fmt: skip
    service = Service(ground.plane, tmp_path, spec, authority=tmp_path / "authority.crt")
    try:
        service.start("--tls-cert", paths["server.crt"], "--tls-key", paths["server.key"],
                      "--tls-client-ca", paths["authority.crt"])  # fmt: skip
        tls = {"caFile": paths["authority.crt"], "certFile": paths["kube-scheduler.crt"],
               "keyFile": paths["kube-scheduler.key"]}  # fmt: skip
        ground.plane.start_scheduler(service.extender, extender={"enableHTTPS": True, "tlsConfig": tls})
        for pod in scenes.gang("train", "a", 2, 4):
            cluster.create_pod(pod)
        scenes.wait_for_places(cluster, "train-0", "train-1")

        question = {"Pod": cluster.pod("train-0"), "NodeNames": ["n0"]}
        refused = service.http.post("/v1/extender/filter", json=question).json()["Error"]
        assert "has to show a client certificate" in refused
        preempt = service.http.post("/v1/extender/preempt", json={"Pod": question["Pod"]})
        assert preempt.status_code == 403
        assert service.http.get("/healthz").status_code == 200, "probes have no certificate"

        trust = ssl.create_default_context(cafile=paths["authority.crt"])
        trust.load_cert_chain(paths["other.crt"], paths["other.key"])
        with httpx.Client(verify=trust, trust_env=False) as stranger, pytest.raises(httpx.TransportError):
            stranger.get(f"{service.url}/healthz")
        with httpx.Client(trust_env=False) as plain, pytest.raises(httpx.TransportError):
            plain.get(f"http://127.0.0.1:{service.port}/healthz")
        assert service.metric("hived_requests_total") > 0

        ground.plane.start_scheduler(service.extender, extender={
            "enableHTTPS": True, "tlsConfig": {"caFile": paths["authority.crt"]}})  # fmt: skip
        cluster.create_pod(scenes.pod("later", "b", 4))
        cluster.wait_until(
            lambda: "client certificate" in scenes.said(cluster, "later", "FailedScheduling"),
            "its Event says what kube-scheduler lacks",
        )
        assert "later" not in cluster.placed()
        assert service.bugs() == []
    finally:
        ground.plane.stop_scheduler()
        service.close()
