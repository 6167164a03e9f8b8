"""The choice of GPUs by Gandiva's Algorithm 1, on servers by affinity."""

from __future__ import annotations

from hived.scheduling.slicing.servers import Host, Servers


def servers(*sizes: int) -> Servers:
    return Servers([((0, number), size, size) for number, size in enumerate(sizes)])


def host(number: int) -> Host:
    return 0, number


def test_the_first_job_gives_a_server_its_affinity_and_the_last_takes_it_away() -> None:
    of = servers(4)
    of.take(((host(0), 2),), 2)
    of.take(((host(0), 1),), 1)
    assert of.affinity[host(0)] == 2
    of.give(((host(0), 2),))
    assert of.affinity[host(0)] == 2
    of.give(((host(0), 1),))
    assert of.affinity[host(0)] == 0


def test_a_server_of_its_own_affinity_comes_before_an_empty_one() -> None:
    of = servers(4, 4)
    of.take(((host(1), 1),), 1)
    assert of.choose(1) == ((host(1), 1),)
    assert of.choose(2) == ((host(0), 2),)


def test_of_those_the_least_loaded_is_taken() -> None:
    of = servers(4, 4)
    of.take(((host(0), 2),), 1)
    of.take(((host(1), 1),), 1)
    assert of.choose(1) == ((host(1), 1),)


def test_an_empty_server_comes_before_one_of_another_affinity() -> None:
    of = servers(4, 4)
    of.take(((host(0), 2),), 2)
    assert of.choose(1) == ((host(1), 1),)


def test_affinity_is_ignored_before_a_job_has_to_share() -> None:
    of = servers(4)
    of.take(((host(0), 2),), 2)
    assert of.choose(1) == ((host(0), 1),)


def test_a_job_is_scattered_where_no_server_has_enough() -> None:
    of = servers(4, 4)
    of.take(((host(0), 3),), 3)
    of.take(((host(1), 3),), 3)
    assert of.choose(2, together=True) is None
    assert of.choose(2) == ((host(0), 1), (host(1), 1))
    assert of.choose(3) is None


def test_a_job_larger_than_a_server_gets_whole_ones_if_there_are_enough() -> None:
    of = servers(4, 4, 4)
    of.take(((host(0), 1),), 1)
    assert of.choose(8) == ((host(1), 4), (host(2), 4))
    assert of.choose(11) == ((host(0), 3), (host(1), 4), (host(2), 4))


def test_the_index_is_right_after_every_change() -> None:
    of = servers(4, 2, 4)
    of.take(((host(0), 4),), 4)
    of.take(((host(1), 1),), 1)
    of.validate({host(0): 1, host(1): 1}, {host(0): 0, host(1): 1, host(2): 4})
    of.give(((host(0), 4),))
    of.validate({host(1): 1}, {host(0): 4, host(1): 1, host(2): 4})
