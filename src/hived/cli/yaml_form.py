"""Answers as YAML: ``-o yaml``."""

from __future__ import annotations

import math

import yaml

from .escaping import escaped


def yaml_text(value: object) -> str:
    """JSON's values as YAML that is safe on a terminal. Lines stay lines where possible. O(length)."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, allow_unicode=True, default_flow_style=False, sort_keys=False, width=math.inf
    )
    return escaped(text)


class _Dumper(yaml.SafeDumper):
    """Quotes text with harmful characters, since only quoted text can be escaped; writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """True: a list that occurs twice is written twice."""
        del data
        return True


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if escaped(text) != text else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represented)
