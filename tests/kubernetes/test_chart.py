"""The Helm chart comes to the plain manifests by default, and to what its values say otherwise."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
import yaml

import hived
from hived import Cluster

from .go_templates import TemplateError, merged, render_chart
from .manifests import CHART, MONITORING, PLAIN, Key, Manifest, by_key, documents, in_folder
from .test_deploy import FLAGS

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
TLS = {"tls": {"secretName": "server", "clientSecretName": "client"}}


def render(values: dict[str, Any] | None = None, *, release: str = "hived") -> dict[Key, Manifest]:
    """The chart's objects. Helm looks at the schema first, and so does this."""
    jsonschema_rs.validate(SCHEMA, merged(VALUES, values or {}))
    texts = render_chart(CHART, values, release=release, namespace="hived")
    return by_key(one for name, text in texts.items() if name != "NOTES.txt" for one in documents(text))


def stateful_set(values: dict[str, Any] | None = None) -> Any:
    return render(values)["StatefulSet", "hived", "hived"]


def containers(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec = stateful_set(values)["spec"]["template"]["spec"]
    return {container["name"]: container for container in spec["containers"]}


def scheduler_config(values: dict[str, Any] | None = None) -> Any:
    return yaml.safe_load(render(values)["ConfigMap", "hived", "hived-scheduler"]["data"]["config.yaml"])


# -- the same as the plain manifests ----------------------------------------------------------------------------------


def comparable(found: dict[Key, Manifest]) -> dict[Key, Manifest]:
    """kube-scheduler's configuration as data: its comments may differ."""
    config = found["ConfigMap", "hived", "hived-scheduler"]["data"]
    config["config.yaml"] = yaml.safe_load(config["config.yaml"])
    return found


def plain() -> dict[Key, Manifest]:
    """The plain manifests, but for the namespace: Helm makes that itself."""
    found = by_key(in_folder(PLAIN))
    del found["Namespace", "", "hived"]
    return comparable(found)


@pytest.fixture(scope="module")
def by_default() -> dict[Key, Manifest]:
    return comparable(render())


def test_there_are_as_many_objects_as_in_the_plain_manifests(by_default: dict[Key, Manifest]) -> None:
    assert set(by_default) == set(plain())


@pytest.mark.parametrize("which", plain(), ids="/".join)
def test_an_object_is_that_of_the_plain_manifests(which: Key, by_default: dict[Key, Manifest]) -> None:
    assert by_default[which] == plain()[which]


def test_monitoring_adds_what_the_plain_manifests_have_for_it() -> None:
    monitoring = by_key(in_folder(MONITORING))
    assert comparable(render({"monitoring": {"enabled": True}})) == {**plain(), **monitoring}


# -- other values -----------------------------------------------------------------------------------------------------


def test_one_replica_needs_no_election() -> None:
    values = {"replicas": 1}
    assert stateful_set(values)["spec"]["replicas"] == 1
    assert not {"--leader-elect", "--lease", "--identity"} & flags(containers(values)["hived"])
    assert scheduler_config(values)["leaderElection"] == {"leaderElect": False}
    assert "hived.io/role" not in render(values)["Service", "hived", "hived"]["spec"]["selector"]


def test_every_client_of_hived_speaks_tls() -> None:
    values = merged(TLS, {"monitoring": {"enabled": True}})
    container = containers(values)["hived"]
    (extender,) = scheduler_config(values)["extenders"]
    (endpoint,) = render(values)["ServiceMonitor", "hived", "hived"]["spec"]["endpoints"]
    assert {"--tls-cert", "--tls-key", "--tls-client-ca"} <= flags(container)
    assert {container[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    assert extender["urlPrefix"].startswith("https://hived.hived.svc:")
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"]["serverName"] == endpoint["tlsConfig"]["serverName"] == "hived.hived.svc"
    assert endpoint["scheme"] == "https"


@pytest.mark.parametrize("name", ["hived", "kube-scheduler"])
def test_every_certificate_that_is_named_is_mounted(name: str) -> None:
    pod = stateful_set(TLS)["spec"]["template"]["spec"]
    sources = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    container = containers(TLS)[name]
    folders = {mount["mountPath"]: sources[mount["name"]] for mount in container["volumeMounts"]}
    named = [value for _, _, value in (argument.partition("=") for argument in container["args"]) if "tls" in value]
    if name == "kube-scheduler":
        (extender,) = scheduler_config(TLS)["extenders"]
        named = [value for key, value in extender["tlsConfig"].items() if key.endswith("File")]
    assert len(named) == 3
    assert {folders[path.rpartition("/")[0]] for path in named} <= {"server", "client"}


def test_kube_scheduler_does_not_see_the_key_of_hived() -> None:
    pod = stateful_set(TLS)["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in containers(TLS)["kube-scheduler"]["volumeMounts"]}
    seen = [volume["secret"] for volume in pod["volumes"] if volume["name"] in mounted and "secret" in volume]
    assert seen == [
        {"secretName": "server", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
        {"secretName": "client"},
    ]


def test_without_a_clients_certificate_none_is_asked_for() -> None:
    values = {"tls": {"secretName": "server"}}
    assert "--tls-client-ca" not in flags(containers(values)["hived"])
    assert set(scheduler_config(values)["extenders"][0]["tlsConfig"]) == {"serverName", "caFile"}


def test_a_token_is_asked_of_prometheus_too() -> None:
    values = {"token": {"secretName": "secret"}, "monitoring": {"enabled": True}}
    container = containers(values)["hived"]
    (endpoint,) = render(values)["ServiceMonitor", "hived", "hived"]["spec"]["endpoints"]
    assert "--token-file=/etc/hived/token/token" in container["args"]
    assert "/etc/hived/token" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert endpoint["authorization"]["credentials"] == {"name": "secret", "key": "token"}


def test_a_given_spec_is_the_one_that_hived_reads() -> None:
    spec = (
        "physicalCluster:\n  cellTypes:\n    N: {childCellType: G, childCellNumber: 2, isNodeLevel: true}\n\n"
        "  physicalCells: [{cellType: N, cellAddress: a}]\nvirtualClusters: {}\n"
    )
    found = render({"spec": spec})["ConfigMap", "hived", "hived-spec"]["data"]["spec.yaml"]
    assert yaml.safe_load(found) == yaml.safe_load(spec)
    assert Cluster.from_spec(yaml.safe_load(found)).check_safety() is not None


def test_a_spec_of_another_owner_is_only_read() -> None:
    found = render({"existingSpec": "ours"})
    (args,) = (found["StatefulSet", "hived", "hived"]["spec"]["template"]["spec"]["containers"][0]["args"],)
    assert not any(name.endswith("-spec") for kind, _, name in found if kind == "ConfigMap")
    assert "--spec-configmap=$(POD_NAMESPACE)/ours" in args
    assert ["ours"] in [rule.get("resourceNames") for rule in found["Role", "hived", "hived"]["rules"]]


def test_images_are_those_that_were_asked_for() -> None:
    values = {"image": {"repository": "r/hived", "tag": "9"}, "scheduler": {"image": {"tag": "v1.30.0"}}}
    assert {name: found["image"] for name, found in containers(values).items()} == {
        "hived": "r/hived:9",
        "kube-scheduler": "registry.k8s.io/kube-scheduler:v1.30.0",
    }


def test_an_older_kubernetes_is_given_the_configuration_that_it_knows() -> None:
    config = scheduler_config({"scheduler": {"configVersion": "v1beta3", "name": "other"}})
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1beta3"
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["other"]


def test_a_release_of_another_name_names_everything_after_it() -> None:
    found = render(release="second")
    names = {name for kind, _, name in found if kind != "PriorityClass"}
    assert {name.split("-")[0] for name in names} == {"second"}
    service, pod = found["Service", "hived", "second"], found["StatefulSet", "hived", "second"]["spec"]["template"]
    assert service["spec"]["selector"].items() - pod["metadata"]["labels"].items() == {("hived.io/role", "leader")}
    config = yaml.safe_load(found["ConfigMap", "hived", "second-scheduler"]["data"]["config.yaml"])
    assert config["extenders"][0]["urlPrefix"] == "http://second.hived.svc:9096/v1/extender"
    assert config["leaderElection"]["resourceName"] in found["Role", "hived", "second"]["rules"][1]["resourceNames"]


def test_what_is_switched_off_is_not_there() -> None:
    kinds = {kind for kind, _, _ in render({"priorityClasses": {"create": False}, "networkPolicy": {"create": False}})}
    assert not {"PriorityClass", "NetworkPolicy", "ServiceMonitor", "PrometheusRule"} & kinds


def test_given_pod_settings_reach_the_pods() -> None:
    tolerations = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]
    values = {
        "nodeSelector": {"pool": "system"},
        "tolerations": tolerations,
        "imagePullSecrets": ["registry"],
        "priorityClassName": "",
        "evictAfter": "0.5",
        "evictPatience": 60,
        "eventLog": "-",
        "listen": {"host": "[::]", "port": 9999},
    }
    pod = stateful_set(values)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == tolerations
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert "priorityClassName" not in pod
    arguments = {"--evict-after=0.5", "--evict-patience=60", "--listen=[::]:9999", "--event-log=-"}
    assert arguments <= set(pod["containers"][0]["args"])
    assert scheduler_config(values)["extenders"][0]["urlPrefix"] == "http://hived.hived.svc:9999/v1/extender"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"replicas": 1},
        {
            **TLS,
            "token": {"secretName": "secret"},
            "evictAfter": 300,
            "evictPatience": "9",
            "eventLog": "-",
            "existingSpec": "ours",
        },
    ],
    ids=["default", "one", "everything"],
)
def test_hived_is_started_with_flags_that_it_has(values: dict[str, Any]) -> None:
    assert flags(containers(values)["hived"]) <= FLAGS


# -- values that are wrong --------------------------------------------------------------------------------------------


def test_the_charts_own_values_follow_its_schema() -> None:
    jsonschema_rs.validate(SCHEMA, VALUES)


def test_the_schema_knows_all_values() -> None:
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    for name, value in VALUES.items():
        properties = SCHEMA["properties"][name].get("properties")
        if isinstance(value, dict) and properties is not None:
            assert set(properties) == set(value), name


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": 0},
        {"replicas": "2"},
        {"spec": ""},
        {"spec": {"physicalCluster": {}}},
        {"listen": {"port": 80}},
        {"scheduler": {"configVersion": "v1alpha1"}},
        {"scheduler": {"httpTimeout": 30}},
        {"tls": {"secret": "x"}},
        {"fullnameOverride": "Not_A_Name"},
        {"evictAfter": 0},
        {"evictAfter": "soon"},
        {"evictPatience": 0},
        {"eventLog": "/somewhere/without/a/volume"},
    ],
    ids=json.dumps,
)
def test_a_value_that_is_wrong_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        render(values)


def test_no_spec_at_all_is_refused_by_the_template_too() -> None:
    with pytest.raises(TemplateError, match="say what the cluster is"):
        render_chart(CHART, {"spec": None}, release="hived", namespace="hived")


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (hived.__version__, hived.__version__)


def test_the_notes_say_how_to_look_at_it() -> None:
    notes = render_chart(CHART, TLS, release="hived", namespace="gpu")["NOTES.txt"]
    assert "kubectl -n gpu port-forward service/hived 9096" in notes
    assert "https://127.0.0.1:9096/" in notes


def flags(container: Any) -> set[str]:
    return {argument.partition("=")[0] for argument in container["args"] if argument.startswith("--")}
