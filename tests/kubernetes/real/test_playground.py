"""The playground, with the jobs of the tutorial: they run, are preempted and come again, as it says."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.control_plane.cluster import Api, Json, wait_until

ROOT = Path(__file__).parents[3]
TUTORIAL = (ROOT / "docs" / "tutorials" / "kubernetes.md").read_text(encoding="utf-8")
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture
def playground(control_plane: object, tmp_path: Path) -> Iterator[dict[str, str]]:
    """With HiveD, on a port of its own: what it says to export. (``control_plane``: fails where there can be none.)"""
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
            while "Ctrl-C ends it" not in said:
                said += (line := process.stdout.readline())
                assert line, f"it has ended: {said}"
            yield dict(re.findall(r"((?:HIVED|KUBE)\w+)=(\S+)", said))
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
            assert not kubeconfig.exists()
        finally:
            process.kill()


def manifest(name: str) -> str:
    """A file of the tutorial."""
    (found,) = re.findall(rf"```yaml\n(# {re.escape(name)}\n.*?)```", TUTORIAL, re.DOTALL)
    return str(found)


@pytest.mark.smoke
def test_tutorial(playground: dict[str, str]) -> None:
    """A Job whose pods are preempted makes others, which wait; the playground's kubelets never let it know."""
    api = Api(Path(playground["KUBECONFIG"]))

    def hived(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hived", *arguments]
        environment = {**playground, "COLUMNS": "200"}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=environment)

    def pods(job: str) -> dict[str, Json]:
        found = api("GET", "/api/v1/namespaces/default/pods", labelSelector=f"job-name={job}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def wait_running(job: str, number: int) -> set[str]:
        def running() -> set[str]:
            names = {name for name, pod in pods(job).items() if pod["status"]["phase"] == "Running"}
            return names if len(names) == number else set()

        return wait_until(running, f"{job} runs", seen=lambda: pods(job))

    api("POST", JOBS, yaml.safe_load(manifest("sweep.yaml")))
    first = wait_running("sweep", 4)
    plan = hived("plan", "-f", "-", stdin=manifest("train.yaml"))
    assert plan.returncode == 0, plan.stderr
    assert "default/train (16 GPUs of vision): now, once default/sweep-" in plan.stdout
    api("POST", JOBS, yaml.safe_load(manifest("train.yaml")))
    wait_running("train", 2)
    new = wait_until(
        lambda: found if len(found := pods("sweep").keys() - first) == 2 else set(),
        "the Job makes two pods anew",
        seen=lambda: pods("sweep"),
    )
    status = api("GET", f"{JOBS}/sweep")["status"]
    assert status.get("failed", 0) == 0, "being preempted is no failure"
    assert [one for one in status.get("conditions", ()) if one["type"] in ("Failed", "FailureTarget")] == []
    wait_until(lambda: "waits for 8 GPUs" in hived("explain", min(new)).stdout, "the new one says why it waits")
    events = api("GET", "/api/v1/namespaces/default/events", fieldSelector="reason=HivedPreempted")["items"]
    assert {event["involvedObject"]["name"] for event in events} == first - pods("sweep").keys()
    api.close()
