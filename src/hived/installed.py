"""How hived is installed here, for hints that name the command which adds what is missing."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


def command_for(extra: str) -> str:
    """The command that adds an extra (``figures``, ``kubernetes``) to this installation, from where it came."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        source = json.loads(distribution("hived").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        source = {}
    if "dir_info" not in source:
        return f"{pip} -e '.[{extra}]' in the checkout of hived"
    folder = shlex.quote(f"{unquote(urlsplit(source['url']).path)}[{extra}]")
    return f"{pip} -e {folder}" if source["dir_info"].get("editable") else f"{pip} {folder}"
