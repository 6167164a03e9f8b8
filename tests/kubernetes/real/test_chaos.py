"""A service that is killed at any moment, an API server that goes away, and crowds; :mod:`tests.kubernetes.chaos`.

``HIVED_KILLS=200`` kills more often than every run can afford.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.chaos import GPUS, VCS, Chaos
from tests.kubernetes.control_plane import ControlPlane

from . import scenes

KILLS = int(os.environ.get("HIVED_KILLS", "15"))
Make = Callable[[int, dict[str, int], int], Chaos]


@pytest.fixture
def make(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Make]:
    """Makes the cluster: nodes, those that each virtual cluster has of them, GPUs of each."""
    made: list[Chaos] = []

    def make(nodes: int, vcs: dict[str, int], gpus: int) -> Chaos:
        made.append(Chaos(control_plane, namespace, tmp_path, 7, nodes, vcs, gpus))
        return made[-1]

    yield make
    for chaos in made:
        chaos.close()


def test_a_service_that_is_killed_again_and_again_recovers_its_state_and_loses_no_gang(make: Make) -> None:
    chaos = make(8, VCS, GPUS)
    chaos.kills(KILLS)
    chaos.settle()
    assert not chaos.found, "\n".join(chaos.found)
    assert chaos.counts["kills"] == KILLS
    assert chaos.counts["bound pods compared"] > 2 * KILLS, (
        "hardly anybody was there to be remembered: nothing was tried"
    )


def test_an_api_server_that_goes_away_again_and_again_costs_nothing_but_time(make: Make) -> None:
    chaos = make(8, VCS, GPUS)
    chaos.start()
    chaos.outages(2)
    chaos.settle()
    assert not chaos.found, "\n".join(chaos.found)
    assert chaos.counts["works that ran"] > 6


def test_a_kube_scheduler_that_ends_since_a_pod_was_made_anew_while_it_did_not_look_is_begun_anew(
    control_plane: ControlPlane, make: Make
) -> None:
    chaos = make(1, {"a": 1}, GPUS)
    chaos.start()
    chaos.cluster.create_pod(scenes.pod("again", "a", 1))
    chaos.wait(chaos.cluster.placed, "it is bound")
    with control_plane.scheduler_stands_still():
        control_plane.restart_api_server()  # its watch breaks: what happened since then is in its next list
        chaos.cluster.delete_pod("again", force=True)
        chaos.cluster.create_pod(scenes.pod("again", "a", 1))
    chaos.wait(chaos.cluster.placed, "the new one is bound")
    assert not chaos.found, "\n".join(chaos.found)


def test_many_pods_at_once_are_all_placed_or_get_a_reason(make: Make) -> None:
    chaos = make(80, {"a": 24, "b": 20, "c": 16}, 8)
    chaos.start()
    chaos.many(400)
    assert not chaos.found, "\n".join(chaos.found)
    assert chaos.counts["pods bound"] > 160


def test_a_tenant_with_many_waiting_pods_does_not_keep_another_from_its_own(
    control_plane: ControlPlane, make: Make
) -> None:
    chaos = make(4, {"a": 2, "b": 2}, 4)
    chaos.start()
    chaos.crowd(60, tries=2)
    assert not chaos.found, "\n".join(chaos.found)
    # it would be 14 a minute with short backoffs, whenever anybody's pod is gone; from 1.33 on kube-scheduler looks at
    # pods in their backoff when it has nothing else to do: each time that one of the four others comes, runs or goes
    most = 5 if control_plane.binaries.version < (1, 33) else 1 + 3 * 4
    assert chaos.counts["looks at a waiting pod"] <= most
