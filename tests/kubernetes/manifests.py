"""The objects of ``deploy/``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PLAIN = DEPLOY / "kubernetes"
MONITORING = PLAIN / "monitoring"
EXAMPLES = DEPLOY / "examples"
CHART = DEPLOY / "helm" / "hived"

Manifest = dict[str, Any]
Key = tuple[str, str, str]  #: kind, namespace (empty: none), name


def documents(text: str) -> list[Manifest]:
    """The objects of a YAML text."""
    return [found for found in yaml.safe_load_all(text) if found is not None]


def in_folder(folder: Path) -> list[Manifest]:
    """The objects of a folder's files, in the order in which ``kubectl apply -f`` takes them."""
    return [one for path in sorted(folder.glob("*.yaml")) for one in documents(path.read_text(encoding="utf-8"))]


def key(manifest: Manifest) -> Key:
    """The identity of an object."""
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def by_key(manifests: Iterable[Manifest]) -> dict[Key, Manifest]:
    """Objects by their identity, which must be unique."""
    found: dict[Key, Manifest] = {}
    for manifest in manifests:
        assert key(manifest) not in found, f"{key(manifest)} is there twice"
        found[key(manifest)] = manifest
    return found


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """The templates of pods in an object, with how many each stands for."""
    kind, spec = manifest["kind"], manifest.get("spec", {})
    if kind == "Job":
        return [{**spec["template"], "count": spec["parallelism"]}]
    if kind == "StatefulSet":
        return [{**spec["template"], "count": spec["replicas"]}]
    if kind == "PyTorchJob":
        return [{**one["template"], "count": one["replicas"]} for one in spec["pytorchReplicaSpecs"].values()]
    if kind == "JobSet":
        return [
            {**template, "count": one["replicas"] * template["count"]}
            for one in spec["replicatedJobs"]
            for template in pod_templates({"kind": "Job", **one["template"]})
        ]
    return []
