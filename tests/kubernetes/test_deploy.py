"""``deploy/`` fits together and fits the program: the manifests as they are checked in, the image, jobs of tenants."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, get_type_hints

import jsonschema_rs
import msgspec
import pytest
import yaml
from packaging.requirements import Requirement
from tools import render
from tools.control_plane import binaries
from tools.control_plane.deployed import Manifest
from tools.render import CHART, DEPLOY

from hived import Bind, Cluster
from hived.cli.app import VERBS
from hived.cli.serve import kubernetes as serve_kubernetes
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.owners import members_of
from hived.engines.kubernetes.pods.pod_request import GANG_OWNERS, check_grace, concerns, gang_owner, read_request
from hived.engines.kubernetes.stored_accounts import SLOTS
from hived.spec.compiled import OPPORTUNISTIC_GRACE_SECONDS

from .manifests import EXAMPLES, OBJECTS, Right, rights_of

ROOT = DEPLOY.parent
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STATEFUL_SET = OBJECTS["StatefulSet", "hived"]
POD = STATEFUL_SET["spec"]["template"]
CONTAINERS: dict[str, Any] = {container["name"]: container for container in POD["spec"]["containers"]}
CONFIG = yaml.safe_load(OBJECTS["ConfigMap", "hived-scheduler"]["data"]["config.yaml"])
#: of the command that the image runs
(SERVE,) = (verb for noun in VERBS if noun.name == "serve" for verb in noun.verbs)
PARAMETERS: list[Any] = SERVE.loaded().params
FLAGS = {flag for parameter in PARAMETERS for flag in parameter.opts}
#: rights in every namespace, and in that of the pods: what the service and kube-scheduler ask of the API server
EVERYWHERE = {
    ("", "pods", ""): "get list watch patch delete",
    ("", "pods/binding", ""): "create",
    ("", "pods/eviction", ""): "create",
    ("", "pods/status", ""): "patch",
    ("", "nodes", ""): "list watch patch",
    ("", "events", ""): "create list",
    ("batch", "jobs", ""): "get",
    ("jobset.x-k8s.io", "jobsets", ""): "get",
    ("kubeflow.org", "pytorchjobs", ""): "get",
}
AT_HOME = {
    ("coordination.k8s.io", "leases", ""): "create",
    ("coordination.k8s.io", "leases", "hived"): "get update",
    ("coordination.k8s.io", "leases", "hived-kube-scheduler"): "get update",
    ("", "configmaps", "hived-spec"): "get list watch",
    ("", "configmaps", "hived-exchange"): "get update",
    ("", "configmaps", "hived-accounts"): "get update",
    **{("", "configmaps", f"hived-accounts-{number}"): "get update" for number in range(SLOTS)},
    ("", "configmaps", ""): "create",
}


# -- files ------------------------------------------------------------------------------------------------------------


def test_manifests_are_up_to_date() -> None:
    """With the chart; that it comes to this is for helm to say (``test_chart.py``)."""
    assert render.MANIFESTS.read_text(encoding="utf-8").startswith(render.head()), "run `python -m tools.render`"
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization["resources"] == [render.MANIFESTS.name]


def test_version_is_the_changelogs() -> None:
    """A release takes its version from the tag, which has to be that of the chart."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    newest = re.search(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert chart["version"] == chart["appVersion"] == newest[1]
    assert CONTAINERS["hived"]["image"] == f"hived:{newest[1]}"


def test_image() -> None:
    """It runs as the manifests say, and is made of files that are there."""
    ((user, arguments),) = re.findall(r"^USER (\d+):\d+$.*^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert (int(user), json.loads(arguments)) == (POD["spec"]["securityContext"]["runAsUser"], ["hived"])
    assert "command" not in CONTAINERS["hived"]
    kept = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert sorted(kept) == sorted(name for names in copied for name in names.split())
    assert all((ROOT / name).exists() for name in kept)
    assert "pip uninstall" in DOCKERFILE.rpartition("FROM")[2], "what runs has no use for it"


def test_image_is_locked() -> None:
    """Every version in it is written down, of all that the project asks for; the floors are kept."""
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (DEPLOY / "requirements.lock").read_text("utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["kubernetes"]]
    for text in asked:
        wanted = Requirement(text)
        name = wanted.name.replace("_", "-").lower()
        assert name in pinned, f"{name} is not locked: python -m tools.lock"
        assert wanted.specifier.contains(pinned[name]), f"{text} is locked as {pinned[name]}: python -m tools.lock"
    assert "--no-deps" in DOCKERFILE
    assert not {"pip", "setuptools", "wheel"} & pinned.keys()


# -- objects lead to each other ---------------------------------------------------------------------------------------


def test_objects_are_in_the_namespace() -> None:
    """It is made before what is in it."""
    homes = {which: one["metadata"].get("namespace") for which, one in OBJECTS.items() if which[0] != "PriorityClass"}
    assert next(iter(homes)) == ("Namespace", "hived")
    of_no_namespace = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
    assert {kind for (kind, _), home in homes.items() if home is None} == of_no_namespace
    elsewhere = [which for which, home in homes.items() if home not in (None, "hived")]
    assert elsewhere == [("RoleBinding", "hived-authentication-reader")]


def test_selectors_find_the_pods() -> None:
    labels = POD["metadata"]["labels"]
    (term,) = POD["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    policy = OBJECTS["NetworkPolicy", "hived"]["spec"]
    budget = OBJECTS["PodDisruptionBudget", "hived"]["spec"]["selector"]
    callers = policy["ingress"][0]["from"][0]["podSelector"]
    for selector in (budget, policy["podSelector"], callers, term["podAffinityTerm"]["labelSelector"]):
        assert selector == {"matchLabels": labels}
    assert OBJECTS["Service", "hived-replicas"]["spec"]["selector"] == labels
    assert OBJECTS["Service", "hived"]["spec"]["selector"] == {**labels, keys.ROLE: "leader"}


def test_services_lead_to_the_port() -> None:
    """The leader is reached also while the kube-scheduler beside it is not ready, and by clients of a former one."""
    leader, (there,) = OBJECTS["Service", "hived"]["spec"], CONTAINERS["hived"]["ports"]
    assert (leader["sessionAffinity"], leader["publishNotReadyAddresses"]) == ("None", True)
    for name in ("hived", STATEFUL_SET["spec"]["serviceName"]):
        (port,) = OBJECTS["Service", name]["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (there["containerPort"], there["name"])
    assert f"--listen=0.0.0.0:{there['containerPort']}" in CONTAINERS["hived"]["args"]
    assert CONFIG["extenders"][0]["urlPrefix"] == f"http://hived.hived.svc:{there['containerPort']}/v1/extender"


@pytest.mark.parametrize(("name", "ready"), [("hived", "/readyz"), ("kube-scheduler", "/healthz")])
def test_probes(name: str, ready: str) -> None:
    probes = [CONTAINERS[name][probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    (port,) = CONTAINERS[name]["ports"]
    assert [(probe["path"], probe["port"]) for probe in probes] == [("/healthz", port["name"]), (ready, port["name"])]


def test_flags_are_the_programs() -> None:
    """In the chart, whatever its values; what they name is there."""
    template = (CHART / "templates" / "statefulset.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"--[a-z][a-z-]*", template)) - {"--config"} <= FLAGS
    arguments = CONTAINERS["hived"]["args"]
    assert arguments[:2] == ["serve", "kubernetes"]
    assert {"--spec-configmap=$(POD_NAMESPACE)/hived-spec", "--lease=$(POD_NAMESPACE)/hived"} <= set(arguments)
    paths = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in CONTAINERS["hived"]["env"]}
    assert paths == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    maps = [volume["configMap"]["name"] for volume in POD["spec"]["volumes"] if "configMap" in volume]
    assert all(("ConfigMap", name) in OBJECTS for name in maps)


# -- what kube-scheduler is told --------------------------------------------------------------------------------------


def test_kube_scheduler_asks_about_every_pod() -> None:
    """That is HiveD's, and about all nodes; its version is that of the tests on a real control plane."""
    module = (binaries.SCRIPTS / "go.mod").read_text(encoding="utf-8")
    (version,) = re.findall(r"^require k8s.io/kubernetes (v\S+)", module, re.MULTILINE)
    assert CONTAINERS["kube-scheduler"]["image"].rpartition(":")[2] == version
    (extender,), (profile,) = CONFIG["extenders"], CONFIG["profiles"]
    assert {extender[f"{verb}Verb"] for verb in ("filter", "bind", "preempt")} == {"filter", "bind", "preempt"}
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert [found["name"] for found in extender["managedResources"]] == [keys.ENABLE, *keys.GPU_RESOURCES]
    assert all(found["ignoredByScheduler"] for found in extender["managedResources"])
    assert CONFIG["percentageOfNodesToScore"] == 100
    election = {"leaderElect": True, "resourceNamespace": "hived", "resourceName": "hived-kube-scheduler"}
    assert election.items() <= CONFIG["leaderElection"].items()
    assert profile["pluginConfig"] == [{"name": "DefaultPreemption", "args": {"minCandidateNodesPercentage": 100}}]


def test_priority_classes() -> None:
    """What is opportunistic can be preempted by what is guaranteed and by what has no class."""
    value = {name: found["value"] for (kind, name), found in OBJECTS.items() if kind == "PriorityClass"}
    assert value["hived-opportunistic"] < 0 < value["hived-guaranteed"]


# -- little is allowed ------------------------------------------------------------------------------------------------


def test_pods_may_do_little() -> None:
    """What the namespace enforces an API server checks (``real/test_manifests.py``); they are never throttled."""
    assert OBJECTS["Namespace", "hived"]["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD["spec"])
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert restricted.items() <= POD["spec"]["securityContext"].items()
    for container in CONTAINERS.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"memory"}


def test_rights_are_exact() -> None:
    """What an API server makes of them: ``real/test_manifests.py``."""

    def listed(table: dict[tuple[str, str, str], str]) -> set[Right]:
        return {(verb, *what) for what, verbs in table.items() for verb in verbs.split()}

    assert rights_of(OBJECTS["ClusterRole", "hived"]["rules"]) == listed(EVERYWHERE)
    assert rights_of(OBJECTS["Role", "hived"]["rules"]) == listed(AT_HOME)
    account = {"kind": "ServiceAccount", "name": POD["spec"]["serviceAccountName"], "namespace": "hived"}
    assert ("ServiceAccount", account["name"]) in OBJECTS
    bindings = [found for (kind, _), found in OBJECTS.items() if kind.endswith("RoleBinding")]
    assert all(found["subjects"] == [account] for found in bindings)
    assert {f"{found['roleRef']['kind']} {found['roleRef']['name']}" for found in bindings} == {
        "ClusterRole hived",
        "Role hived",
        "ClusterRole system:kube-scheduler",
        "ClusterRole system:volume-scheduler",
        "Role extension-apiserver-authentication-reader",
    }


# -- jobs of tenants --------------------------------------------------------------------------------------------------


JOBS = [found for found in EXAMPLES if found["kind"] in {kind for _, kind in GANG_OWNERS}]


def pod_templates(manifest: Manifest) -> list[tuple[Manifest, int]]:
    """The templates of pods in a job, with how many each stands for."""
    kind, spec = manifest["kind"], manifest["spec"]
    if kind == "PyTorchJob":
        return [(one["template"], one["replicas"]) for one in spec["pytorchReplicaSpecs"].values()]
    if kind == "JobSet":
        jobs = [(one["template"]["spec"], one["replicas"]) for one in spec["replicatedJobs"]]
        return [(job["template"], replicas * job["parallelism"]) for job, replicas in jobs]
    return [(spec["template"], spec["parallelism"])]


def test_examples_are_of_every_kind() -> None:
    assert {(found["apiVersion"].partition("/")[0], found["kind"]) for found in JOBS} == GANG_OWNERS
    metadata = [template["metadata"] for job in JOBS for template, _ in pod_templates(job)]
    assert sum(keys.POD_SPEC in one.get("annotations", {}) for one in metadata) == 1


def test_examples_are_not_the_guides() -> None:
    """Both are applied to one cluster: a Job of the same name would be changed, or refused."""
    guide = (ROOT / "docs" / "tutorials" / "kubernetes.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^metadata: \{name: ([\w-]+)\}$", guide, re.MULTILINE))
    assert named >= {"sweep", "train"}
    assert not named & {found["metadata"]["name"] for found in EXAMPLES}


@pytest.mark.parametrize("manifest", JOBS, ids=lambda found: found["metadata"]["name"])
def test_example_is_placed(manifest: Manifest) -> None:
    """By HiveD, on the cluster of the example spec; it sees its own devices, and has the class of its priority."""
    groups = {}
    owner = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": "job", "uid": "1"}
    metadata = {"name": "pod", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
    for template, _ in pod_templates(manifest):
        spec = template["spec"]
        pod = msgspec.convert({"metadata": {**template["metadata"], **metadata}, "spec": spec}, Pod)
        assert concerns(pod)
        asked = read_request(pod, members_of(manifest, "the example") if gang_owner(pod) is not None else None)
        check_grace(pod, asked, OPPORTUNISTIC_GRACE_SECONDS)
        groups[asked.group] = asked
        (variable,) = spec["containers"][0]["env"]
        assert variable["name"] == "NVIDIA_VISIBLE_DEVICES"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{keys.ISOLATION}']"
        assert spec["schedulerName"] == CONFIG["profiles"][0]["schedulerName"]
        assert spec["priorityClassName"] == ("hived-opportunistic" if asked.priority < 0 else "hived-guaranteed")
    (asked,) = groups.values()
    pods = sum(number for _, number in pod_templates(manifest))
    assert asked.size == (1 if manifest["metadata"]["name"] == "example-sweep" else pods)
    spec = yaml.safe_load(OBJECTS["ConfigMap", "hived-spec"]["data"]["spec.yaml"])
    assert isinstance(Cluster.from_spec(spec).schedule(asked.request()), Bind)


# -- values of the chart ----------------------------------------------------------------------------------------------


def test_schema_knows_all_values() -> None:
    jsonschema_rs.validate(SCHEMA, VALUES)
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    for name, value in VALUES.items():
        properties = SCHEMA["properties"][name].get("properties")
        if isinstance(value, dict) and properties is not None:
            assert set(properties) == set(value), name


def given(values: dict[str, Any]) -> dict[str, Any]:
    """All values, with some others."""
    own = {k: {**VALUES[k], **v} if isinstance(VALUES.get(k), dict) else v for k, v in values.items()}
    return {**VALUES, **own}


@pytest.mark.parametrize(
    "values",
    [
        {"evictAfter": 0, "evictPatience": 3600},
        {"evictAfter": "0.5", "evictPatience": "3600"},
        {"tls": {"secretName": "server", "clientSecretName": "client"}},
        {"spec": '{"physicalCluster": {}, "virtualClusters": {}}'},
        {
            "resources": {
                "requests": {"cpu": 0.5, "memory": "1.5Gi", "example.com/thing": "1"},
                "claims": [{"name": "x"}],
            }
        },
    ],
    ids=json.dumps,
)
def test_right_value(values: dict[str, Any]) -> None:
    jsonschema_rs.validate(SCHEMA, given(values))


def test_bounds_are_the_programs() -> None:
    """A value that the program refuses would make its pods fail again and again."""
    seconds = SCHEMA["definitions"]["seconds"]
    hints = get_type_hints(serve_kubernetes, include_extras=True)
    for name in ("evict_after", "evict_patience"):
        (option,) = hints[name].__metadata__
        assert (seconds["minimum"], seconds["maximum"]) == (option.min, option.max)


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
        {"evictAfter": -1},
        {"evictAfter": "soon"},
        {"evictPatience": 3601},
        {"evictPatience": "3601"},
        {"evictPatience": "3600.5"},
        {"evictPatience": "10000"},
        {"tls": {"clientSecretName": "client"}},
        {"spec": "physicalCluster: {}"},
        {"spec": "anything"},
        {"resources": {"limits": {"memory": "much"}}},
        {"resources": {"requests": {"cpu": -1}}},
        {"resources": {"requests": {"cpu": {"is": 1}}}},
        {"scheduler": {"resources": {"limits": {"memory": "1 Gi"}}}},
        {"resources": {"claims": ["gpu"]}},
        {"eventLog": "/somewhere/without/a/volume"},
    ],
    ids=json.dumps,
)
def test_wrong_value(values: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(SCHEMA, given(values))
