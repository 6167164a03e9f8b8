"""The escaping of untrusted text for terminals, pipes, JSON and YAML.

>>> clean("job\\x1b[2J")
'job\\\\x1b[2J'
"""

from __future__ import annotations

import re

#: control characters, bidirectional controls, line separators, surrogates
_HARMFUL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY_HARMFUL = re.compile(f"[{_HARMFUL}]")
_HARMFUL_IN_LINES = re.compile(r"(?![\n\t])" + f"[{_HARMFUL}]")


def clean(text: str) -> str:
    """One line in which control characters and bidirectional controls are escaped, ``\\x1b``."""
    return _ANY_HARMFUL.sub(_written_out, text)


def clean_lines(text: str) -> str:
    """The same for lines: line ends and tabs stay."""
    return _HARMFUL_IN_LINES.sub(_written_out, text)


def is_text(given: str) -> bool:
    """Whether an argument or path from the system was UTF-8: Python turns other bytes into surrogates."""
    return not any("\ud800" <= sign <= "\udfff" for sign in given)


def _written_out(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def escaped(text: str) -> str:
    """Lines of JSON or YAML with harmful characters, all of them inside quotes, escaped as ``\\u202e``."""
    return _HARMFUL_IN_LINES.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
