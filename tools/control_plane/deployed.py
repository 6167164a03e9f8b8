"""The objects of ``deploy/kubernetes``: what runs here is configured by them, and has their rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOYED = Path(__file__).parents[2] / "deploy" / "kubernetes" / "hived.yaml"

Manifest = dict[str, Any]


def deployed() -> list[Manifest]:
    """All of them, in the order of the file."""
    return list(yaml.safe_load_all(DEPLOYED.read_text(encoding="utf-8")))


def find(kind: str, name: str) -> Manifest:
    """The one of a kind with a name."""
    (found,) = (one for one in deployed() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found
