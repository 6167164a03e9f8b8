"""A real API server takes what is in ``deploy/``, and gives its account the rights that are written there."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.control_plane.cluster import PATIENCE_S, Api, RefusedError, connect, wait_until
from tools.control_plane.deployed import Manifest
from tools.control_plane.plane import ControlPlane, config_version
from tools.render import CHART, helm

from ..manifests import EXAMPLES, OBJECTS, Right, rights_of

ACCOUNT = "system:serviceaccount:hived:hived"
#: roles that Kubernetes brings along: of kube-scheduler, and of anybody who has a name
THEIRS = ("kube-scheduler", "volume-scheduler", "basic-user")


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """All rights, the namespace of the manifests, and the rights of their account."""
    api = Api(control_plane.kubeconfig())
    rights = [found for found in OBJECTS.values() if found["apiVersion"].startswith("rbac.")]
    for found in [OBJECTS["Namespace", "hived"], *rights]:
        apply(api, found)
    yield api
    for found in rights:
        api("DELETE", path_of(found))
    api.close()


@pytest.fixture(autouse=True)
def no_warnings(api: Api) -> Iterator[None]:
    """The API server has nothing to say against what is sent to it: nothing is deprecated."""
    api.warnings.clear()
    yield
    assert api.warnings == []


def path_of(manifest: Manifest) -> str:
    """Where an object is in the API, of the kinds that are in ``deploy/``."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    home = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
    plural = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}.get(kind, f"{kind.lower()}s")
    return f"/{'apis' if '/' in version else 'api'}/{version}/{home}{plural}/{metadata['name']}"


def apply(api: Api, manifest: Manifest, **params: str) -> Manifest:
    """As ``kubectl apply --server-side``: a field that the API does not know is refused."""
    kind = "application/apply-patch+yaml"
    return api("PATCH", path_of(manifest), manifest, kind, fieldManager="tests", force="true", **params)


@pytest.mark.parametrize("which", OBJECTS, ids="/".join)
def test_manifest_is_taken(control_plane: ControlPlane, api: Api, which: tuple[str, str]) -> None:
    manifest = OBJECTS[which]
    if manifest["apiVersion"] == "policy/v1" and control_plane.binaries.version < (1, 21):
        manifest = {**manifest, "apiVersion": "policy/v1beta1"}  # what the same was called before
    apply(api, manifest, dryRun="All")
    with pytest.raises(RefusedError, match="unknwon"):
        apply(api, {**manifest, "unknwon": 1}, dryRun="All")


@pytest.mark.parametrize(
    "manifest", [one for one in EXAMPLES if one["apiVersion"] == "batch/v1"], ids=lambda one: one["metadata"]["name"]
)
def test_example_is_taken(control_plane: ControlPlane, api: Api, manifest: Manifest) -> None:
    """Those of Kubernetes' own kinds."""
    spec = dict(manifest["spec"])
    if control_plane.binaries.version < (1, 21):  # which brought this field
        spec.pop("completionMode", None)
    metadata = {**manifest["metadata"], "namespace": "default"}
    apply(api, {**manifest, "metadata": metadata, "spec": spec}, dryRun="All")


def test_pods_are_admitted(api: Api) -> None:
    """By the Pod Security Standard that the namespace enforces; nobody's job preempts them."""
    template = OBJECTS["StatefulSet", "hived"]["spec"]["template"]
    body = {"metadata": {**template["metadata"], "name": "hived-0"}, "spec": template["spec"]}
    found = api("POST", "/api/v1/namespaces/hived/pods", body, dryRun="All")
    assert found["spec"]["priority"] > 1_000_000_000


def test_helm_installs(control_plane: ControlPlane, api: Api) -> None:
    """A release of another name beside the rest, with TLS; its notes say how to look at it."""
    if control_plane.binaries.version < (1, 21):
        pytest.skip("the chart is for Kubernetes 1.21 and later")
    at = ("second", "--namespace=gpu", f"--kubeconfig={control_plane.kubeconfig()}")
    values = "tls.secretName=server"
    notes = helm("install", *at, str(CHART), "--create-namespace", f"--set={values}")
    assert "kubectl -n gpu port-forward service/second 9096" in notes
    assert "https://127.0.0.1:9096/" in notes
    assert api("GET", "/apis/apps/v1/namespaces/gpu/statefulsets/second")["spec"]["replicas"] == 2
    helm("uninstall", *at)


@pytest.mark.parametrize("namespace", ["hived", "default", "kube-system"])
def test_account_has_its_rights(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """And no others, as the API server says; ``test_deploy.py`` has the list."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    expected = {right for role in THEIRS for right in rights_of(api("GET", f"{roles}/system:{role}")["rules"])}
    expected |= rights_of(OBJECTS["ClusterRole", "hived"]["rules"])
    if namespace == "hived":
        expected |= rights_of(OBJECTS["Role", "hived"]["rules"])
    if namespace == "kube-system":
        name = "extension-apiserver-authentication"
        expected |= {(verb, "", "configmaps", name) for verb in ("get", "list", "watch")}
    with contextlib.suppress(AssertionError):  # RBAC takes effect a moment after it is written; what differs is below
        wait_until(lambda: rights(control_plane, namespace) == expected, "the rights are in force")
    assert rights(control_plane, namespace) == expected


def rights(plane: ControlPlane, namespace: str) -> set[Right]:
    """All that the account may do in a namespace."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    with connect(plane.kubeconfig(), PATIENCE_S) as client:
        answer = client.post(path, json={"spec": {"namespace": namespace}}, headers={"Impersonate-User": ACCOUNT})
    status = answer.raise_for_status().json()["status"]
    assert not status["incomplete"]
    return rights_of(status["resourceRules"])


def test_kube_scheduler_starts(control_plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """With the configuration and the rights of the manifests it leads, is refused nothing, and warns of nothing."""
    kubeconfig = json.loads(control_plane.kubeconfig().read_text())
    kubeconfig["users"][0]["user"] |= {"as": ACCOUNT}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    config = yaml.safe_load(OBJECTS["ConfigMap", "hived-scheduler"]["data"]["config.yaml"])
    minor = control_plane.binaries.version[1]
    config["apiVersion"] = f"kubescheduler.config.k8s.io/{config_version(minor)}"
    config["clientConnection"]["kubeconfig"] = str(tmp_path / "kubeconfig")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [
        str(control_plane.binaries.path("kube-scheduler")),
        f"--config={tmp_path / 'config.yaml'}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        *(["--port=0"] if minor < 24 else []),
    ]
    log, lease = tmp_path / "log", "/apis/coordination.k8s.io/v1/namespaces/hived/leases/hived-kube-scheduler"

    def leads() -> bool:
        with contextlib.suppress(RefusedError):
            return bool(api("GET", lease)["spec"].get("holderIdentity"))
        return False

    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as scheduler:
        try:
            wait_until(lambda: scheduler.poll() is not None or leads(), "it leads", seen=log.read_text)
            assert scheduler.poll() is None, log.read_text()
        finally:
            scheduler.terminate()
    assert "forbidden" not in log.read_text()
    assert minor < 25 or "deprecated" not in log.read_text()  # before, some of the tests' own flags are
    api("DELETE", lease)
