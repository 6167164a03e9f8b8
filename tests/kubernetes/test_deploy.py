"""What is deployed fits together: names lead somewhere, containers may do little, rules speak of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import hived
from hived import Bind, Cluster
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.owners import members_of
from hived.engines.kubernetes.pods.pod_request import (
    GANG_OWNERS,
    PodRequest,
    check_grace,
    concerns,
    gang_owner,
    read_request,
)
from hived.spec.compiled import OPPORTUNISTIC_GRACE_SECONDS

from .manifests import CHART, DEPLOY, EXAMPLES, MONITORING, PLAIN, Manifest, by_key, in_folder, pod_templates

#: every metric of the service, with its labels
METRICS = {
    "hived_build_info": {"version"},
    "hived_ready": set(),
    "hived_leader": set(),
    "hived_safety_violations_total": set(),
    "hived_safety_margin_cells": {"chain", "level"},
    "hived_gpus": {"state"},
    "hived_vc_gpus": {"vc", "kind"},
    "hived_groups": {"vc", "state"},
    "hived_waiting_groups": {"vc", "reason"},
    "hived_nodes": {"state"},
    "hived_requests_total": {"verb", "result"},
    "hived_request_duration_seconds": {"verb"},
    "hived_preemptions_total": {"vc", "by_vc"},
    "hived_bindings_total": {"result"},
    "hived_refused_pods": {"reason"},
    "hived_conflicts": set(),
    "hived_foreign_pods": set(),
    "hived_spec_reloads_total": {"result"},
    "hived_watch_restarts_total": {"resource", "reason"},
    "hived_api_errors_total": {"verb", "resource", "code"},
    "hived_events_dropped_total": set(),
    "hived_evictions_total": {"result"},
}
HISTOGRAMS = {"hived_request_duration_seconds"}
TARGET_LABELS = {"namespace", "pod", "le"}  #: that Prometheus adds, or a histogram has
#: of `hived serve kubernetes`
FLAGS = {
    "--spec",
    "--spec-configmap",
    "--exchange-configmap",
    "--exchange",
    "--kubeconfig",
    "--listen",
    "--log-format",
    "--tls-cert",
    "--tls-key",
    "--tls-client-ca",
    "--leader-elect",
    "--lease",
    "--identity",
    "--token-file",
    "--evict-after",
    "--evict-patience",
    "--event-log",
}

OBJECTS = by_key(in_folder(PLAIN))
STATEFUL_SET = OBJECTS["StatefulSet", "hived", "hived"]
POD = STATEFUL_SET["spec"]["template"]
CONTAINERS: dict[str, Any] = {container["name"]: container for container in POD["spec"]["containers"]}
SERVICE = OBJECTS["Service", "hived", "hived"]
CONFIG = yaml.safe_load(OBJECTS["ConfigMap", "hived", "hived-scheduler"]["data"]["config.yaml"])
SPEC = OBJECTS["ConfigMap", "hived", "hived-spec"]["data"]["spec.yaml"]
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((DEPLOY / "grafana" / "hived.json").read_text(encoding="utf-8"))


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [PLAIN, MONITORING], ids=lambda folder: folder.name)
def test_a_kustomization_names_every_file_of_its_folder(folder: Path) -> None:
    kustomization = yaml.safe_load((folder / "Kustomization").read_text(encoding="utf-8"))
    assert kustomization["resources"] == sorted(path.name for path in folder.glob("*.yaml"))


def test_the_namespace_comes_first() -> None:
    assert next(iter(OBJECTS)) == ("Namespace", "", "hived")


def test_everything_that_has_a_namespace_is_in_ours() -> None:
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    elsewhere = {("RoleBinding", "kube-system", "hived-authentication-reader")}
    strangers = {
        found for found in OBJECTS if found[0] not in cluster_wide and found[1] != "hived" and found not in elsewhere
    }
    assert strangers == set()


# -- names lead somewhere ---------------------------------------------------------------------------------------------


def test_the_service_routes_to_the_leader_without_session_affinity() -> None:
    assert SERVICE["spec"]["selector"] == {**POD["metadata"]["labels"], keys.ROLE: "leader"}
    assert SERVICE["spec"]["sessionAffinity"] == "None"


@pytest.mark.parametrize("name", ["hived", "hived-replicas"])
def test_a_service_leads_to_the_port_that_hived_listens_on(name: str) -> None:
    (port,) = OBJECTS["Service", "hived", name]["spec"]["ports"]
    (there,) = CONTAINERS["hived"]["ports"]
    assert port["targetPort"] == there["name"]
    assert port["port"] == there["containerPort"]
    assert f"--listen=0.0.0.0:{there['containerPort']}" in CONTAINERS["hived"]["args"]


def test_kube_scheduler_finds_the_service() -> None:
    (extender,) = CONFIG["extenders"]
    metadata, (port,) = SERVICE["metadata"], SERVICE["spec"]["ports"]
    assert extender["urlPrefix"] == f"http://{metadata['name']}.{metadata['namespace']}.svc:{port['port']}/v1/extender"


@pytest.mark.parametrize("name", ["hived", "kube-scheduler"])
def test_probes_and_mounts_name_what_is_there(name: str) -> None:
    container = CONTAINERS[name]
    ports = {port["name"] for port in container["ports"]}
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_hived_is_alive_by_one_path_and_ready_by_another() -> None:
    paths = [CONTAINERS["hived"][probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert paths == ["/healthz", "/readyz"]


def test_every_selector_finds_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    term = POD["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    policy = OBJECTS["NetworkPolicy", "hived", "hived"]["spec"]
    selectors = [
        STATEFUL_SET["spec"]["selector"]["matchLabels"],
        OBJECTS["PodDisruptionBudget", "hived", "hived"]["spec"]["selector"]["matchLabels"],
        OBJECTS["Service", "hived", "hived-replicas"]["spec"]["selector"],
        policy["podSelector"]["matchLabels"],
        policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        term["podAffinityTerm"]["labelSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * len(selectors)


def test_prometheus_scrapes_the_service_of_all_replicas() -> None:
    monitor = by_key(in_folder(MONITORING))["ServiceMonitor", "hived", "hived"]["spec"]
    selected = [
        name
        for (kind, _, name), found in OBJECTS.items()
        if kind == "Service" and monitor["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    ]
    assert selected == [STATEFUL_SET["spec"]["serviceName"]]
    assert monitor["endpoints"][0]["port"] == "http"


def test_the_pods_account_and_config_are_there() -> None:
    assert ("ServiceAccount", "hived", POD["spec"]["serviceAccountName"]) in OBJECTS
    config_maps = [volume["configMap"]["name"] for volume in POD["spec"]["volumes"] if "configMap" in volume]
    assert all(("ConfigMap", "hived", name) in OBJECTS for name in config_maps)
    assert "--spec-configmap=$(POD_NAMESPACE)/hived-spec" in CONTAINERS["hived"]["args"]


def test_all_rights_are_given_to_the_one_account() -> None:
    bindings = [found for (kind, _, _), found in OBJECTS.items() if kind.endswith("RoleBinding")]
    assert all(
        found["subjects"] == [{"kind": "ServiceAccount", "name": "hived", "namespace": "hived"}] for found in bindings
    )
    own = {name for kind, _, name in OBJECTS if kind in ("Role", "ClusterRole")}
    brought_along = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}
    assert {found["roleRef"]["name"] for found in bindings} == own | brought_along


def test_each_election_has_a_lease_of_its_own_and_the_right_to_it() -> None:
    leases = {rule_name for rule in _rules("Role", "hived") for rule_name in rule.get("resourceNames", ())}
    theirs = CONFIG["leaderElection"]
    assert theirs["leaderElect"]
    assert theirs["resourceNamespace"] == "hived"
    assert theirs["resourceName"] != "hived"
    assert {"hived", theirs["resourceName"]} <= leases
    assert "--lease=$(POD_NAMESPACE)/hived" in CONTAINERS["hived"]["args"]


def test_hived_is_started_with_flags_that_it_has() -> None:
    verbs, flags = CONTAINERS["hived"]["args"][:2], CONTAINERS["hived"]["args"][2:]
    assert verbs == ["serve", "kubernetes"]
    assert {flag.partition("=")[0] for flag in flags} <= FLAGS


def test_a_replica_knows_its_own_pod() -> None:
    paths = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in CONTAINERS["hived"]["env"]}
    assert paths == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}


# -- what kube-scheduler is told --------------------------------------------------------------------------------------


def test_kube_scheduler_asks_hived_about_every_pod_that_is_its_own() -> None:
    (extender,) = CONFIG["extenders"]
    assert {extender[f"{verb}Verb"] for verb in ("filter", "bind", "preempt")} == {"filter", "bind", "preempt"}
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert [found["name"] for found in extender["managedResources"]] == [keys.ENABLE, *keys.GPU_RESOURCES]
    assert all(found["ignoredByScheduler"] for found in extender["managedResources"])


def test_kube_scheduler_shows_hived_all_nodes() -> None:
    assert CONFIG["percentageOfNodesToScore"] == 100
    (profile,) = CONFIG["profiles"]
    (preemption,) = profile["pluginConfig"]
    assert preemption == {"name": "DefaultPreemption", "args": {"minCandidateNodesPercentage": 100}}


def test_the_kube_scheduler_is_the_one_that_the_tests_run() -> None:
    image = CONTAINERS["kube-scheduler"]["image"]
    version = re.search(r"k8s.io/kubernetes (v\S+)", (DEPLOY.parent / "tools/control_plane/go.mod").read_text())
    assert version is not None
    assert image.rpartition(":")[2] == version[1]


def test_the_leader_is_reached_while_the_kube_scheduler_beside_it_is_not_ready() -> None:
    assert OBJECTS["Service", "hived", "hived"]["spec"]["publishNotReadyAddresses"] is True


def test_what_is_opportunistic_can_be_preempted_by_what_is_guaranteed_and_by_what_has_no_class() -> None:
    value = {name: found["value"] for (kind, _, name), found in OBJECTS.items() if kind == "PriorityClass"}
    assert value["hived-opportunistic"] < 0 < value["hived-guaranteed"]


# -- little is allowed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hived", "kube-scheduler"])
def test_a_container_can_do_as_little_as_the_strictest_standard_asks(name: str) -> None:
    pod, container = POD["spec"]["securityContext"], CONTAINERS[name]["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD["spec"])
    assert not any("hostPath" in volume for volume in POD["spec"]["volumes"])


def test_the_namespace_enforces_that_standard() -> None:
    labels = OBJECTS["Namespace", "", "hived"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", ["hived", "kube-scheduler"])
def test_a_container_says_what_it_needs_and_is_never_throttled(name: str) -> None:
    resources = CONTAINERS[name]["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert set(resources["limits"]) == {"memory"}


def test_no_right_is_given_with_a_wildcard_nor_to_change_rights() -> None:
    words = {
        word
        for kind, name in (("ClusterRole", ""), ("Role", "hived"))
        for rule in _rules(kind, name)
        for part in ("apiGroups", "resources", "verbs")
        for word in rule[part]
    }
    assert not words & {"*", "escalate", "bind", "impersonate", "secrets", "serviceaccounts/token"}


def test_the_image_runs_as_a_number_that_is_not_root_as_the_manifests_do() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert int(user) == POD["spec"]["securityContext"]["runAsUser"]
    assert 'ENTRYPOINT ["hived"]' in dockerfile
    assert "command" not in CONTAINERS["hived"]


def test_the_image_is_this_version() -> None:
    assert CONTAINERS["hived"]["image"] == f"hived:{hived.__version__}"


def test_the_image_is_made_of_files_that_are_there() -> None:
    kept = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(kept) == sorted(name for names in copied for name in names.split())
    assert all((DEPLOY.parent / name).exists() for name in kept)


def _rules(kind: str, namespace: str) -> list[Any]:
    rules: list[Any] = OBJECTS[kind, namespace, "hived"]["rules"]
    return rules


# -- the spec and the jobs that are shown -----------------------------------------------------------------------------


JOBS = [found for found in in_folder(EXAMPLES) if pod_templates(found)]
TEMPLATES = [template for found in JOBS for template in pod_templates(found)]


def _asks(manifest: Manifest) -> list[PodRequest]:
    """What the pods of an object ask for, one of every template; it is read as the object that makes them."""
    asks = []
    for template in pod_templates(manifest):
        owner = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": "job", "uid": "1"}
        metadata = {"name": "pod", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
        pod = msgspec.convert({"metadata": {**template["metadata"], **metadata}, "spec": template["spec"]}, Pod)
        assert concerns(pod)
        owned = gang_owner(pod) is not None
        asks.append(read_request(pod, members_of(manifest, "the example") if owned else None))
        check_grace(pod, asks[-1], OPPORTUNISTIC_GRACE_SECONDS)
    return asks


def test_there_is_an_example_of_every_kind_of_job() -> None:
    annotated = [keys.POD_SPEC in template["metadata"].get("annotations", {}) for template in TEMPLATES]
    assert {(found["apiVersion"].partition("/")[0], found["kind"]) for found in JOBS} == GANG_OWNERS
    assert annotated.count(True) == 1


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_example_is_placed_by_hived_and_sees_its_own_devices(template: Manifest) -> None:
    (container,) = template["spec"]["containers"]
    visible = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
    assert template["spec"]["schedulerName"] == CONFIG["profiles"][0]["schedulerName"]
    assert visible == {"NVIDIA_VISIBLE_DEVICES": f"metadata.annotations['{keys.ISOLATION}']"}


@pytest.mark.parametrize("manifest", JOBS, ids=lambda found: found["metadata"]["name"])
def test_an_example_has_the_class_of_its_priority(manifest: Manifest) -> None:
    kinds = ["hived-opportunistic" if asked.priority < 0 else "hived-guaranteed" for asked in _asks(manifest)]
    assert [template["spec"]["priorityClassName"] for template in pod_templates(manifest)] == kinds


@pytest.mark.parametrize("manifest", JOBS, ids=lambda found: found["metadata"]["name"])
def test_an_example_runs_on_the_cluster_of_the_example_spec(manifest: Manifest) -> None:
    cluster = Cluster.from_spec(yaml.safe_load(SPEC))
    (asked,) = {asked.group: asked for asked in _asks(manifest)}.values()
    pods = sum(template["count"] for template in pod_templates(manifest))
    assert asked.size == (1 if manifest["metadata"]["name"] == "sweep" else pods)
    assert isinstance(cluster.schedule(asked.request()), Bind)


# -- Prometheus and Grafana -------------------------------------------------------------------------------------------

_EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for group in RULES["groups"] for rule in group["rules"]},
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
    **{f"variable {one['name']}": one["query"] for one in DASHBOARD["templating"]["list"]},
}


def _metric(name: str) -> str:
    for histogram in HISTOGRAMS:
        if re.fullmatch(f"{histogram}_(bucket|sum|count)", name):
            return histogram
    return name


@pytest.mark.parametrize("where", _EXPRESSIONS)
def test_an_expression_speaks_of_metrics_and_labels_that_exist(where: str) -> None:
    expression = _EXPRESSIONS[where]
    metrics = {_metric(name) for name in re.findall(r"\bhived_\w+", expression)}
    assert metrics <= set(METRICS)
    by = [label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(", ")]
    selected = re.findall(r"[{,]\s*(\w+)(?:=~?|!=)", expression)
    assert {*by, *selected} <= {label for metric in metrics for label in METRICS[metric]} | TARGET_LABELS
    assert expression.count("(") == expression.count(")")


def test_every_metric_is_shown() -> None:
    shown = {_metric(name) for text in _EXPRESSIONS.values() for name in re.findall(r"\bhived_\w+", text)}
    assert shown == set(METRICS)


def test_a_counter_is_looked_at_by_its_growth_or_against_zero() -> None:
    for where, expression in _EXPRESSIONS.items():
        for counter in re.findall(r"\bhived_\w+_total", expression):
            grows = re.search(rf"(rate|increase)\({counter}\b", expression)
            assert grows or counter == "hived_safety_violations_total", where


@pytest.mark.parametrize("rule", RULES["groups"][0]["rules"], ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = re.match(r"(?:\w+ )?.*?by \(([^)]*)\)", rule["expr"])
    assert used <= (set(kept[1].split(", ")) if kept else TARGET_LABELS)


def test_the_manual_says_what_to_do_about_every_alert_and_there_is_no_other() -> None:
    manual = (DEPLOY.parent / "docs" / "howto" / "operating.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Hived\w+)`", manual)) == {rule["alert"] for rule in RULES["groups"][0]["rules"]}


def test_the_operator_gets_the_same_rules_as_a_file_of_prometheus() -> None:
    rule = by_key(in_folder(MONITORING))["PrometheusRule", "hived", "hived"]
    assert rule["spec"] == RULES


def test_the_chart_carries_the_same_file_of_rules() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    assert (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8") == rules


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
