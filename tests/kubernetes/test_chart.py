"""The Helm chart as helm renders it: the manifests that are checked in, and what other values come to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tools import render
from tools.render import ChartError

from .manifests import OBJECTS, by_key

pytestmark = pytest.mark.cluster
MONITORING = {"monitoring": {"enabled": True}}


class Rendered:
    """The objects of a release with these values."""

    def __init__(self, values: dict[str, Any] | None = None, release: str = "hived") -> None:
        given = [f"--set-json={name}={json.dumps(value)}" for name, value in (values or {}).items()]
        self.objects = by_key(yaml.safe_load_all(render.template(*given, release=release)))
        self.pod = self.objects["StatefulSet", release]["spec"]["template"]["spec"]
        self.containers = {container["name"]: container for container in self.pod["containers"]}
        self.hived = self.containers["hived"]
        self.args: list[str] = self.hived["args"]
        self.config = yaml.safe_load(self.objects["ConfigMap", f"{release}-scheduler"]["data"]["config.yaml"])
        (self.extender,) = self.config["extenders"]

    def mounted(self, name: str) -> dict[str, Any]:
        """The sources of what a container mounts, by path."""
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        return {mount["mountPath"]: volumes[mount["name"]] for mount in self.containers[name]["volumeMounts"]}


def test_manifests_are_what_it_renders() -> None:
    """But for the namespace, which helm makes by itself."""
    assert render.MANIFESTS.read_text(encoding="utf-8") == render.rendered()
    assert {**Rendered().objects, ("Namespace", "hived"): OBJECTS["Namespace", "hived"]} == OBJECTS


def test_monitoring() -> None:
    """Every replica is scraped; the rules are those of the file."""
    found = Rendered({"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}}).objects
    assert set(found) - set(OBJECTS) == {("ServiceMonitor", "hived"), ("PrometheusRule", "hived")}
    rules = yaml.safe_load((render.CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    assert found["PrometheusRule", "hived"]["spec"] == rules
    monitor = found["ServiceMonitor", "hived"]["spec"]
    asked = monitor["selector"]["matchLabels"].items()
    services = {name: one["metadata"]["labels"].items() for (kind, name), one in found.items() if kind == "Service"}
    assert [name for name, labels in services.items() if asked <= labels] == ["hived-replicas"]
    assert monitor["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "15s", "scheme": "http"}]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert found[kind, "hived"]["metadata"]["labels"]["release"] == "prometheus"


def test_one_replica_needs_no_election() -> None:
    found = Rendered({"replicas": 1})
    assert found.objects["StatefulSet", "hived"]["spec"]["replicas"] == 1
    assert not [argument for argument in found.args if argument.startswith(("--leader-elect", "--lease", "--identity"))]
    assert found.config["leaderElection"] == {"leaderElect": False}
    assert "hived.io/role" not in found.objects["Service", "hived"]["spec"]["selector"]


def test_tls_for_every_client() -> None:
    """What is named is mounted, and kube-scheduler does not see the key of HiveD; or for the server alone."""
    found = Rendered({"tls": {"secretName": "server", "clientSecretName": "client"}} | MONITORING)
    (endpoint,) = found.objects["ServiceMonitor", "hived"]["spec"]["endpoints"]
    assert {found.hived[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    assert found.extender["urlPrefix"].startswith("https://hived.hived.svc:")
    assert found.extender["enableHTTPS"] is True
    assert found.extender["tlsConfig"].pop("serverName") == endpoint["tlsConfig"]["serverName"] == "hived.hived.svc"
    assert endpoint["scheme"] == "https"
    ours = dict(argument.split("=") for argument in found.args if argument.startswith("--tls-"))
    assert set(ours) == {"--tls-cert", "--tls-key", "--tls-client-ca"}
    assert {path.rpartition("/")[0] for path in ours.values()} <= set(found.mounted("hived"))
    theirs = found.mounted("kube-scheduler")
    assert set(found.extender["tlsConfig"]) == {"caFile", "certFile", "keyFile"}
    assert {path.rpartition("/")[0] for path in found.extender["tlsConfig"].values()} <= set(theirs)
    assert [volume["secret"] for volume in theirs.values() if "secret" in volume] == [
        {"secretName": "server", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
        {"secretName": "client"},
    ]
    found = Rendered({"tls": {"secretName": "server"}})
    assert not any(argument.startswith("--tls-client-ca") for argument in found.args)
    assert set(found.extender["tlsConfig"]) == {"serverName", "caFile"}


def test_token_is_asked_of_prometheus_too() -> None:
    found = Rendered({"token": {"secretName": "secret"}} | MONITORING)
    (endpoint,) = found.objects["ServiceMonitor", "hived"]["spec"]["endpoints"]
    assert "--token-file=/etc/hived/token/token" in found.args
    assert found.mounted("hived")["/etc/hived/token"]["secret"] == {"secretName": "secret"}
    assert endpoint["authorization"]["credentials"] == {"name": "secret", "key": "token"}


def test_spec_is_the_given_one() -> None:
    spec = "physicalCluster:\n  cellTypes: {N: {}}\n\n  physicalCells: []\nvirtualClusters: {}\n"
    found = Rendered({"spec": spec}).objects["ConfigMap", "hived-spec"]["data"]["spec.yaml"]
    assert yaml.safe_load(found) == yaml.safe_load(spec)
    others = Rendered({"existingSpec": "ours"})
    assert {name for kind, name in others.objects if kind == "ConfigMap"} == {"hived-exchange", "hived-scheduler"}
    assert "--spec-configmap=$(POD_NAMESPACE)/ours" in others.args
    assert ["ours"] in [rule.get("resourceNames") for rule in others.objects["Role", "hived"]["rules"]]


def test_zero_seconds_reach_the_pods() -> None:
    """0 is not the same as nothing: the program's own patience is 30."""
    found = Rendered({"evictAfter": 0, "evictPatience": "0"})
    assert {"--evict-after=0", "--evict-patience=0"} <= set(found.args)
    assert not [argument for argument in Rendered().args if argument.startswith("--evict")]


def test_settings_reach_the_pods() -> None:
    tolerations = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]
    found = Rendered(
        {
            "image": {"repository": "r/hived", "tag": "9"},
            "scheduler": {"image": {"tag": "v1.30.0"}, "configVersion": "v1beta3", "name": "other"},
            "nodeSelector": {"pool": "system"},
            "tolerations": tolerations,
            "imagePullSecrets": ["registry"],
            "priorityClassName": "",
            "evictAfter": "0.5",
            "evictPatience": 60,
            "eventLog": "-",
            "exchange": "auction",
            "listen": {"host": "[::]", "port": 9999},
            "priorityClasses": {"create": False},
            "networkPolicy": {"create": False},
        }
    )
    images = [container["image"] for container in found.containers.values()]
    assert images == ["r/hived:9", "registry.k8s.io/kube-scheduler:v1.30.0"]
    assert (found.pod["nodeSelector"], found.pod["tolerations"]) == ({"pool": "system"}, tolerations)
    assert found.pod["imagePullSecrets"] == [{"name": "registry"}]
    assert "priorityClassName" not in found.pod
    flags = "--evict-after=0.5", "--evict-patience=60", "--event-log=-", "--exchange=auction", "--listen=[::]:9999"
    assert set(flags) <= set(found.args)
    assert found.extender["urlPrefix"] == "http://hived.hived.svc:9999/v1/extender"
    assert found.config["apiVersion"] == "kubescheduler.config.k8s.io/v1beta3"
    assert [profile["schedulerName"] for profile in found.config["profiles"]] == ["other"]
    assert not {"PriorityClass", "NetworkPolicy"} & {kind for kind, _ in found.objects}


def test_release_names_everything() -> None:
    found = Rendered(release="second")
    objects = found.objects
    assert {name.split("-")[0] for _, name in objects} == {"second"}, "two releases would collide"
    labels = objects["StatefulSet", "second"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service", "second"]["spec"]["selector"] == {**labels, "hived.io/role": "leader"}
    assert found.extender["urlPrefix"] == "http://second.hived.svc:9096/v1/extender"
    lease = found.config["leaderElection"]["resourceName"]
    assert lease in objects["Role", "second"]["rules"][1]["resourceNames"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("replica=2", "'replica' not allowed"),
        ("spec=null", "missing property 'spec'"),
        ('spec="physicalCluster: [\\nvirtualClusters: {}"', "spec: not valid YAML"),
        ("scheduler.podMaxBackoffSeconds=5", "less than scheduler.podInitialBackoffSeconds"),
        ('tls.clientSecretName="client"', "secretName"),
    ],
)
def test_helm_refuses(value: str, says: str) -> None:
    """By the schema, whose bounds are tested in ``test_deploy.py``."""
    with pytest.raises(ChartError, match=says):
        render.template(f"--set-json={value}")
