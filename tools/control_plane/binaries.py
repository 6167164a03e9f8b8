"""Where a real control plane's programs are: in ``KUBEBUILDER_ASSETS``, on the PATH, in the cache, or built into it.

``python3 -m tools.control_plane.binaries`` finds or builds them, and prints their folder. Standard library only: it
runs before anything is installed. ``HIVED_KUBERNETES=1.20.2`` asks for the oldest version that is supported instead of
the current one; the PATH is then not looked at.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SCRIPTS = Path(__file__).parent
CACHE = Path.home() / ".cache" / "k8s-test-bin"
OLD = "1.20.2"
PROGRESS_S = 20.0  #: between two words of a build that goes on
NAMES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
HOW = (
    f"put {', '.join(NAMES)} into one folder and name it in KUBEBUILDER_ASSETS, "
    "or run `python3 -m tools.control_plane.binaries` where Go is, which builds them"
)


class NoBinariesError(Exception):
    """The programs are not found and cannot be built. The message is one line with the remedy."""


@dataclass(frozen=True)
class Binaries:
    """One control plane's programs."""

    folder: Path
    version: tuple[int, int]  #: of Kubernetes, ``(1, 20)``

    def path(self, name: str) -> Path:
        """One program, without links: its process is known by this path."""
        return (self.folder / name).resolve()


@dataclass(frozen=True)
class _Build:
    """What makes the programs, and where they are afterwards."""

    script: Path
    cache: Path


def find() -> Binaries:
    """Find the programs, or build them (once for all processes). Raises :class:`NoBinariesError`."""
    asked = os.environ.get("HIVED_KUBERNETES", "")
    build = _build_of(asked)
    for folder in _places(build, asked):
        if _complete(folder):
            return Binaries(folder, _version(folder))
    _run(build)
    return Binaries(build.cache, _version(build.cache))


def _build_of(asked: str) -> _Build:
    """How the version that is asked for is had; "": the current one, which is the one in ``go.mod``."""
    module = (SCRIPTS / "go.mod").read_text()
    kubernetes, etcd = (
        re.findall(rf"^require {re.escape(name)} v(\S+)", module, re.MULTILINE)[0]
        for name in ("k8s.io/kubernetes", "go.etcd.io/etcd/server/v3")
    )
    if asked in ("", kubernetes):
        return _Build(SCRIPTS / "build.sh", CACHE / f"{kubernetes}-etcd{etcd}")
    if asked == OLD:
        return _Build(SCRIPTS / "build-1.20.sh", CACHE / f"{OLD}-go1.19")
    raise NoBinariesError(f"HIVED_KUBERNETES is {asked!r}, and what can be built is {kubernetes} and {OLD}: {HOW}")


def _places(build: _Build, asked: str) -> Iterator[Path]:
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        yield Path(assets)
    if not asked and (on_path := shutil.which("kube-apiserver")):
        yield Path(on_path).parent
    yield build.cache


def _complete(folder: Path) -> bool:
    """Programs of different versions do not go together: one place has all, or does not count."""
    return all(os.access(folder / name, os.X_OK) for name in NAMES)


def _version(folder: Path) -> tuple[int, int]:
    said = subprocess.run([folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    if found is None:
        raise NoBinariesError(f"{folder / 'kube-apiserver'} does not tell its version but {said!r}: {HOW}")
    return int(found[1]), int(found[2])


def _run(build: _Build) -> None:
    build.cache.parent.mkdir(parents=True, exist_ok=True)
    with (build.cache.parent / f"{build.cache.name}.lock").open("w") as lock:
        _take(lock)
        if _complete(build.cache):  # another process has built them meanwhile
            return
        shutil.rmtree(build.cache, ignore_errors=True)
        _say(f"building a Kubernetes control plane into {build.cache}: 5 to 10 minutes")
        command = [build.script, build.cache]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True
        ) as process:
            said = _waited_for(process)
        if process.returncode != 0:
            why = (said.strip().splitlines() or ["no word of why"])[-1]
            raise NoBinariesError(f"no Kubernetes control plane, and none could be built ({why}): {HOW}")


def _take(lock: IO[str]) -> None:
    """Take the lock of a build, which another process may hold for minutes."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"waiting for another process, which builds the same control plane and holds {lock.name}")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _waited_for(process: subprocess.Popen[str]) -> str:
    """Wait for a process and return its standard error; progress is printed now and then."""
    started = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=PROGRESS_S)[1]
        except subprocess.TimeoutExpired:
            minutes = (time.monotonic() - started) / 60
            _say(f"still building, for {minutes:.1f} minutes")
        except BaseException:
            process.kill()
            raise


if __name__ == "__main__":
    try:
        print(find().folder)
    except NoBinariesError as error:
        sys.exit(str(error))
