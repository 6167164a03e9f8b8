"""The playground, with the jobs of the tutorial: they run, are preempted and come again, as it says."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tools.control_plane.cluster import Api, Json, wait_until

ROOT = Path(__file__).parents[3]
TUTORIAL = (ROOT / "docs" / "tutorials" / "kubernetes.md").read_text(encoding="utf-8")
JOBS = "/apis/batch/v1/namespaces/default/jobs"


class Playground(NamedTuple):
    """It runs; ``engine``: what it says of HiveD, for the environment of the command line."""

    process: subprocess.Popen[str]
    kubeconfig: Path
    engine: dict[str, str]


@pytest.fixture
def playground(control_plane: object, tmp_path: Path) -> Iterator[Playground]:
    """With HiveD, on a port of its own. (``control_plane``: without one there is no playground either.)"""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        port = at.getsockname()[1]
    kubeconfig = tmp_path / "kubeconfig"
    options = ("--hived", "--port", str(port), "--kubeconfig", str(kubeconfig))
    command = [sys.executable, "-m", "tools.playground", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if "Ctrl-C ends it" in line:
                    break
            engine = dict(re.findall(r"(HIVED_\w+)=(\S+)", said))
            assert f"KUBECONFIG={kubeconfig}" in said
            yield Playground(process, kubeconfig, engine)
        finally:
            process.kill()


def manifest(name: str) -> str:
    """A file of the tutorial."""
    (found,) = re.findall(rf"```yaml\n(# {re.escape(name)}\n.*?)```", TUTORIAL, re.DOTALL)
    return str(found)


@pytest.mark.smoke
def test_tutorial(playground: Playground) -> None:
    """A Job whose pods are preempted makes others, which wait; the playground's kubelets never let it know."""
    api = Api(playground.kubeconfig)

    def hived(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hived", *arguments]
        environment = {**playground.engine, "COLUMNS": "200"}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)

    def apply(name: str) -> None:
        api("POST", JOBS, yaml.safe_load(manifest(name)))

    def pods(job: str) -> dict[str, Json]:
        found = api("GET", "/api/v1/namespaces/default/pods", labelSelector=f"job-name={job}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def running(job: str) -> set[str]:
        return {name for name, pod in pods(job).items() if pod["status"]["phase"] == "Running"}

    apply("sweep.yaml")
    first = wait_until(lambda: found if len(found := running("sweep")) == 4 else None, "the sweep runs") or set()
    plan = hived("plan", "-f", "-", stdin=manifest("train.yaml"))
    assert plan.returncode == 0, plan.stderr
    assert "default/train (16 GPUs of vision): now, once default/sweep-" in plan.stdout
    apply("train.yaml")
    wait_until(lambda: len(running("train")) == 2, "the gang runs", seen=lambda: pods("train"))
    wait_until(
        lambda: len(pods("sweep").keys() - first) == 2, "the Job makes two pods anew", seen=lambda: pods("sweep")
    )
    status = api("GET", f"{JOBS}/sweep")["status"]
    assert status.get("failed", 0) == 0, "being preempted is no failure"
    assert [one for one in status.get("conditions", ()) if one["type"] in ("Failed", "FailureTarget")] == []

    waits = min(pods("sweep").keys() - first)
    wait_until(lambda: "waits for 8 GPUs" in hived("explain", waits).stdout, "the new one says why it waits")
    events = api("GET", "/api/v1/namespaces/default/events", fieldSelector="reason=HivedPreempted")["items"]
    assert {event["involvedObject"]["name"] for event in events} == first - pods("sweep").keys()

    api.close()
    playground.process.send_signal(signal.SIGINT)
    assert playground.process.wait(120) == 0
    assert not playground.kubeconfig.exists()
