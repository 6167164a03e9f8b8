"""A real API server takes the manifests, and gives their account the rights that it needs and no others."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tools.control_plane.cluster import Api, RefusedError, wait_until
from tools.control_plane.plane import ControlPlane, config_version

from ..manifests import EXAMPLES, PLAIN, Manifest, by_key, in_folder, key, pod_templates

ACCOUNT = "system:serviceaccount:hived:hived"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:hived", "system:authenticated")
PLAIN_OBJECTS = by_key(in_folder(PLAIN))
#: kinds of Kubernetes itself, and their folders in its API
PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "Job": "jobs",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PriorityClass": "priorityclasses",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
}
#: the others are of kinds that somebody else brings
EXAMPLE_OBJECTS = [found for found in in_folder(EXAMPLES) if found["kind"] in PLURALS]

Right = tuple[str, str, str, str]  #: verb, group, resource, name ("": any)

#: of HiveD itself, in every namespace
EVERYWHERE: set[Right] = {
    *((verb, "", "pods", "") for verb in ("get", "list", "watch", "patch", "delete")),
    ("create", "", "pods/binding", ""),
    ("create", "", "pods/eviction", ""),
    ("patch", "", "pods/status", ""),
    *((verb, "", "nodes", "") for verb in ("get", "list", "watch", "patch")),
    *((verb, "", "events", "") for verb in ("create", "list", "patch")),
    *((verb, "batch", "jobs", "") for verb in ("get", "list", "watch")),
    *((verb, "jobset.x-k8s.io", "jobsets", "") for verb in ("get", "list", "watch")),
    *((verb, "kubeflow.org", "pytorchjobs", "") for verb in ("get", "list", "watch")),
}
#: of both containers, in their own namespace
AT_HOME: set[Right] = {
    ("create", "coordination.k8s.io", "leases", ""),
    *((v, "coordination.k8s.io", "leases", n) for v in ("get", "update") for n in ("hived", "hived-kube-scheduler")),
    *((verb, "", "configmaps", "hived-spec") for verb in ("get", "list", "watch")),
    *((verb, "", "configmaps", "hived-exchange") for verb in ("get", "update")),
}


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """All rights, and the namespace of the manifests."""
    api = Api(control_plane.kubeconfig())
    apply(api, PLAIN_OBJECTS["Namespace", "", "hived"])
    yield api
    api.close()


@pytest.fixture(autouse=True)
def no_warnings(api: Api) -> Iterator[None]:
    """The API server has nothing to say against what is sent to it: nothing is deprecated."""
    api.warnings.clear()
    yield
    assert api.warnings == []


@pytest.fixture(scope="module")
def account(control_plane: ControlPlane, api: Api) -> Iterator[httpx.Client]:
    """The account with the rights of the manifests, as a client."""
    rights = [found for found in PLAIN_OBJECTS.values() if found["apiVersion"].startswith("rbac.")]
    for found in rights:
        apply(api, found)
    client = httpx.Client(
        base_url=control_plane.url,
        headers=[
            ("Authorization", f"Bearer {control_plane.admin_token}"),
            ("Impersonate-User", ACCOUNT),
            *(("Impersonate-Group", group) for group in GROUPS),
        ],
        verify=ssl.create_default_context(cafile=control_plane.ca),
        timeout=30,
        trust_env=False,
    )
    with client:
        yield client
    for found in rights:
        api("DELETE", path_of(found))


def path_of(manifest: Manifest) -> str:
    """Where an object is in the API."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    kind, namespace, name = key(manifest)
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{PLURALS[kind]}/{name}"


def apply(api: Api, manifest: Manifest, **params: str) -> Manifest:
    """As ``kubectl apply --server-side``: a field that the API does not know is refused."""
    kind = "application/apply-patch+yaml"
    return api("PATCH", path_of(manifest), manifest, kind, fieldManager="tests", force="true", **params)


# -- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", PLAIN_OBJECTS.values(), ids=lambda found: "/".join(key(found)))
def test_a_manifest_is_taken_as_it_is(control_plane: ControlPlane, api: Api, manifest: Manifest) -> None:
    if manifest["apiVersion"] == "policy/v1" and control_plane.binaries.version < (1, 21):
        manifest = {**manifest, "apiVersion": "policy/v1beta1"}  # what the same was called before
    found = apply(api, manifest, dryRun="All")
    assert contains(found, manifest)


@pytest.mark.parametrize("manifest", EXAMPLE_OBJECTS, ids=lambda found: found["metadata"]["name"])
def test_an_example_is_taken_as_it_is(control_plane: ControlPlane, api: Api, manifest: Manifest) -> None:
    if manifest["kind"] == "Job" and control_plane.binaries.version < (1, 21):  # which brought this field
        manifest = {**manifest, "spec": {k: v for k, v in manifest["spec"].items() if k != "completionMode"}}
    manifest = {**manifest, "metadata": {**manifest["metadata"], "namespace": "default"}}
    found = api("POST", path_of(manifest).rpartition("/")[0], manifest, dryRun="All")
    assert contains(found, manifest)  # what is not known would have been dropped


def test_the_pods_of_the_stateful_set_are_admitted(api: Api) -> None:
    (template,) = pod_templates(PLAIN_OBJECTS["StatefulSet", "hived", "hived"])
    metadata = {**template["metadata"], "name": "hived-0"}
    body = {"metadata": metadata, "spec": template["spec"]}
    found = api("POST", "/api/v1/namespaces/hived/pods", body, dryRun="All")
    assert found["spec"]["priority"] > 1_000_000_000  # nobody's job preempts the scheduler


def test_a_field_that_kubernetes_does_not_know_would_be_refused(api: Api) -> None:
    manifest = PLAIN_OBJECTS["StatefulSet", "hived", "hived"]
    wrong = {**manifest, "spec": {**manifest["spec"], "podManagmentPolicy": "Parallel"}}
    with pytest.raises(RefusedError, match="podManagmentPolicy"):
        apply(api, wrong, dryRun="All")


def contains(whole: Any, part: Any) -> bool:
    """Whether what was sent is in what came back, beside what the server filled in."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contains(whole.get(name), value) for name, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part) or str(whole) == str(part)  # 8 comes back as "8"


# -- rights -----------------------------------------------------------------------------------------------------------


def rights(account: httpx.Client, namespace: str) -> set[Right]:
    """All that the account may do in a namespace, as the API server says."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    answer = account.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=body)
    answer.raise_for_status()
    status = answer.json()["status"]
    assert not status["incomplete"]
    return expanded(status["resourceRules"])


def expanded(rules: list[Any]) -> set[Right]:
    return {
        (verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for name in rule.get("resourceNames") or [""]
    }


def of_kubernetes(api: Api) -> set[Right]:
    """What kube-scheduler's roles give, and what anybody may do who has a name."""
    roles = ("system:kube-scheduler", "system:volume-scheduler", "system:basic-user")
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    return {right for role in roles for right in expanded(api("GET", f"{path}/{role}")["rules"])}


@pytest.mark.parametrize(("namespace", "more"), [("hived", AT_HOME), ("default", set[Right]())])
def test_the_account_has_its_rights_and_no_others(
    api: Api, account: httpx.Client, namespace: str, more: set[Right]
) -> None:
    expected = EVERYWHERE | more | of_kubernetes(api)
    with contextlib.suppress(
        AssertionError
    ):  # RBAC takes effect a moment after it is written; what differs is shown below
        wait_until(lambda: rights(account, namespace) == expected, "the rights are in force")
    assert rights(account, namespace) == expected


def test_kube_systems_authentication_is_all_that_it_reads_there(api: Api, account: httpx.Client) -> None:
    expected = EVERYWHERE | of_kubernetes(api)
    authentication = {
        (verb, "", "configmaps", "extension-apiserver-authentication") for verb in ("get", "list", "watch")
    }
    assert rights(account, "kube-system") == expected | authentication


@pytest.mark.parametrize(
    ("verb", "group", "resource", "namespace"),
    [
        ("get", "", "secrets", "hived"),
        ("list", "", "secrets", "kube-system"),
        ("create", "", "pods", "hived"),
        ("create", "", "pods/exec", "hived"),
        ("delete", "policy", "poddisruptionbudgets", "default"),
        ("deletecollection", "", "pods", "default"),
        ("delete", "", "nodes", ""),
        ("create", "", "nodes", ""),
        ("patch", "", "nodes/status", ""),
        ("get", "", "nodes/proxy", ""),
        ("list", "", "configmaps", "hived"),
        ("get", "", "configmaps", "default"),
        ("update", "", "configmaps", "hived"),
        ("update", "coordination.k8s.io", "leases", "kube-system"),
        ("patch", "batch", "jobs", "default"),
        ("create", "", "serviceaccounts/token", "hived"),
        ("impersonate", "", "users", ""),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
        ("*", "*", "*", ""),
    ],
)
def test_what_the_account_must_not_do_is_denied(
    api: Api, account: httpx.Client, verb: str, group: str, resource: str, namespace: str
) -> None:
    assert not allowed(api, verb, group, resource, namespace)


@pytest.mark.parametrize(
    ("verb", "group", "resource", "namespace", "name"),
    [
        ("patch", "", "pods", "default", ""),
        ("create", "", "pods/binding", "default", ""),
        ("create", "", "pods/eviction", "default", ""),
        ("patch", "", "nodes", "", "gpu-0"),
        ("watch", "kubeflow.org", "pytorchjobs", "default", ""),
        ("watch", "", "configmaps", "hived", "hived-spec"),
        ("update", "coordination.k8s.io", "leases", "hived", "hived"),
    ],
)
def test_what_the_account_has_to_do_is_allowed(
    api: Api, account: httpx.Client, verb: str, group: str, resource: str, namespace: str, name: str
) -> None:
    assert wait_until(lambda: allowed(api, verb, group, resource, namespace, name), "it may")


def allowed(api: Api, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
    resource, _, subresource = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    spec = {
        "user": ACCOUNT,
        "groups": GROUPS,
        "resourceAttributes": {**asked, "namespace": namespace, "name": name},
    }
    answer = api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(answer["status"]["allowed"])


def test_the_spec_can_be_watched_by_its_name_and_no_other_config_map_be_seen(api: Api, account: httpx.Client) -> None:
    apply(api, PLAIN_OBJECTS["ConfigMap", "hived", "hived-spec"])
    path = "/api/v1/namespaces/hived/configmaps"
    seen = wait_until(lambda: account.get(path, params={"fieldSelector": "metadata.name=hived-spec"}), "it is seen")
    assert [found["metadata"]["name"] for found in seen.json()["items"]] == ["hived-spec"]
    assert account.get(path).status_code == 403
    assert account.get(path, params={"fieldSelector": "metadata.name=hived-scheduler"}).status_code == 403
    api("DELETE", f"{path}/hived-spec")


# -- kube-scheduler ---------------------------------------------------------------------------------------------------


def test_kube_scheduler_starts_with_our_configuration_and_these_rights(
    control_plane: ControlPlane, api: Api, account: httpx.Client, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    as_admin = json.loads(control_plane.kubeconfig().read_text())
    (user,) = as_admin["users"]
    user["user"] |= {"as": ACCOUNT, "as-groups": GROUPS}
    kubeconfig.write_text(json.dumps(as_admin))
    config = yaml.safe_load(PLAIN_OBJECTS["ConfigMap", "hived", "hived-scheduler"]["data"]["config.yaml"])
    minor = control_plane.binaries.version[1]
    config["apiVersion"] = f"kubescheduler.config.k8s.io/{config_version(minor)}"
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [
        str(control_plane.binaries.path("kube-scheduler")),
        f"--config={tmp_path / 'config.yaml'}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        *(["--port=0"] if minor < 24 else []),
    ]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as scheduler:
        try:
            lease = "/apis/coordination.k8s.io/v1/namespaces/hived/leases/hived-kube-scheduler"
            wait_until(lambda: scheduler.poll() is not None or held(api, lease), "it leads", seen=log.read_text)
            assert scheduler.poll() is None, log.read_text()
        finally:
            scheduler.terminate()
    assert "forbidden" not in log.read_text()
    assert minor < 25 or "deprecated" not in log.read_text()  # before, some of the tests' own flags are
    api("DELETE", lease)


def held(api: Api, lease: str) -> bool:
    with contextlib.suppress(RefusedError):
        return bool(api("GET", lease)["spec"].get("holderIdentity"))
    return False
