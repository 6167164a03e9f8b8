"""The objects of ``deploy/kubernetes``: what runs here is configured by them, and has their rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOYED = Path(__file__).parents[2] / "deploy" / "kubernetes"

Manifest = dict[str, Any]


def deployed() -> list[Manifest]:
    """All of them."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(DEPLOYED.glob("*.yaml")))
    return [found for text in texts for found in yaml.safe_load_all(text) if found is not None]


def find(kind: str, name: str) -> Manifest:
    """The one of a kind with a name."""
    (found,) = (one for one in deployed() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found
