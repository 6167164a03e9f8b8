"""Answers as YAML: ``-o yaml``."""

from __future__ import annotations

import math

import yaml

from .formats import escaped


def yaml_text(value: object) -> str:
    """JSON's values as YAML that is harmless on a terminal too. Lines stay lines, where that can be. O(length)."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, allow_unicode=True, default_flow_style=False, sort_keys=False, width=math.inf
    )
    return escaped(text)


class _Dumper(yaml.SafeDumper):
    """Text with anything harmful in it is quoted, since only there it can be escaped; nothing refers to anything."""

    def ignore_aliases(self, data: object) -> bool:
        """All of it: a list that is said twice is written twice."""
        del data
        return True


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if escaped(text) != text else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represented)
