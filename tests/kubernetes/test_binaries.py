"""Where the tests' control plane comes from, and what is said where it cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def find(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Asked for on a machine with an empty cache; only what is in ``home/bin`` and in /bin is on its PATH."""
    return subprocess.run(
        [sys.executable, "-m", "tests.kubernetes.binaries"],
        cwd=ROOT,
        env={"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, says: str, code: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)


def programs(folder: Path, version: str) -> None:
    for name in ("etcd", "kube-scheduler", "kube-controller-manager"):
        program(folder / name, "")
    program(folder / "kube-apiserver", f"Kubernetes v{version}")


@pytest.mark.parametrize("go", ["go version go1.19.8 linux/amd64", ""])
def test_without_a_go_that_is_new_enough_one_line_says_what_is_needed(tmp_path: Path, go: str) -> None:
    if go or Path("/usr/bin/go").exists():
        program(tmp_path / "bin/go", go, code=1)
    found = find(tmp_path)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert "needs Go 1.26.0 or later" in last
    assert "KUBEBUILDER_ASSETS" in last


def test_a_folder_that_is_named_is_used_and_nothing_is_built(tmp_path: Path) -> None:
    programs(tmp_path / "assets", "1.34.1")
    found = find(tmp_path, KUBEBUILDER_ASSETS=str(tmp_path / "assets"))
    assert found.stdout.strip() == str(tmp_path / "assets")
    assert not (tmp_path / ".cache").exists()


def test_the_oldest_version_is_not_the_one_that_happens_to_be_installed(tmp_path: Path) -> None:
    programs(tmp_path / "bin", "1.34.1")
    programs(tmp_path / ".cache/k8s-test-bin/1.20.2-go1.19", "1.20.2")
    assert find(tmp_path).stdout.strip() == str(tmp_path / "bin")
    old = find(tmp_path, HIVED_KUBERNETES="1.20.2")
    assert old.stdout.strip() == str(tmp_path / ".cache/k8s-test-bin/1.20.2-go1.19")


def test_a_version_that_nobody_can_build_is_refused_with_those_that_can_be(tmp_path: Path) -> None:
    found = find(tmp_path, HIVED_KUBERNETES="1.2")
    assert found.returncode == 1
    assert "1.20.2" in found.stderr
