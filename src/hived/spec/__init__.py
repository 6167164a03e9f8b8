"""The cluster spec: load, validate and compile the YAML dialect of deployed clusters."""

from __future__ import annotations

from .compiled import (
    ChainSpec,
    ClusterSpec,
    LevelSpec,
    PinnedCellSpec,
    VirtualCellsSpec,
    VirtualClusterSpec,
)
from .document import Document
from .loading import SpecPath, load_spec, parse_spec, spec_from_dict
from .quotas import equal_nodes, read_quotas, share_nodes, share_out, spec_from_quotas
from .yaml_source import read_documents

__all__ = [
    "ChainSpec",
    "ClusterSpec",
    "Document",
    "LevelSpec",
    "PinnedCellSpec",
    "SpecPath",
    "VirtualCellsSpec",
    "VirtualClusterSpec",
    "equal_nodes",
    "load_spec",
    "parse_spec",
    "read_documents",
    "read_quotas",
    "share_nodes",
    "share_out",
    "spec_from_dict",
    "spec_from_quotas",
]
