"""What users, operators and strangers get wrong: a reason where they look, and nothing lost by it."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes

SPEC_KEY = "hivedscheduler.microsoft.com/pod-scheduling-spec"
BIND_INFO = "hivedscheduler.microsoft.com/pod-bind-info"
ISOLATION = "hivedscheduler.microsoft.com/pod-leaf-cell-isolation"
VERBS = ("filter", "bind", "preempt")


def test_a_wrong_label_or_annotation_is_refused_in_an_event_of_the_pod(cluster: Cluster, service: Service) -> None:
    cases = {
        "no-size": (scenes.pod("no-size", "a", 1, group="g"), ["hived.io/group-size"]),
        "priority": (scenes.pod("priority", "a", 1, priority="high"), ["hived.io/priority", "high"]),
        "no-yaml": (scenes.upstream_pod("no-yaml", "virtualCluster: ["), [SPEC_KEY]),
    }
    no_tenant = scenes.pod("no-tenant", "a", 1)
    del no_tenant["metadata"]["labels"]
    cases["no-tenant"] = no_tenant, ["hived.io/vc", SPEC_KEY]
    for pod, _ in cases.values():
        cluster.create_pod(pod)
    for name, (_, words) in cases.items():
        scenes.wait_for_words(cluster, name, *words, reason="HivedRefused")
    assert cluster.placed() == {}
    assert service.metric("hived_refused_pods") == len(cases)
    told = service.get(f"/v1/explain/{cluster.namespace}/no-yaml")
    assert (told["reasons"][0]["kind"], SPEC_KEY in told["text"]) == ("misconfigured", True)
    for name in ("no-size", "priority"):  # a label that is mended is read again
        key, value = ("group-size", "1") if name == "no-size" else ("priority", "7")
        body = {"metadata": {"labels": {f"hived.io/{key}": value}}}
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}"
        cluster.api("PATCH", path, body, "application/merge-patch+json")
    assert set(scenes.wait_for_places(cluster, "no-size", "priority")) == {"no-size", "priority"}


def test_a_pod_that_names_another_scheduler_is_explained_by_its_name(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(waiting_elsewhere("lost"))
    cluster.wait_until(lambda: f"{cluster.namespace}/lost" in service.groups(), "it is known")
    told = service.get(f"/v1/explain/{cluster.namespace}/lost")["text"]
    assert "its scheduler, nobody, has not asked for it yet" in told


def test_a_pod_whose_job_cannot_be_read_gets_the_remedy(cluster: Cluster, service: Service) -> None:
    pod = scenes.pod("orphan", "a", 2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "no-such-uid", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    cluster.create_pod(pod)
    words = [f"Job {cluster.namespace}/gone", "NotFound", "hived.io/group-size"]
    scenes.wait_for_words(cluster, "orphan", *words, reason="HivedRefused")
    told = service.http.get(f"/v1/explain/{cluster.namespace}/orphan")
    assert told.status_code == 200, told.text
    assert all(word in told.json()["text"] for word in words)
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/orphan"
    body = {"metadata": {"labels": {"hived.io/group": "orphans", "hived.io/group-size": "1"}}}
    cluster.api("PATCH", path, body, "application/merge-patch+json")
    assert set(scenes.wait_for_places(cluster, "orphan")) == {"orphan"}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"Pod": 3}', b'{"Pod": {"metadata": []}}', b"\xff\xfe{}", b"[" * 100_000, b'"' * 9],
    ids=["nothing", "half", "a list", "null", "a number", "inner list", "no UTF-8", "deep", "quotes"],
)
def test_a_question_that_is_none_is_answered_where_kube_scheduler_reads(
    service: Service, verb: str, body: bytes
) -> None:
    before = service.metric(f'hived_requests_total{{result="malformed",verb="{verb}"}}')
    answer = service.http.post(f"/v1/extender/{verb}", content=body)
    if verb == "preempt":  # its answer has no place for an error
        assert answer.status_code == 400
        assert "no question of kube-scheduler's" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 200
        assert "no question of kube-scheduler's" in answer.json()["Error"]
    assert service.metric(f'hived_requests_total{{result="malformed",verb="{verb}"}}') == before + 1


@pytest.mark.parametrize("path", [*(f"/v1/extender/{verb}" for verb in VERBS), "/v1/plan", "/v1/drain"])
def test_enormous_bodies_are_refused_before_they_are_read(cluster: Cluster, service: Service, path: str) -> None:
    answer = service.http.post(path, content=b"{" + b" " * (5 * 1024 * 1024))
    assert answer.status_code == 413
    assert "4,194,304 bytes" in answer.json()["error"]["message"]
    assert service.is_ready()


# -- bound behind its back --------------------------------------------------------------------------------------------


def bind_by_hand(cluster: Cluster, name: str, node: str, annotations: dict[str, str]) -> None:
    body = {"metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": node}}
    cluster.api("POST", f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/binding", body)


def waiting_elsewhere(name: str) -> scenes.Json:
    """A pod that no kube-scheduler looks at."""
    pod = scenes.pod(name, "a", 4)
    pod["spec"]["schedulerName"] = "nobody"
    return pod


def test_of_two_pods_that_claim_one_place_the_first_keeps_it_and_the_other_gets_an_event(
    cluster: Cluster, service: Service
) -> None:
    cluster.create_pod(scenes.pod("honest", "a", 4))
    home = scenes.wait_for_places(cluster, "honest")["honest"]
    notes = cluster.pod("honest")["metadata"]["annotations"]
    stolen = {key: notes[key] for key in (BIND_INFO, ISOLATION)}
    cluster.create_pod(waiting_elsewhere("thief"))
    bind_by_hand(cluster, "thief", home, stolen)
    scenes.wait_for_words(cluster, "thief", f"{cluster.namespace}/honest", home, reason="HivedConflict")
    assert service.metric("hived_conflicts") == 1
    assert service.groups()[f"{cluster.namespace}/honest"]["state"] == "placed"

    service.kill()
    service.start()
    assert service.metric("hived_conflicts") == 1
    assert service.groups()[f"{cluster.namespace}/honest"]["state"] == "placed"
    told = service.get(f"/v1/explain/{cluster.namespace}/thief")["text"]
    assert f"{cluster.namespace}/honest" in told

    cluster.delete_pod("honest", force=True)
    cluster.create_pod(scenes.pod("next", "a", 4))
    scenes.wait_for_places(cluster, "next")
    assert cluster.placed()["next"] != home, "the thief is still there"
    cluster.delete_pod("thief", force=True)
    cluster.wait_until(lambda: service.metric("hived_conflicts") == 0, "nobody claims what is another's")


def test_a_question_about_a_pod_that_is_not_as_it_says_changes_nothing(cluster: Cluster, service: Service) -> None:
    plain = scenes.pod("plain", "a", 1)
    del plain["metadata"]["labels"], plain["spec"]["containers"][0]["resources"]
    del plain["spec"]["containers"][0]["env"]
    plain["spec"]["schedulerName"] = "nobody"
    made = cluster.create_pod(plain)
    forged = scenes.pod("plain", "a", 4, priority="1000")
    forged["metadata"] |= {key: made["metadata"][key] for key in ("namespace", "name", "uid")}
    nodes = list(service.get("/v1/dashboard/layout")["views"][0]["chains"][0]["nodes"])
    answer = service.http.post("/v1/extender/filter", json={"Pod": forged, "NodeNames": nodes}).json()
    assert "none of HiveD's" in answer["Error"]
    assert service.groups() == {}
    assert "plain" not in {event["involvedObject"]["name"] for event in cluster.events()}
