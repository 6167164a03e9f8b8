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


def api_path(
    resource: str, namespace: str | None = None, name: str | None = None, part: str | None = None, of: str = "v1"
) -> str:
    """Objects of one kind: of all namespaces or of one; or one of them, or a part of that one (``pods``' ``binding``).

    ``of``: group and version of their API, ``batch/v1``.
    """
    home = ("namespaces", namespace) if namespace is not None else ()
    words = (word for word in (*home, resource, name, part) if word is not None)
    return "/".join(("/api" if of == "v1" else "/apis", quote(of), *(quote(word, safe="") for word in words)))


def pod_path(key: str, part: str | None = None) -> str:
    """The pod with this ``namespace/name``, or a part of it."""
    namespace, _, name = key.partition("/")
    return api_path("pods", namespace, name, part)


def lease_path(namespace: str, name: str | None = None) -> str:
    """All leases of a namespace, or one of them."""
    return api_path("leases", namespace, name, of="coordination.k8s.io/v1")
