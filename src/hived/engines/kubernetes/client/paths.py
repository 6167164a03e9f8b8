"""Where objects are in the API server's REST API."""

from __future__ import annotations

from urllib.parse import quote


def resource_of(path: str) -> str:
    """``pods`` of ``/api/v1/namespaces/a/pods/b``, ``pods/binding`` of what is below that; for metrics."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else parts
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])


def _in(namespace: str | None, resource: str, *names: str) -> str:
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
    return "/".join((f"{where}/{resource}", *(quote(name, safe="") for name in names)))


def nodes_path() -> str:
    """All nodes."""
    return "/api/v1/nodes"


def node_path(name: str) -> str:
    """One node."""
    return "/api/v1" + _in(None, "nodes", name)


def pods_path(namespace: str | None = None) -> str:
    """All pods; of a namespace, or of all."""
    return "/api/v1" + _in(namespace, "pods")


def pod_path(namespace: str, name: str) -> str:
    """One pod."""
    return "/api/v1" + _in(namespace, "pods", name)


def binding_path(namespace: str, name: str) -> str:
    """Where a pod's Binding is created."""
    return pod_path(namespace, name) + "/binding"


def eviction_path(namespace: str, name: str) -> str:
    """Where a pod's Eviction is created."""
    return pod_path(namespace, name) + "/eviction"


def pod_status_path(namespace: str, name: str) -> str:
    """The status of a pod."""
    return pod_path(namespace, name) + "/status"


def events_path(namespace: str | None = None) -> str:
    """Events about the objects of a namespace; of all of them."""
    return "/api/v1/events" if namespace is None else "/api/v1" + _in(namespace, "events")


def config_maps_path(namespace: str) -> str:
    """All ConfigMaps of a namespace."""
    return "/api/v1" + _in(namespace, "configmaps")


def config_map_path(namespace: str, name: str) -> str:
    """One ConfigMap."""
    return "/api/v1" + _in(namespace, "configmaps", name)


def object_path(api_version: str, namespace: str, plural: str, name: str) -> str:
    """An object of any kind in a namespace; ``batch/v1``, ``jobs``."""
    return f"/apis/{quote(api_version)}" + _in(namespace, plural, name)


def leases_path(namespace: str) -> str:
    """All leases of a namespace."""
    return "/apis/coordination.k8s.io/v1" + _in(namespace, "leases")


def lease_path(namespace: str, name: str) -> str:
    """One lease."""
    return "/apis/coordination.k8s.io/v1" + _in(namespace, "leases", name)
