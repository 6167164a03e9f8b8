"""Parsing of YAML text to a :class:`Document`: plain data, and lines.

The text is only composed into nodes, never constructed into objects, so no tag can execute code. Differences from a
YAML loader, so that names are read as they are written:

* Mapping keys are text: a virtual cluster may be called ``on`` or ``007``.
* Only plain decimals are numbers. Octal (``007``), hexadecimal and base-60 (``1:30``) numbers of YAML 1.1 and dates
  stay text.
* A key given twice in one mapping is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hived.errors import Location, SpecError

from .document import Document, KeyPath, shown

try:  # libyaml when PyYAML was built with it: about ten times as fast
    from yaml import CSafeLoader as _BaseLoader
except ImportError:
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]  # the pure loader, where libyaml is missing

#: mappings and lists inside one another; the dialect itself needs two per level of cells
MAX_DEPTH = 100
#: values that may come from aliases, beyond those spelled out: enough for templates, too few for a bomb
MAX_ALIASED = 100_000

_TAG = "tag:yaml.org,2002:"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} mappings and lists"
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_UNQUOTED_RANGE_IN_FLOW = re.compile(r"cellAddress:\s*[^\"'\s{}\[\],]+\[")

_Pairs = list[tuple[ScalarNode, Node]]


class _Loader(_BaseLoader):
    """A loader that stops at ``MAX_DEPTH``: libyaml's composer recurses in C, and overruns the stack silently.

    The composer calls both methods around every node; their effect in PyYAML is not needed here.
    """

    _depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        del current_index
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise ComposerError(None, None, _TOO_DEEP, current_node.start_mark)

    def ascend_resolver(self) -> None:
        self._depth -= 1


def read_yaml(text: str, source: str) -> Document:
    """The one YAML document in ``text``. ``source`` names it in messages.

    Raises :class:`SpecError` for anything that is not one YAML document of plain values, with the line. O(length).
    """
    roots = _compose(text, source, single=True)
    if not roots:
        raise SpecError("the spec is empty: it needs physicalCluster and virtualClusters", Location(source, 1))
    return _document(roots[0], source)


def read_documents(text: str, source: str) -> Iterator[Document]:
    """All nonempty YAML documents in ``text``: manifests in the form of ``kubectl``.

    Raises as :func:`read_yaml`; invalid YAML anywhere raises at the first document. O(length).
    """
    return (_document(root, source) for root in _compose(text, source, single=False))


def _document(root: Node, source: str) -> Document:
    reader = _Reader(source)
    return Document(reader.plain(root, 0), source, lambda path: reader.line_of(root, path))


def _compose(text: str, source: str, *, single: bool) -> list[Node]:
    """The nonempty documents in ``text``; ``single``: a second one is an error."""
    nodes: list[Node | None] = []
    try:
        loader = _Loader(text)
        try:
            if single:
                nodes.append(loader.get_single_node())
            else:
                while loader.check_node():
                    nodes.append(loader.get_node())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        what = ", ".join(part for part in (error.context, error.problem) if part)
        if "nesting depth" in what:  # libyaml from 0.2.6 on has a limit too, and may read ahead as far as that
            what = _TOO_DEEP
        message = f"not valid YAML: {what}{_yaml_hint(text, line)}"
        raise SpecError(message, Location(source, line, mark.column + 1 if mark else 0)) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"not valid YAML: {error.reason}", Location(source, line)) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise SpecError(f"not valid YAML: {shown(str(error))}", Location(source)) from error
    return [node for node in nodes if node is not None and node.tag != f"{_TAG}null"]


def _yaml_hint(text: str, line: int) -> str:
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if _UNQUOTED_RANGE_IN_FLOW.search(here):
        return '; a range inside { } or [ ] needs quotes: {cellAddress: "n[0-7]"}'
    if "\t" in here:
        return "; indent with spaces, not with tabs"
    return ""


class _Reader:
    """Turns nodes into plain data, and finds the node of a key path."""

    __slots__ = ("_aliased", "_on_path", "_pairs", "_seen", "_source")

    def __init__(self, source: str) -> None:
        self._source = source
        #: nodes converted at least once, by identity; a second visit came through an alias
        self._seen: set[int] = set()
        self._aliased = 0
        #: nodes being converted: a second visit means that the node contains itself
        self._on_path: set[int] = set()
        #: per mapping node: its pairs with merge keys resolved
        self._pairs: dict[int, _Pairs] = {}

    def plain(self, node: Node, depth: int) -> object:
        """``node`` as plain data."""
        if id(node) in self._seen:
            self._aliased += 1
            if self._aliased > MAX_ALIASED:
                raise self._error(node, f"aliases stand for more than {MAX_ALIASED:,} values; spell out less")
        self._seen.add(id(node))
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        if depth >= MAX_DEPTH:
            raise self._error(node, _TOO_DEEP)
        if id(node) in self._on_path:
            raise self._error(node, "an anchor that contains its own alias")
        self._on_path.add(id(node))
        value: object
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            value = {key.value: self.plain(child, depth + 1) for key, child in self._items(node)}
        elif isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            value = [self.plain(child, depth + 1) for child in node.value]
        else:
            raise self._unknown_tag(node)
        self._on_path.discard(id(node))
        return value

    def _scalar(self, node: ScalarNode) -> object:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str" | "timestamp" | "value" | "merge":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() in ("yes", "true", "on")
            case "int":
                return int(text) if _DECIMAL.fullmatch(text) else text
            case "float":
                try:
                    return float(text)
                except ValueError:  # .inf and the like stay text
                    return text
        raise self._unknown_tag(node)

    def _items(self, node: MappingNode) -> _Pairs:
        """The pairs of a mapping: its own, then those merged in with ``<<`` that it does not have itself."""
        if id(node) in self._pairs:
            return self._pairs[id(node)]
        self._pairs[id(node)] = []  # found by a mapping that merges itself
        own: dict[str, tuple[ScalarNode, Node]] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise self._error(key, "a key must be one word, not a mapping or a list")
            if key.tag == f"{_TAG}merge":
                merged.extend(value.value if isinstance(value, SequenceNode) else [value])
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                raise self._error(key, f"key `{shown(key.value)}` is given twice (first at line {first})")
            else:
                own[key.value] = (key, value)
        for other in merged:
            if not isinstance(other, MappingNode):
                raise self._error(other, "`<<` takes a mapping or a list of mappings")
            for key, value in self._items(other):
                own.setdefault(key.value, (key, value))
        pairs = self._pairs[id(node)] = list(own.values())
        return pairs

    def line_of(self, root: Node, path: KeyPath) -> int:
        """The 1-based line of ``path``: of its key in a mapping, of the value itself in a list. O(keys passed)."""
        node, mark = root, root.start_mark
        for part in path:
            if isinstance(node, MappingNode):
                found = next(((k, v) for k, v in self._items(node) if k.value == part), None)
                if found is None:
                    break
                mark, node = found[0].start_mark, found[1]
            elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
            else:
                break
        return int(mark.line) + 1

    def _unknown_tag(self, node: Node) -> SpecError:
        return self._error(node, f"a spec holds plain values only, not the tag `{shown(node.tag)}`")

    def _error(self, node: Node, message: str) -> SpecError:
        mark = node.start_mark
        return SpecError(message, Location(self._source, mark.line + 1, mark.column + 1))
