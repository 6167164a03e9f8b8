"""The choice of GPUs by Gandiva's Algorithm 1, on servers by affinity; and who refuses jobs that take turns."""

from __future__ import annotations

import pytest

from hived.cluster.cluster import Cluster
from hived.errors import PolicyError
from hived.policies import FIFO, Gandiva
from hived.scheduling import Policies, Scheduler
from hived.scheduling.slicing.servers import Host, Servers

from ..helpers import nodes


def servers(*sizes: int) -> Servers:
    return Servers([((0, number), size, size) for number, size in enumerate(sizes)])


def host(number: int) -> Host:
    return 0, number


def test_first_job_gives_a_server_its_affinity() -> None:
    """The last one takes it away."""
    of = servers(4)
    of.take(((host(0), 2),), 2)
    of.take(((host(0), 1),), 1)
    assert of.affinity[host(0)] == 2
    of.give(((host(0), 2),))
    assert of.affinity[host(0)] == 2
    of.give(((host(0), 1),))
    assert of.affinity[host(0)] == 0


#: jobs by (server, GPUs), the GPUs of the next one, and where it goes
CHOICES = {
    "its own affinity first": ([(1, 1)], 1, [(1, 1)]),
    "an empty server before another affinity": ([(0, 2)], 1, [(1, 1)]),
    "an empty server for a new affinity": ([(1, 1)], 2, [(0, 2)]),
    "scattered where none has enough": ([(0, 3), (1, 3)], 2, [(0, 1), (1, 1)]),
}


@pytest.mark.parametrize(("jobs", "gpus", "where"), CHOICES.values(), ids=CHOICES)
def test_choice(jobs: list[tuple[int, int]], gpus: int, where: list[tuple[int, int]]) -> None:
    of = servers(4, 4)
    for number, taken in jobs:
        of.take(((host(number), taken),), taken)
    assert of.choose(gpus) == tuple((host(number), taken) for number, taken in where)


def test_least_loaded_of_its_affinity() -> None:
    of = servers(4, 4)
    of.take(((host(0), 2),), 1)
    of.take(((host(1), 1),), 1)
    assert of.choose(1) == ((host(1), 1),)


def test_affinity_is_ignored_before_a_job_has_to_share() -> None:
    of = servers(4)
    of.take(((host(0), 2),), 2)
    assert of.choose(1) == ((host(0), 1),)


def test_job_is_not_scattered_if_it_is_to_be_together() -> None:
    of = servers(4, 4)
    for number in range(2):
        of.take(((host(number), 3),), 3)
    assert of.choose(2, together=True) is None
    assert of.choose(3) is None


def test_large_job_gets_whole_servers() -> None:
    of = servers(4, 4, 4)
    of.take(((host(0), 1),), 1)
    assert of.choose(8) == ((host(1), 4), (host(2), 4))
    assert of.choose(11) == ((host(0), 3), (host(1), 4), (host(2), 4))


def test_index_is_right_after_every_change() -> None:
    of = servers(4, 2, 4)
    of.take(((host(0), 4),), 4)
    of.take(((host(1), 1),), 1)
    of.validate({host(0): 1, host(1): 1}, {host(0): 0, host(1): 1, host(2): 4})
    of.give(((host(0), 4),))
    of.validate({host(1): 1}, {host(0): 4, host(1): 1, host(2): 4})


def test_engine_without_a_probe_refuses_taking_turns() -> None:
    """When it starts, and in a new spec, which changes nothing."""
    with pytest.raises(PolicyError, match="share GPUs, which is only simulated"):
        Scheduler(Cluster(nodes(1)), Gandiva(), lambda _: None)
    policies = Policies(FIFO(), {"a": FIFO()})
    Scheduler(Cluster(nodes(1)), policies, lambda _: None)
    before = policies["a"]
    with pytest.raises(PolicyError, match="gandiva"):
        policies.assign({"a": Gandiva()})
    assert policies["a"] is before
