"""Taking turns: the cycle of slices on one server, the choice of GPUs by Gandiva's Algorithm 1, and who refuses it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.errors import PolicyError, ensure
from hived.policies import FIFO, Gandiva
from hived.policies.gandiva.rotation import rotation
from hived.policies.gandiva.servers import Host, Servers
from hived.scheduling import Policies, Scheduler

from .helpers import nodes

gangs = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=9)


def check_servers(of: Servers, jobs: dict[Host, int], free: dict[Host, int]) -> None:
    """Compare with the number of jobs and free GPUs of each host, counted anew. O(hosts)."""
    ensure(of.free == free, f"free GPUs of servers: {of.free} {free}")
    ensure({h: n for h, n in of.jobs.items() if n} == jobs, f"jobs on servers: {of.jobs} {jobs}")
    ensure(of.idle == sum(free.values()), "idle GPUs of servers")
    at: dict[tuple[int, int], list[Host]] = {}
    for host in sorted(of.gpus):
        at.setdefault((of.affinity[host], of.free[host]), []).append(host)
        ensure(bool(of.affinity[host]) == bool(jobs.get(host)), f"affinity of {host}")
    ensure(at == of._at, "servers by affinity and free GPUs")
    nearly = [len(hosts) for (affinity, free), hosts in at.items() if affinity and 4 * free >= 3 * of.smallest]
    ensure(of.nearly_empty == sum(nearly), "nearly empty servers")


def test_six_jobs_on_four_gpus() -> None:
    cycle = rotation(4, (1,) * 6)
    assert [[gang for gang, _ in one] for one in cycle.slices] == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]
    assert dict(cycle.slices[0])[0] == dict(cycle.slices[1])[0], "a job that runs on keeps its GPU"
    assert cycle.shares == pytest.approx([4 / 6] * 6)


def test_nobody_is_suspended_where_all_fit() -> None:
    cycle = rotation(4, (2, 1, 1))
    assert cycle.shares == (1.0, 1.0, 1.0)
    assert cycle.resumes == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("gpus", "sizes", "weights", "priorities", "shares"),
    [
        (2, (2, 2), (3, 1), (), [0.75, 0.25]),
        (4, (2, 2, 2, 2), (), (1, 0, 0, 0), [1, 1 / 3, 1 / 3, 1 / 3]),
        (4, (4, 4), (), (1, 0), [1.0, 0.0]),
        (4, (4, 1, 1, 2), (), (), [0.5] * 4),
        (2, (4, 1), (), (), [0.0, 1.0]),
    ],
    ids=["weights", "what priority leaves", "priority leaves nothing", "a gang has its rounds", "too large"],
)
def test_shares(
    gpus: int, sizes: tuple[int, ...], weights: tuple[int, ...], priorities: tuple[int, ...], shares: list[float]
) -> None:
    assert rotation(gpus, sizes, weights, priorities).shares == pytest.approx(shares)


@example(gpus=3, of=[(1, 1, 0), (1, 1, 0), (2, 1, 0)])  # no aligned pair is free
@settings(max_examples=30)
@given(gpus=st.integers(1, 8), of=gangs)
def test_no_gpu_is_shared_or_idle_at_one_time(gpus: int, of: list[tuple[int, int, int]]) -> None:
    """Turns add up, and a higher priority is never suspended for a lower one of its size."""
    sizes, weights, priorities = (tuple(column) for column in zip(*of, strict=True))
    cycle = rotation(gpus, sizes, weights, priorities)
    for one in cycle.slices:
        used = [position for _, positions in one for position in positions]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(gpus))
        assert all(len(positions) == sizes[gang] for gang, positions in one)
        left = gpus - len(used)
        runs = {gang for gang, _ in one}
        for other in set(range(len(sizes))) - runs:
            assert sizes[other] > left, "no GPU is idle that a job could have"
            assert not [gang for gang in runs if sizes[other] <= sizes[gang] and priorities[other] > priorities[gang]]
    for gang, turns in enumerate(cycle.turns):
        assert sum(share for _, share in turns) == pytest.approx(cycle.shares[gang])


@settings(max_examples=30)
@given(gpus=st.integers(1, 8), number=st.integers(1, 40), size=st.sampled_from([1, 2, 4]))
def test_equal_jobs_have_equal_shares(gpus: int, number: int, size: int) -> None:
    places = gpus // size
    shares = rotation(gpus, (size,) * number).shares
    assert shares == pytest.approx([min(1.0, places / number)] * number)


# -- Algorithm 1, on servers by affinity ------------------------------------------------------------------------------


def servers(*sizes: int) -> Servers:
    return Servers([((0, number), size, size) for number, size in enumerate(sizes)])


def host(number: int) -> Host:
    return 0, number


def test_first_job_gives_a_server_its_affinity() -> None:
    """The last one takes it away."""
    of = servers(4)
    of.allocate(((host(0), 2),), 2)
    of.allocate(((host(0), 1),), 1)
    assert of.affinity[host(0)] == 2
    of.release(((host(0), 2),))
    assert of.affinity[host(0)] == 2
    of.release(((host(0), 1),))
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
        of.allocate(((host(number), taken),), taken)
    assert of.choose(gpus) == tuple((host(number), taken) for number, taken in where)


def test_least_loaded_of_its_affinity() -> None:
    of = servers(4, 4)
    of.allocate(((host(0), 2),), 1)
    of.allocate(((host(1), 1),), 1)
    assert of.choose(1) == ((host(1), 1),)


def test_affinity_is_ignored_before_a_job_has_to_share() -> None:
    of = servers(4)
    of.allocate(((host(0), 2),), 2)
    assert of.choose(1) == ((host(0), 1),)


def test_job_is_not_scattered_if_it_is_to_be_together() -> None:
    of = servers(4, 4)
    for number in range(2):
        of.allocate(((host(number), 3),), 3)
    assert of.choose(2, together=True) is None
    assert of.choose(3) is None


def test_large_job_gets_whole_servers() -> None:
    of = servers(4, 4, 4)
    of.allocate(((host(0), 1),), 1)
    assert of.choose(8) == ((host(1), 4), (host(2), 4))
    assert of.choose(11) == ((host(0), 3), (host(1), 4), (host(2), 4))


def test_index_is_right_after_every_change() -> None:
    of = servers(4, 2, 4)
    of.allocate(((host(0), 4),), 4)
    of.allocate(((host(1), 1),), 1)
    check_servers(of, {host(0): 1, host(1): 1}, {host(0): 0, host(1): 1, host(2): 4})
    of.release(((host(0), 4),))
    check_servers(of, {host(1): 1}, {host(0): 4, host(1): 1, host(2): 4})


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
