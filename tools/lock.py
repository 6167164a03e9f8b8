"""Writes the versions of all packages of the image to ``deploy/requirements.lock``: ``python -m tools.lock``.

pip resolves them, as for a new environment; nothing is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy" / "requirements.lock"
HEAD = "# The packages of the image. Generated: change pyproject.toml, and run `python -m tools.lock`.\n"


def main() -> None:
    """Write the file."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    found = subprocess.run([*command, ".[kubernetes]"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    packages = [one["metadata"] for one in json.loads(found)["install"]]
    lines = sorted(
        f"{one['name'].lower().replace('_', '-')}=={one['version']}\n"
        for one in packages
        if one["name"] != "hived-scheduler"
    )
    LOCK.write_text(HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
