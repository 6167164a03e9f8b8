"""Sharing safety: to its guaranteed requests a VC gets the same answers as if it were alone on the cluster.

One cluster is shared; each VC has the same one for itself beside it, where only its guaranteed calls are made. Whatever
the others do, yes stays yes and no stays no, the same groups of its own go for it, and it gets cells of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hived import Bind, Member, Preempt, Request, Wait
from hived.cluster.decisions import Decision, Placement
from hived.spec import ClusterSpec
from hived.spec.compiled import ChainSpec, PinnedCellSpec, VirtualCellsSpec, VirtualClusterSpec

from ..cells.naive import NaiveBuddies
from ..strategies import chain_of, feasible_specs
from .driver import Driver
from .hardware import Hardware


@dataclass(frozen=True)
class Event:
    """Somebody asks, asks again, looks, or ends something; numbers are taken modulo what there is."""

    kind: str
    vc: int
    priority: int
    pods: tuple[tuple[int, int], ...]
    cap: int
    pick: int
    lazy: bool


def events(most: int) -> st.SearchStrategy[list[Event]]:
    """Lists of events, mostly of tenants who want more."""
    kinds = ["ask", "ask", "ask", "ask", "ask", "look", "again", "end", "end", "finish"]
    pod = st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 9))
    event = st.builds(
        Event,
        kind=st.sampled_from(kinds),
        vc=st.integers(0, 3),
        priority=st.sampled_from([-1, -1, -1, 0, 0, 1, 2, 3, 5]),
        pods=st.lists(pod, min_size=1, max_size=2).map(tuple),
        cap=st.integers(0, 11),
        pick=st.integers(0, 30),
        lazy=st.booleans(),
    )
    return st.lists(event, min_size=6, max_size=most)


@st.composite
def tight_specs(draw: st.DrawFn) -> ClusterSpec:
    """One chain that its tenants have reserved to the last leaf, cut into cells of all levels."""
    fanouts = draw(st.sampled_from([(2, 2), (2, 2, 2), (4, 2), (2, 3), (3, 2), (2, 2, 3), (1, 2, 2), (4,)]))
    node_level = draw(st.integers(1, len(fanouts) + 1))
    chain = chain_of(fanouts, draw(st.integers(1, 2)), node_level)
    naive = NaiveBuddies(chain)
    cells: list[dict[int, int]] = [{} for _ in range(draw(st.integers(2, 3)))]
    pins: list[list[PinnedCellSpec]] = [[] for _ in cells]
    uncut = sorted(naive.free)
    while uncut:
        level, index = uncut.pop()
        if level > 1 and draw(st.integers(0, 2)) > 0:
            uncut += naive.children((level, index))
            continue
        owner = draw(st.integers(0, len(cells) - 1))
        if draw(st.integers(0, 9)) == 0:
            pins[owner].append(PinnedCellSpec(f"pin-{level}-{index}", chain.name, level, index))
        else:
            cells[owner][level] = cells[owner].get(level, 0) + 1
    vcs = [
        VirtualClusterSpec(
            f"vc-{i}",
            tuple(VirtualCellsSpec(chain.name, level, number) for level, number in sorted(mine.items())),
            tuple(pins[i]),
        )
        for i, mine in enumerate(cells)
    ]
    return ClusterSpec((chain,), tuple(vcs))


class Worlds:
    """The shared cluster, and one for each VC alone."""

    def __init__(self, spec: ClusterSpec, slow: bool) -> None:
        self.spec = spec
        self.shared = Driver(spec)
        self.vcs = [vc.name for vc in spec.virtual_clusters]
        self.alone = {vc: Driver(spec, careful=False) for vc in self.vcs}
        #: preempting groups wait for their victims of other tenants until somebody finishes them
        self.slow = slow
        self.asked: list[Request] = []

    def play(self, event: Event) -> None:
        """One event in all worlds."""
        match event.kind:
            case "ask":
                self.asked.append(self.request(event))
                self.ask(self.asked[-1])
            case "look":
                self.look(self.request(event))
            case "again" if self.asked:
                self.ask(self.asked[event.pick % len(self.asked)])
            case "end":
                names = sorted([*self.shared.running, *self.shared.preempting])
                if names:
                    self.end(names[event.pick % len(names)])
            case "finish" if self.shared.preempting:
                names = sorted(self.shared.preempting)
                self.finish(names[event.pick % len(names)])

    def request(self, event: Event) -> Request:
        """What the event asks for: some chain's node holds each pod, sometimes capped, named or pinned."""
        vc = self.spec.virtual_clusters[event.vc % len(self.vcs)]
        chain = self.spec.chains[event.pick % len(self.spec.chains)]
        members = tuple(Member(pods, 1 + (gpus - 1) % chain.gpus_per_node) for pods, gpus in event.pods)
        if event.cap == 0:
            members = (Member(event.pods[0][0], cell_type=chain.levels[event.pick % chain.node_level].cell_type),)
        capped = event.cap in (1, 2, 3)
        pinned = vc.pinned and event.priority >= 0 and event.cap > 8
        return Request(
            group=f"{vc.name}-{len(self.asked)}",
            vc=vc.name,
            priority=event.priority,
            members=members,
            lazy_preemption=event.lazy and not self.slow,
            within=chain.levels[event.pick % len(chain.levels)].cell_type if capped else None,
            soft_affinity=event.cap == 1,
            pinned_cell_id=vc.pinned[event.pick % len(vc.pinned)].pinned_cell_id if pinned else None,
        )

    def own_losses(self, driver: Driver, request: Request, decision: Decision) -> set[str]:
        """Guaranteed groups of the VC that lose their cells."""
        if isinstance(decision, Wait):
            return set()
        victims = decision.victims if isinstance(decision, Preempt) else ()
        overtaken = {name for name in decision.overtaken if not driver.preempting[name].request.opportunistic}
        return {name for name in victims if driver.guaranteed(name)} | overtaken | set(decision.downgraded)

    def same(self, request: Request, shared: Decision, alone: Decision) -> None:
        """The two answers are the same as far as the VC can tell."""
        assert isinstance(shared, Wait) == isinstance(alone, Wait), f"{request}: {shared} but alone {alone}"
        own = self.own_losses(self.shared, request, shared)
        assert own == self.own_losses(self.alone[request.vc], request, alone), f"{request}: {shared} but alone {alone}"
        if not isinstance(shared, Wait) and not isinstance(alone, Wait):
            assert shared.relaxed == alone.relaxed
            assert shape(self.shared.hardware, shared.placement) == shape(self.shared.hardware, alone.placement)

    def look(self, request: Request) -> None:
        """Compare what would be answered."""
        if not request.opportunistic:
            answers = (self.shared.ask(request), self.alone[request.vc].ask(request))
            self.same(request, *answers)
            for driver, answer in zip((self.shared, self.alone[request.vc]), answers, strict=True):
                if isinstance(answer, Wait):
                    driver.cancel(request.group)

    def ask(self, request: Request) -> None:
        """Ask in the worlds that hear of it, compare, and carry it out."""
        if request.group in self.shared.running or request.group in self.shared.preempting:
            return
        if request.opportunistic:
            if not self.slow:
                self.shared.run(request)
            elif isinstance(self.shared.ask(request), Bind):
                self.shared.commit(self.shared.ask(request))
            return
        mine = self.alone[request.vc]
        if request.group in mine.running:  # it was downgraded there, and ended here
            mine.release(request.group)
        answer, expected = self.shared.ask(request), mine.ask(request)
        self.same(request, answer, expected)
        if isinstance(answer, Wait):
            return
        lost = self.own_losses(self.shared, request, answer)
        self.shared.commit(answer)
        mine.run(request)
        for name in lost & set(self.shared.running):
            if name not in answer.downgraded:
                self.shared.release(name)
        if isinstance(answer, Preempt) and (not self.slow or not self.shared.preempting[request.group].victims):
            self.finish(request.group)

    def finish(self, name: str) -> None:
        """End the victims a preempting group still waits for."""
        reservation = self.shared.preempting[name]
        while reservation.victims:
            self.shared.release(min(reservation.victims))
        self.shared.commit(self.shared.ask(reservation.request))
        assert name in self.shared.running

    def end(self, name: str) -> None:
        """A group ends, or gives up waiting for its victims."""
        if name in self.shared.running:
            request = self.shared.running[name].request
            self.shared.release(name)
        else:
            request = self.shared.preempting[name].request
            self.shared.cancel(name)
        if name in self.alone[request.vc].running:
            self.alone[request.vc].release(name)

    def probe(self) -> None:
        """At the end: everything a VC could ask for with one pod, or two."""
        for vc in self.vcs:
            for priority in (0, 2, 6):
                for pods in (1, 2):
                    for gpus in {1, 2, self.spec.chains[0].gpus_per_node}:
                        members = (Member(pods, gpus),)
                        self.look(Request(group="probe", vc=vc, priority=priority, members=members))


def shape(hardware: Hardware, placement: Placement) -> object:
    """A placement as the VC sees it: which pods share a reserved cell, and how close together each one is."""
    seen: dict[object, int] = {}
    pods = []
    for leaves, level in zip(hardware.leaves_of(placement), placement.reserved_levels, strict=True):
        cell = hardware.cell_at(placement.chain, level, leaves)
        pods.append((level, seen.setdefault(cell, len(seen)), hardware.common_level(placement.chain, leaves)))
    return placement.chain, tuple(pods)


def play(spec: ClusterSpec, played: list[Event], slow: bool) -> None:
    worlds = Worlds(spec, slow)
    for event in played:
        worlds.play(event)
    worlds.probe()


@settings(max_examples=70)
@given(tight_specs(), events(30))
def test_on_a_cluster_reserved_to_the_last_gpu_nobody_notices_the_others(
    spec: ClusterSpec, played: list[Event]
) -> None:
    play(spec, played, slow=False)


@settings(max_examples=50)
@given(feasible_specs(max_gpus=16), events(30))
def test_on_any_cluster_nobody_notices_the_others(spec: ClusterSpec, played: list[Event]) -> None:
    play(spec, played, slow=False)


@settings(max_examples=60)
@given(st.one_of(tight_specs(), feasible_specs(max_gpus=16)), events(30))
def test_while_preemptions_are_under_way_nobody_notices_the_others(spec: ClusterSpec, played: list[Event]) -> None:
    play(spec, played, slow=True)


@given(tight_specs(), st.integers(0, 5), st.lists(st.integers(1, 9), max_size=12))
def test_all_vcs_can_have_all_they_reserved_at_once_whatever_was_lent(
    spec: ClusterSpec, priority: int, loans: list[int]
) -> None:
    driver = Driver(spec)
    chain: ChainSpec = spec.chains[0]
    for i, gpus in enumerate(loans):
        vc = spec.virtual_clusters[i % len(spec.virtual_clusters)].name
        driver.run(Request(f"loan-{i}", vc, -1, (Member(1, 1 + (gpus - 1) % chain.gpus_per_node),)))
    for owner in spec.virtual_clusters:
        for cells in sorted(owner.cells, key=lambda cells: -cells.level):
            gpus = chain.levels[cells.level - 1].gpus
            pods = Member(cells.number * max(1, gpus // chain.gpus_per_node), min(gpus, chain.gpus_per_node))
            request = Request(f"{owner.name}-{cells.level}", owner.name, priority, (pods,))
            assert not isinstance(driver.run(request), Wait), request
        for pin in owner.pinned:
            gpus = chain.levels[pin.level - 1].gpus
            pods = Member(max(1, gpus // chain.gpus_per_node), min(gpus, chain.gpus_per_node))
            request = Request(pin.pinned_cell_id, owner.name, priority, (pods,), pinned_cell_id=pin.pinned_cell_id)
            assert not isinstance(driver.run(request), Wait), request
    assert sum(len(pod.leaf_cells) for run in driver.running.values() for pod in run.pods) == chain.gpus
