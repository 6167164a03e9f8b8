"""Manifests of Kubernetes, read as ``kubectl`` reads them: YAML or JSON, several in a file, lists taken apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hived.errors import InputError, Location
from hived.spec import Document, read_documents


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object, and where it is written."""

    where: Location
    value: dict[str, object]


def read_manifests(files: Iterable[str]) -> list[Manifest]:
    """The objects in these files; ``-`` is standard input.

    Raises :class:`~hived.errors.InputError` for what cannot be read or is none, with file and line. O(length).
    """
    found: list[Manifest] = []
    for file in files:
        text, source = _text(file)
        objects = [one for document in read_documents(text, source) for one in _objects(document)]
        if not objects:
            raise InputError(f"{source}: there is no object in it; give the manifest of a pod or of a job")
        found += objects
    return found


def _text(file: str) -> tuple[str, str]:
    source = "standard input" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"-f {source}: cannot be read ({error.strerror})") from None
    try:
        return raw.decode("utf-8-sig"), source
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{Location(source, line)}: not a UTF-8 text; save the manifest as UTF-8") from None


def _objects(document: Document) -> Iterator[Manifest]:
    """The object that a document is, or those in its list."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") else None
    if isinstance(items, list):
        for number, item in enumerate(items):
            yield _manifest(item, document.where(("items", number)))
    else:
        yield _manifest(data, document.where(()))


def _manifest(value: object, where: Location) -> Manifest:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a manifest has keys (apiVersion, kind, metadata, spec), and this has none")
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str):
            raise InputError(f"{where}: a manifest says its {key}, and this does not")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise InputError(f"{where}: it has a number or a text that JSON cannot hold") from None
    return Manifest(where, value)
