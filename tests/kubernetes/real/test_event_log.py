"""The event log of the service: every start opens one of its own in the same file, and all of it replays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.events.codec import from_line
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service writes it."""
    return tmp_path_factory.mktemp("log") / "events.jsonl"


@pytest.fixture(scope="module")
def shared_service(
    ground: Cluster, spec: scenes.Json, log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """One that writes an event log."""
    service = Service(ground.plane, tmp_path_factory.mktemp("service"), spec)
    try:
        service.start(f"--event-log={log}")
        ground.plane.start_scheduler(service.extender)
        yield service
    finally:
        ground.plane.stop_scheduler()
        service.close()


def test_the_decisions_of_two_starts_are_in_the_log_and_replay(service: Service, cluster: Cluster, log: Path) -> None:
    for number in (1, 2):
        cluster.create_pod(scenes.pod(f"job-{number}", "a", 4))
        scenes.wait_for_places(cluster, f"job-{number}")
        if number == 1:
            service.kill()
            service.start(f"--event-log={log}")
    service.stop()
    kinds = [type(from_line(line)).__name__ for line in log.read_text().splitlines()]
    assert [kind for kind in kinds if kind in ("Opened", "Recovered", "Committed")] == [
        *("Opened", "Committed"),
        *("Opened", "Recovered", "Committed"),
    ]
    command = [sys.executable, "-m", "hived", "replay", str(log)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "of 2 starts of an engine: byte for byte the same" in answer.stdout
    service.start(f"--event-log={log}")


def test_a_disk_that_is_full_stops_the_log_and_nothing_else(service: Service, cluster: Cluster) -> None:
    service.stop()
    service.start("--event-log=/dev/full")
    cluster.create_pod(scenes.pod("job", "a", 4))
    scenes.wait_for_places(cluster, "job")
    assert service.log().count("the event log /dev/full ends here: No space left on device") == 1
