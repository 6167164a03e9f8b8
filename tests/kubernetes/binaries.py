"""Where a real control plane's programs are: in ``KUBEBUILDER_ASSETS``, on the PATH, in the cache, or built into it.

``python3 -m tests.kubernetes.binaries`` finds or builds them, and prints their folder. Standard library only: it runs
before anything is installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.20.2"  #: what ``build.sh`` builds, and with which Go
GO = "1.19"
CACHE = Path.home() / ".cache" / "k8s-test-bin" / f"{KUBERNETES}-go{GO}"
BUILD = Path(__file__).parents[2] / "tools" / "control_plane" / "build.sh"
NAMES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
HOW = (
    f"put {', '.join(NAMES)} into one folder and name it in KUBEBUILDER_ASSETS, "
    "or run `python3 -m tests.kubernetes.binaries` on Debian, which builds them"
)


class NoBinariesError(Exception):
    """None are here and none could be built. The message is one line with the way out."""


@dataclass(frozen=True)
class Binaries:
    """One control plane's programs."""

    folder: Path
    version: tuple[int, int]  #: of Kubernetes, ``(1, 20)``

    def path(self, name: str) -> Path:
        """One program, without links: its process is known by this path."""
        return (self.folder / name).resolve()


def find() -> Binaries:
    """They are found, or built (once, however many processes ask). Raises :class:`NoBinariesError`."""
    for folder in _places():
        if _complete(folder):
            return Binaries(folder, _version(folder))
    _build()
    return Binaries(CACHE, _version(CACHE))


def _places() -> Iterator[Path]:
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        yield Path(assets)
    if on_path := shutil.which("kube-apiserver"):
        yield Path(on_path).parent
    yield CACHE


def _complete(folder: Path) -> bool:
    """Programs of different versions do not go together: one place has all, or does not count."""
    return all(os.access(folder / name, os.X_OK) for name in NAMES)


def _version(folder: Path) -> tuple[int, int]:
    said = subprocess.run([folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    if found is None:
        raise NoBinariesError(f"{folder / 'kube-apiserver'} does not tell its version but {said!r}: {HOW}")
    return int(found[1]), int(found[2])


def _build() -> None:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / f"{CACHE.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _complete(CACHE):  # another process has built them meanwhile
            return
        shutil.rmtree(CACHE, ignore_errors=True)
        built = subprocess.run([BUILD, CACHE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            why = (built.stderr.strip().splitlines() or ["no word of why"])[-1]
            raise NoBinariesError(f"no Kubernetes control plane, and none could be built ({why}): {HOW}")


if __name__ == "__main__":
    try:
        print(find().folder)
    except NoBinariesError as error:
        sys.exit(str(error))
