"""What users, operators and strangers get wrong: a reason where they look, and nothing lost by it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster import Cluster, RefusedError
from tests.kubernetes.service import Service

from . import scenes

SPEC_KEY = "hivedscheduler.microsoft.com/pod-scheduling-spec"
BIND_INFO = "hivedscheduler.microsoft.com/pod-bind-info"
ISOLATION = "hivedscheduler.microsoft.com/pod-leaf-cell-isolation"
VERBS = ("filter", "bind", "preempt")


def group(*members: tuple[int, int], name: str = "team") -> scenes.Json:
    return {"name": name, "members": [{"podNumber": pods, "leafCellNumber": cells} for pods, cells in members]}


def said(**more: Any) -> str:
    text: str = yaml.safe_dump({"virtualCluster": "a", "leafCellNumber": 1, **more})
    return text


#: annotations that no pod can be scheduled by, and what its Event has to say
WRONG = {
    "no-yaml": ("virtualCluster: [", [SPEC_KEY]),
    "a-list": ("- 1", [SPEC_KEY, "virtualCluster"]),
    "empty": ("", [SPEC_KEY]),
    "aliases": ("a: &a [x]\nvirtualCluster: *a\n", [SPEC_KEY]),
    "no-tenant": (yaml.safe_dump({"leafCellNumber": 1}), ["virtualCluster", "names none"]),
    "a-word-of-gpus": (said(leafCellNumber="many"), ["leafCellNumber", "a number from 1", "many"]),
    "no-gpus": (said(leafCellNumber=0), ["leafCellNumber", "a number from 1", "0"]),
    "priority": (said(priority=5000), ["priority", "from -1 to 1,000", "5000"]),
    "lazy": (said(lazyPreemptionEnable="maybe"), ["lazyPreemptionEnable", "true or false", "maybe"]),
    "no-members": (said(affinityGroup={"name": "g"}), ["affinityGroup.members", "podNumber"]),
    "no-name": (said(affinityGroup={"members": [{"podNumber": 1, "leafCellNumber": 1}]}), ["affinityGroup.name"]),
    "another-size": (said(affinityGroup=group((1, 2))), ["leafCellNumber 1", "2"]),
    "too-many-pods": (said(affinityGroup=group((900, 1), (200, 1))), ["1,100 pods", "1,000"]),
    "too-long": (said(comment="x" * 40_000), ["characters", "8,192"]),
}
#: annotations that are understood, and ask for what there is not
IMPOSSIBLE = {
    "unknown-tenant": (said(virtualCluster="nobody"), ["nobody"]),
    "unknown-type": (said(leafCellType="H9000"), ["H9000"]),
    "unknown-pin": (said(pinnedCellId="nowhere"), ["nowhere"]),
    "more-than-a-node": (said(leafCellNumber=5), ["5", "4"]),
    "more-than-the-tenant": (said(leafCellNumber=4, affinityGroup=group((3, 4))), ["12", "8"]),
}


def test_an_annotation_that_is_wrong_is_refused_in_an_event_of_the_pod(cluster: Cluster, service: Service) -> None:
    for name, (annotation, _) in WRONG.items():
        cluster.create_pod(scenes.upstream_pod(name, annotation))
    for name, (_, words) in WRONG.items():
        scenes.wait_for_words(cluster, name, *words, reason="HivedRefused")
    cluster.create_pod(scenes.upstream_pod("right", said(leafCellNumber=4)))
    assert set(scenes.wait_for_places(cluster, "right")) == {"right"}
    assert service.metric("hived_refused_pods") == len(WRONG)
    for name, (_, words) in list(WRONG.items())[:4]:
        told = service.get(f"/v1/explain/{cluster.namespace}/{name}")
        assert told["reasons"][0]["kind"] == "misconfigured"
        assert all(word in told["text"] for word in words)


def test_an_annotation_that_asks_for_what_there_is_not_waits_and_says_so(cluster: Cluster, service: Service) -> None:
    for name, (annotation, _) in IMPOSSIBLE.items():
        cluster.create_pod(scenes.upstream_pod(name, annotation))
    for name, (_, words) in IMPOSSIBLE.items():
        scenes.wait_for_words(cluster, name, *words)
    cluster.create_pod(scenes.pod("right", "a", 4))
    assert set(scenes.wait_for_places(cluster, "right")) == {"right"}, "it is held back by none of them"


def test_labels_that_are_wrong_are_refused_in_an_event_of_the_pod(cluster: Cluster, service: Service) -> None:
    cases = {
        "no-size": (scenes.pod("no-size", "a", 1, group="g"), ["hived.io/group-size"]),
        "no-group": (scenes.pod("no-group", "a", 1, group_size="2"), ["hived.io/group"]),
        "size": (scenes.pod("size", "a", 1, group="g", group_size="0"), ["hived.io/group-size", "from 1", "0"]),
        "large": (scenes.pod("large", "a", 1, group="h", group_size="1001"), ["hived.io/group-size", "1,000", "1001"]),
        "priority": (scenes.pod("priority", "a", 1, priority="high"), ["hived.io/priority", "high"]),
        "lazy": (scenes.pod("lazy", "a", 1, lazy_preemption="yes"), ["hived.io/lazy-preemption", "true or false"]),
    }
    no_tenant = scenes.pod("no-tenant", "a", 1)
    del no_tenant["metadata"]["labels"]
    cases["no-tenant"] = no_tenant, ["hived.io/vc", SPEC_KEY]
    for pod, _ in cases.values():
        cluster.create_pod(pod)
    for name, (_, words) in cases.items():
        scenes.wait_for_words(cluster, name, *words, reason="HivedRefused")
    assert cluster.placed() == {}
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


def test_a_pod_whose_job_cannot_be_read_is_told_the_way_out(cluster: Cluster, service: Service) -> None:
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


def test_pods_of_a_gang_that_disagree_are_told_in_what(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(scenes.pod("first", "a", 2, group="g", group_size="2"))
    cluster.wait_until(lambda: f"{cluster.namespace}/g" in service.groups(), "the gang is known")
    cluster.create_pod(scenes.pod("tenant", "b", 2, group="g", group_size="2"))
    cluster.create_pod(scenes.pod("size", "a", 2, group="g", group_size="3"))
    scenes.wait_for_words(cluster, "tenant", f"{cluster.namespace}/g", "'b' here, 'a' there", reason="HivedRefused")
    scenes.wait_for_words(cluster, "size", "3 x 2 here, 2 x 2 there", reason="HivedRefused")
    assert cluster.placed() == {}
    for name in ("tenant", "size"):
        told = scenes.said(cluster, name, "HivedRefused").splitlines()
        assert len(told) == len(set(told)), "it is told once"
    cluster.create_pod(scenes.pod("second", "a", 2, group="g", group_size="2"))
    assert set(scenes.wait_for_places(cluster, "first", "second")) == {"first", "second"}
    for name in ("first", "second", "size"):
        cluster.delete_pod(name, force=True)
    cluster.create_pod(scenes.pod("partner", "b", 2, group="g", group_size="2"))
    assert set(scenes.wait_for_places(cluster, "tenant", "partner")) == {"tenant", "partner"}, "the name is free again"


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


def test_bindings_that_nobody_has_a_right_to_are_refused(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(scenes.pod("first", "a", 4))
    home = scenes.wait_for_places(cluster, "first")["first"]
    cluster.create_pod(scenes.pod("waits", "a", 2, group="g", group_size="2"))
    cluster.wait_until(lambda: f"{cluster.namespace}/g" in service.groups(), "the gang is known")
    uids = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}

    def bind(uid: str, node: str) -> str:
        body = {"PodName": "first", "PodNamespace": cluster.namespace, "PodUID": uid, "Node": node}
        error: str = service.http.post("/v1/extender/bind", json=body).json().get("Error", "")
        return error

    assert "is gone, or was never here" in bind("no-such-uid", home)
    assert f"{cluster.namespace}/first is on its node already" in bind(uids["first"], home)
    assert f"{cluster.namespace}/waits has no place" in bind(uids["waits"], home)
    assert cluster.placed() == {"first": home}


@pytest.mark.parametrize("path", [*(f"/v1/extender/{verb}" for verb in VERBS), "/v1/plan", "/v1/drain"])
def test_enormous_bodies_are_refused_before_they_are_read(cluster: Cluster, service: Service, path: str) -> None:
    answer = service.http.post(path, content=b"{" + b" " * (5 * 1024 * 1024))
    assert answer.status_code == 413
    assert "4,194,304 bytes" in answer.json()["error"]["message"]
    assert service.is_ready()


def test_errors_of_the_api_name_what_was_asked_for(service: Service) -> None:
    for path, status, words in (
        ("/v1/groups/no/such", 404, ["no/such"]),
        ("/v1/explain/no/such", 404, ["no/such"]),
        ("/v1/vcs/nobody", 404, ["nobody", "a, b"]),
        ("/v1/groups?limit=0", 422, ["limit", "greater than or equal to 1"]),
    ):
        answer = service.http.get(path)
        assert answer.status_code == status
        assert all(word in answer.text for word in words), answer.text
    assert service.http.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    drain = service.http.post("/v1/drain", json={"node": "n9"})
    assert (drain.status_code, "n9" in drain.json()["error"]["message"]) == (404, True)
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 3}}
    plan = service.http.post("/v1/plan", json={"objects": [wrong]})
    assert (plan.status_code, "Pod" in plan.json()["error"]["message"]) == (422, True)


# -- bound behind its back --------------------------------------------------------------------------------------------


def bind_by_hand(cluster: Cluster, name: str, node: str, annotations: dict[str, str]) -> None:
    body = {"metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": node}}
    cluster.api("POST", f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/binding", body)


def waiting_elsewhere(name: str) -> scenes.Json:
    """A pod that no kube-scheduler looks at."""
    pod = scenes.pod(name, "a", 4)
    pod["spec"]["schedulerName"] = "nobody"
    return pod


def test_of_two_pods_that_claim_one_place_the_first_keeps_it_and_the_other_is_told(
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


def test_a_pod_that_somebody_else_bound_to_free_gpus_has_them_from_then_on(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(scenes.pod("honest", "a", 4))
    home = scenes.wait_for_places(cluster, "honest")["honest"]
    notes = cluster.pod("honest")["metadata"]["annotations"]
    other = next(name for name in ("n0", "n1", "n2", "n3") if name != home)
    cluster.create_pod(waiting_elsewhere("guest"))
    moved = {BIND_INFO: notes[BIND_INFO].replace(home, other), ISOLATION: notes[ISOLATION]}
    bind_by_hand(cluster, "guest", other, moved)
    cluster.wait_until(
        lambda: service.groups().get(f"{cluster.namespace}/guest", {}).get("state") == "placed", "it is known"
    )
    cluster.create_pod(scenes.pod("third", "a", 4))
    scenes.wait_for_words(cluster, "third", "8")
    for number in range(3):
        cluster.create_pod(scenes.pod(f"lent-{number}", "a", 4, opportunistic=True))
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "two of them have what is left")
    assert list(cluster.placed().values()).count(other) == 1
    assert service.metric("hived_conflicts") == 0


def test_pods_that_were_bound_with_wrong_annotations_are_told_and_cost_nobody_anything(
    cluster: Cluster, service: Service
) -> None:
    not_of_its_group = "node: n9\nleafCellIsolation: [0]\ncellChain: NODE\naffinityGroupBindInfo: []\n"
    cases: dict[str, tuple[str, dict[str, str], list[str]]] = {
        "none": ("n0", {}, ["by somebody else", "no GPUs of HiveD"]),
        "no-yaml": ("n1", {BIND_INFO: "node: [", ISOLATION: "0,1"}, [BIND_INFO, "cannot be understood"]),
        "not-of-its-group": ("n2", {BIND_INFO: not_of_its_group}, [BIND_INFO]),
    }
    for name, (node, notes, words) in cases.items():
        cluster.create_pod(waiting_elsewhere(name))
        bind_by_hand(cluster, name, node, notes)
        scenes.wait_for_words(cluster, name, *words, reason="HivedConflict")
    for number in range(4):
        cluster.create_pod(scenes.pod(f"lent-{number}", "a", 4, opportunistic=True))

    def lent() -> set[str]:
        return {node for name, node in cluster.placed().items() if name.startswith("lent-")}

    cluster.wait_until(lambda: lent() == {"n3"}, "what nobody may be using is lent")
    service.kill()
    service.start()
    for name, (_, _, words) in cases.items():
        told = service.get(f"/v1/explain/{cluster.namespace}/{name}")["text"]
        assert all(word in told for word in words)
    assert lent() == {"n3"}
    for name in cases:
        cluster.delete_pod(name, force=True)
    cluster.wait_until(lambda: lent() == {"n0", "n1", "n2", "n3"}, "the rest is lent once they are gone")
    assert service.metric("hived_refused_pods") == 0


def test_a_deleted_pod_is_not_brought_back_by_a_late_question(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(scenes.pod("short", "a", 4, group="g", group_size="2"))
    pod = cluster.pod("short")
    cluster.wait_until(lambda: f"{cluster.namespace}/g" in service.groups(), "the gang is known")
    cluster.delete_pod("short", force=True)
    cluster.wait_until(lambda: not service.groups(), "the gang is gone")
    with pytest.raises(RefusedError):
        cluster.pod("short")
    answer = service.http.post("/v1/extender/filter", json={"Pod": pod, "NodeNames": ["n0"]}).json()
    assert f"{cluster.namespace}/short" in answer["Error"]
    assert service.groups() == {}


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
