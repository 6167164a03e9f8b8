"""The comments ``#:`` of attributes as their docstrings, and roles of Sphinx as code: an extension of griffe, which
reads the source for the Python reference of the documentation."""

# griffe comes with the extra dev-docs, and the types are checked without it too
# mypy: disable-error-code="import-not-found, misc, no-any-unimported, unused-ignore"

from __future__ import annotations

import re
from typing import Any

import griffe

#: :class:`~hived.errors.RequestError`, and ``double`` backticks, which Markdown has too
_ROLE = re.compile(r":(?:class|func|meth|attr|data|mod):`~?([^`]+)`")


class DocumentedAttributes(griffe.Extension):
    """Runs on every object that has been read."""

    def on_instance(self, *, obj: Any, **_: object) -> None:
        """Give an attribute its comment."""
        if obj.is_alias:
            return
        if obj.docstring is None and obj.is_attribute and obj.lineno is not None:
            lines = obj.parent.filepath.read_text(encoding="utf-8").splitlines()
            text = _comment(lines, obj.lineno - 1, (obj.endlineno or obj.lineno) - 1)
            if text:
                obj.docstring = griffe.Docstring(text, lineno=obj.lineno, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", obj.docstring.value)


def _comment(lines: list[str], first: int, last: int) -> str:
    """The comment behind an assignment, in its lines; else the lines of comment before it."""
    for line in lines[first : last + 1]:
        if "#: " in line:
            return line.partition("#: ")[2].strip()
    before = []
    for line in reversed(lines[:first]):
        if not line.strip().startswith("#:"):
            break
        before.append(line.strip().removeprefix("#:").strip())
    return " ".join(reversed(before))
