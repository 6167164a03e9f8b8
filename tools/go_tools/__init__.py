"""helm and actionlint, which are written in Go: ``go.mod`` beside this file says their versions.

    python -m tools.go_tools helm lint deploy/helm/hived

Go builds a program when it is first asked for, and keeps it in its build cache. helm takes 2 minutes on two cores and
0.3 GB of modules.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

MODULE = Path(__file__).parent


class NoProgramError(Exception):
    """A program is not there and cannot be built. The message is one line with the remedy."""


@functools.cache
def program(name: str) -> Path:
    """Where a program is; it is built if it has to be. Raises :class:`NoProgramError`."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise NoProgramError(f"{name} is built with Go, which is not on the PATH: https://go.dev/dl")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "auto"}
    command = [go, "-C", str(MODULE), "tool", "-n", name]
    built = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if built.returncode != 0:
        why = (built.stderr.strip().splitlines() or ["no word of why"])[-1]
        raise NoProgramError(f"{name} cannot be built by `{' '.join(command)}`: {why}")
    return Path(built.stdout.strip())
