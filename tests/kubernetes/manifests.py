"""The manifests that are checked in, and the jobs of tenants that are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from tools.control_plane.deployed import Manifest, deployed
from tools.render import DEPLOY

Right = tuple[str, str, str, str]  #: verb, group, resource, name (empty: any)


def by_key(manifests: Iterable[Manifest]) -> dict[tuple[str, str], Manifest]:
    """Objects by kind and name, which are unique here even across namespaces."""
    found: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        key = manifest["kind"], manifest["metadata"]["name"]
        assert key not in found, f"{key} is there twice"
        found[key] = manifest
    return found


OBJECTS = by_key(deployed())
EXAMPLES: list[Manifest] = [
    manifest
    for path in sorted((DEPLOY / "examples").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


def rights_of(rules: Iterable[Any]) -> set[Right]:
    """The single rights in rules of a role."""
    return {
        (verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for name in rule.get("resourceNames") or [""]
    }
