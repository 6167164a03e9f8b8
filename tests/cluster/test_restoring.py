"""Groups that a spec or a trade made opportunistic are guaranteed again where they run, once the cells are back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import strategies as st

from hived import Bind
from hived.cluster import Cluster, Member, Placement, Request
from hived.errors import InfeasibleError
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualClusterSpec

from ..strategies import GPU, NODE, PAIR, SOCKET, cluster_of, given_in_tiers, nodes_of_8, racks, vc

CHAIN = nodes_of_8(1)
VISION = vc("vision", (CHAIN, SOCKET, 1), (CHAIN, GPU, 1))
NLP = vc("nlp", (CHAIN, PAIR, 1), (CHAIN, GPU, 1))
BOTH, VISION_ALONE = cluster_of(CHAIN, VISION, NLP), cluster_of(CHAIN, VISION)


def asks(name: str, vc: str, gpus: int = 1, pods: int = 1) -> Request:
    return Request(name, vc, 0, (Member(pods, gpus),))


def start(cluster: Cluster, *requests: Request) -> list[Request]:
    """Start groups that get guaranteed leaves at once."""
    for request in requests:
        decision = cluster.schedule(request)
        assert isinstance(decision, Bind)
        cluster.commit(decision)
    return list(requests)


def place(cluster: Cluster, request: Request) -> Placement:
    placement = cluster.group(request.group).placement
    assert placement is not None
    return placement


def leaves(cluster: Cluster, request: Request) -> list[int]:
    return sorted(leaf for _, of_pod in place(cluster, request).pods for leaf in of_pod)


def reserved_levels(cluster: Cluster, request: Request) -> tuple[int, ...]:
    return place(cluster, request).reserved_levels


def restore(cluster: Cluster, *requests: Request) -> list[str]:
    """Promote the displaced groups one by one; those that stay displaced."""
    for request in requests:
        if not cluster.group(request.group).guaranteed:
            could = cluster.promotable(request)
            assert cluster.promote(request) == could
            check(cluster)
    return [request.group for request in requests if not cluster.group(request.group).guaranteed]


def check(cluster: Cluster) -> None:
    """The state is sound, and another cluster takes it over as it is."""
    cluster.validate()
    cluster.check_safety()
    fresh = Cluster(cluster.spec)
    fresh.recover(cluster.records())
    assert (fresh.records(), fresh.snapshot()) == (cluster.records(), cluster.snapshot())


def change(cluster: Cluster, *specs: ClusterSpec) -> None:
    for spec in specs:
        cluster.reconfigure(spec)
        check(cluster)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_changed_and_put_back(order: Sequence[int]) -> None:
    """Two groups in a pair stayed opportunistic: the single cell, tightest for the first, would have split the pair."""
    cluster = Cluster(BOTH)
    groups = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)], asks("vision", "vision"))
    alone = next(group for group in groups if leaves(cluster, group) == [0])
    cluster.release(alone.group)
    groups.remove(alone)
    assert [leaves(cluster, group) for group in groups] == [[2], [3], [1]]
    change(cluster, VISION_ALONE, BOTH)
    assert restore(cluster, *[groups[i] for i in order]) == []
    cluster.release("vision")
    start(cluster, asks("next", "vision"))
    assert [leaves(cluster, group) for group in groups[:2]] == [[2], [3]]


def test_with_other_groups_of_the_cluster() -> None:
    """All VCs lose their cells: a cell that one takes first must not be in the way of the others."""
    cluster = Cluster(BOTH)
    groups = start(
        cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)], *[asks(f"vision-{i}", "vision") for i in (1, 2)]
    )
    cluster.release("nlp-0")
    del groups[0]
    change(cluster, cluster_of(CHAIN, vc("other", (CHAIN, NODE, 1))), BOTH)
    assert restore(cluster, *reversed(groups)) == []


def test_three_in_a_socket() -> None:
    both = cluster_of(CHAIN, vc("vision", (CHAIN, GPU, 1)), vc("nlp", (CHAIN, SOCKET, 1), (CHAIN, GPU, 1)))
    for order in permutations(range(4)):
        cluster = Cluster(both)
        groups = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(4)], asks("vision", "vision"))
        ended = next(group for group in groups if reserved_levels(cluster, group) == (GPU,))
        cluster.release(ended.group)
        groups.remove(ended)
        change(cluster, cluster_of(CHAIN, vc("vision", (CHAIN, GPU, 1))), both)
        assert restore(cluster, *[groups[i] for i in order]) == []


def test_gang_in_cells_of_two_types() -> None:
    """Each pod has a cell of its own type again."""
    cluster = Cluster(BOTH)
    alone, paired, beside = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)])
    start(cluster, asks("vision", "vision"))
    cluster.release(alone.group)
    cluster.release(paired.group)
    (gang,) = start(cluster, asks("gang", "nlp", pods=2))
    assert sorted(reserved_levels(cluster, gang)) == [GPU, PAIR]
    for order in ((gang, beside), (beside, gang)):
        change(cluster, VISION_ALONE, BOTH)
        assert restore(cluster, *order) == []
        assert sorted(reserved_levels(cluster, gang)) == [GPU, PAIR]


def test_traded_away_and_back() -> None:
    """Groups in two pairs: the third once had a leaf chosen beside the first, though it runs in the other pair."""

    def shared(nlp: int, vision: int) -> ClusterSpec:
        return cluster_of(CHAIN, vc("nlp", (CHAIN, PAIR, nlp)), vc("vision", (CHAIN, PAIR, vision)))

    for order in permutations(range(3)):
        cluster = Cluster(shared(2, 2))
        groups = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(4)])
        cluster.release("nlp-1")
        del groups[1]
        for spec in (shared(0, 4), shared(2, 2)):
            assert cluster.trade(spec) is not None
            check(cluster)
        assert restore(cluster, *[groups[i] for i in order]) == []


def test_some_cells_taken_and_put_back() -> None:
    """A group that kept a guarantee took the single cell in place of its pair, and so the pair from the other."""
    cluster = Cluster(BOTH)
    groups = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)])
    alone = next(group for group in groups if leaves(cluster, group) == [0])
    cluster.release(alone.group)
    groups.remove(alone)
    change(cluster, cluster_of(CHAIN, VISION, vc("nlp", (CHAIN, GPU, 1))))
    assert sum(cluster.group(group.group).guaranteed for group in groups) == 1
    change(cluster, BOTH)
    assert restore(cluster, *groups) == []


def test_guarantees_go_before_lost_ones() -> None:
    """Two groups of vision that fit its socket keep their guarantees: the first once took the single cell alone."""
    cluster = Cluster(BOTH)
    groups = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)])
    change(cluster, cluster_of(CHAIN, vc("vision", (CHAIN, NODE, 1))))
    cluster.release("nlp-0")
    start(cluster, asks("wide", "vision", 4))
    narrow = start(cluster, *[asks(f"vision-{i}", "vision") for i in (1, 2)])
    cluster.release("wide")
    assert [leaves(cluster, group) for group in (*groups[1:], *narrow)] == [[2], [3], [0], [1]]
    report = cluster.reconfigure(BOTH)
    check(cluster)
    assert (report.downgraded, report.kept) == ((), ("nlp-1", "nlp-2", "vision-1", "vision-2"))
    assert [reserved_levels(cluster, group) for group in narrow] == [(SOCKET,), (SOCKET,)]


def test_restored_once_another_group_ends() -> None:
    """A group that started meanwhile has the cell."""
    cluster = Cluster(BOTH)
    first, second, third = start(cluster, *[asks(f"nlp-{i}", "nlp") for i in range(3)])
    change(cluster, VISION_ALONE, BOTH)
    cluster.release(first.group)
    (meanwhile,) = start(cluster, asks("meanwhile", "nlp", 2))
    assert restore(cluster, second, third) != []
    cluster.release(meanwhile.group)
    assert restore(cluster, second, third) == []


def any_spec(random: Random, chain: ChainSpec, levels: Sequence[int]) -> ClusterSpec:
    """A feasible spec of two or three VCs."""
    while True:
        vcs = [
            vc(name, *[(chain, level, n) for level in levels if (n := random.randint(0, 2))])
            for name in "abc"[: random.choice((2, 3))]
        ]
        spec = cluster_of(chain, *[one for one in vcs if one.cells])
        try:
            Cluster(spec)
        except InfeasibleError:
            continue
        if spec.virtual_clusters:
            return spec


def with_fewer(random: Random, spec: ClusterSpec) -> ClusterSpec:
    """The spec without some VCs and cells."""

    def fewer(of: VirtualClusterSpec) -> VirtualClusterSpec:
        cells = [replace(cells, number=random.randint(0, cells.number)) for cells in of.cells]
        return replace(of, cells=tuple(cells for cells in cells if cells.number))

    kept = [fewer(of) if random.random() < 0.6 else of for of in spec.virtual_clusters if random.random() < 0.7]
    return replace(spec, virtual_clusters=tuple(kept) or spec.virtual_clusters[:1])


def run_some(random: Random, cluster: Cluster) -> list[Request]:
    """Groups start and end; those that run at last."""
    running: list[Request] = []
    vcs = [of.name for of in cluster.spec.virtual_clusters]
    for number in range(random.randint(4, 40)):
        if running and random.random() < 0.35:
            cluster.release(running.pop(random.randrange(len(running))).group)
            continue
        pods, gpus = random.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 4), (1, 3)))
        request = asks(f"{number}", random.choice(vcs), gpus, pods)
        decision = cluster.schedule(request)
        if isinstance(decision, Bind):
            cluster.commit(decision)
            running.append(request)
        else:
            cluster.cancel(request.group)
    return running


CHAINS = ((nodes_of_8(1), 3), (nodes_of_8(2), 4), (racks(2, 2), 5))


@given_in_tiers(60, 2_000, st.integers(0, 10**9), st.sampled_from(CHAINS))
def test_any_spec_put_back(seed: int, of: tuple[ChainSpec, int]) -> None:
    """Whatever specs, and restarts, come between, and in whatever order the groups have their turns."""
    random, (chain, top) = Random(seed), of
    spec = any_spec(random, chain, range(top, 0, -1))
    cluster = Cluster(spec)
    groups = run_some(random, cluster)
    places = {group.group: place(cluster, group).pods for group in groups}
    for _ in range(random.choice((1, 1, 2))):
        change(cluster, with_fewer(random, spec))
        if random.random() < 0.3:
            records, cluster = cluster.records(), Cluster(cluster.spec)
            cluster.recover(records)
    change(cluster, spec)
    random.shuffle(groups)
    assert restore(cluster, *groups) == []
    assert {group.group: place(cluster, group).pods for group in groups} == places
