"""A cluster spec from a file, a text or plain data: read, check the form, compile.

Errors are :class:`SpecError` with the file, line and key, what is wrong and the way out. All errors of form (unknown
keys, wrong types) are reported at once; of the semantic errors, the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hived.errors import Location, SpecError
from hived.words import path_text

from .compiled import ClusterSpec
from .document import Document
from .form import check_form
from .physical import compile_physical
from .virtual import compile_virtual
from .yaml_source import MAX_DEPTH, read_yaml

#: bytes of a spec, at most: some hundred times those of the largest cluster we have met
_MAX_BYTES = 64 << 20
#: path of a spec
SpecPath = str | Path


def load_spec(path: SpecPath) -> ClusterSpec:
    """The cluster spec in the YAML file at ``path``.

    Raises :class:`SpecError` if it cannot be read, is not YAML, or is invalid. O(nodes + cells spelled out).
    """
    return parse_spec(read_text(path), path_text(path))


def read_text(path: SpecPath) -> str:
    """The text of the file at ``path``. Raises :class:`SpecError` if it cannot be read, or is no text."""
    try:
        with Path(path).open("rb") as file:  # it may be a device that never ends
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(
            f"cannot read the spec: {error.strerror or error}; give the path of a YAML file", Location(path_text(path))
        ) from error
    if len(raw) > _MAX_BYTES:
        most = f"{_MAX_BYTES >> 20} MiB"
        raise SpecError(f"more than {most} are there; give the path of a cluster spec", Location(path_text(path)))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError("not a UTF-8 text; save the spec as UTF-8", Location(path_text(path), line)) from error


def parse_spec(text: str, source: str) -> ClusterSpec:
    """The cluster spec in a YAML ``text``; ``source`` names it in messages. Raises :class:`SpecError`."""
    return _compile(read_yaml(text, source))


def spec_from_dict(data: Mapping[str, object], source: str = "<dict>") -> ClusterSpec:
    """The cluster spec in plain data of the same form as the YAML. Raises :class:`SpecError`, without lines."""
    return _compile(Document(_plain(data, source), source, lambda _: 0))


def _compile(document: Document) -> ClusterSpec:
    spec, ignored = check_form(document)
    physical = compile_physical(spec.physical_cluster, document)
    virtual = compile_virtual(spec.virtual_clusters, physical, document)
    operators = tuple(spec.operators or ())
    return ClusterSpec(physical.chains, virtual, document.source, ignored, operators=operators)


def _plain(value: object, source: str, depth: int = 0) -> object:
    """Any mapping as ``dict`` and any tuple as ``list``, as YAML gives them."""
    if depth > MAX_DEPTH:
        raise SpecError(f"nested deeper than {MAX_DEPTH} mappings and lists", Location(source))
    if isinstance(value, Mapping):
        return {key: _plain(child, source, depth + 1) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child, source, depth + 1) for child in value]
    return value
