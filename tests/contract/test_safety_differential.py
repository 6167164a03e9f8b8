"""Sharing safety: to its guaranteed requests a VC gets the same answers as if it were alone on the cluster.

One cluster is shared; each VC has the same one for itself beside it, where only its guaranteed calls are made. Whatever
the others do, yes stays yes and no stays no, the same groups of its own go for it, and it gets cells of the same shape.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from hived import Bind, Member, Preempt, Request, Wait
from hived.cluster.decisions import Decision, Placement
from hived.spec import ClusterSpec

from ..strategies import feasible_specs, given_in_tiers
from .driver import Driver
from .hardware import Hardware
from .walks import BARE_SPECS, SEEDS, any_request


class Worlds:
    """The shared cluster, and one for each VC alone."""

    def __init__(self, spec: ClusterSpec, seed: int, slow: bool) -> None:
        self.spec = spec
        self.random = Random(seed)
        self.shared = Driver(spec, log=True)
        self.shared.cluster.spare_work(bool(seed % 2))  # the others' choice of victims is none of its own
        self.vcs = [vc.name for vc in spec.virtual_clusters]
        self.alone = {vc: Driver(spec, careful=False) for vc in self.vcs}
        #: preempting groups, which wait for their victims of other tenants until an event ends these
        self.slow = slow
        self.asked: list[Request] = []

    def play(self) -> None:
        """One event in all worlds: mostly a new request."""
        names = sorted([*self.shared.running, *self.shared.preempting])
        waiting = sorted(self.shared.preempting)
        dice = self.random.random()
        if dice < 0.1 and names:
            self.end(self.random.choice(names))
        elif dice < 0.2 and waiting:
            self.finish(self.random.choice(waiting))
        elif dice < 0.3 and self.asked:
            self.ask(self.random.choice(self.asked))
        elif dice < 0.4:
            self.look(self.request())
        else:
            self.asked.append(self.request())
            self.ask(self.asked[-1])

    def request(self) -> Request:
        """A request that the VC would have room for if nothing of it ran; a loan of any size."""
        request = any_request(self.random, self.spec, f"job-{len(self.asked)}")
        return replace(request, guest=False, lazy_preemption=request.lazy_preemption and not self.slow)

    def own_losses(self, driver: Driver, request: Request, decision: Decision) -> set[str]:
        """Guaranteed groups of the VC that lose their cells."""
        if isinstance(decision, Wait):
            return set()
        victims = decision.victims if isinstance(decision, Preempt) else ()
        overtaken = {name for name in decision.overtaken if not driver.preempting[name].request.opportunistic}
        return {name for name in victims if driver.guaranteed(name)} | overtaken | set(decision.downgraded)

    def same(self, request: Request, shared: Decision, alone: Decision) -> None:
        """The two answers are the same as far as the VC can observe."""
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
        if request.group in self.shared.running:
            return
        if request.group in self.shared.preempting:  # alone it runs already; here it may start elsewhere by now
            again = self.shared.ask(request)
            if isinstance(again, Bind):
                self.shared.commit(again)
            return
        if request.opportunistic:
            if not self.slow:
                self.shared.run(request)
            elif isinstance(self.shared.ask(request), Bind):
                self.shared.commit(self.shared.ask(request))
            return
        mine = self.alone[request.vc]
        answer, expected = self.shared.ask(request), mine.ask(request)
        self.same(request, answer, expected)
        if isinstance(answer, Wait) or isinstance(expected, Wait):
            return
        lost = self.own_losses(self.shared, request, answer)
        self.shared.commit(answer)
        mine.commit(expected)  # its own victims end before the next request, as in the shared cluster
        if isinstance(expected, Preempt):
            mine.release(*expected.victims)
            mine.commit(mine.ask(request))
        for name in lost & set(self.shared.running):
            if name not in answer.downgraded:
                self.shared.release(name)
        if isinstance(answer, Preempt) and (not self.slow or not self.shared.preempting[request.group].victims):
            self.finish(request.group)
        # a group that lazy preemption spared runs on in one world and may not in the other: it ends in both
        for driver in (self.shared, mine):
            driver.release(*sorted(lost & set(driver.running)))

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
        """At the end: what a VC could ask for with one pod, or two."""
        for vc in sorted({request.vc for request in self.asked}):
            for priority in (0, 2, 6):
                for members in (Member(1, 1), Member(2, 2), Member(1, self.spec.chains[0].gpus_per_node)):
                    self.look(Request(group="probe", vc=vc, priority=priority, members=(members,)))


def shape(hardware: Hardware, placement: Placement) -> object:
    """A placement as the VC sees it: which pods share a reserved cell, and how close together each one is."""
    seen: dict[object, int] = {}
    pods = []
    for leaves, level in zip(hardware.leaves_of(placement), placement.reserved_levels, strict=True):
        cell = hardware.cell_at(placement.chain, level, leaves)
        pods.append((level, seen.setdefault((level, cell), len(seen)), hardware.common_level(placement.chain, leaves)))
    return placement.chain, tuple(pods)


def play(spec: ClusterSpec, seed: int, slow: bool, steps: int = 40) -> None:
    worlds = Worlds(spec, seed, slow)
    try:
        for _ in range(steps):
            worlds.play()
        worlds.probe()
    except Exception as error:
        error.add_note("\n".join(worlds.shared.lines))
        raise


@given_in_tiers(20, 150, BARE_SPECS, SEEDS, st.booleans())
def test_no_vc_notices_the_others(spec: ClusterSpec, seed: int, slow: bool) -> None:
    """On any cluster, or one reserved to the last GPU; also while preemptions are under way."""
    play(spec, seed, slow)


@given_in_tiers(
    30, 100, feasible_specs(max_gpus=16, tight=True), st.integers(0, 5), st.lists(st.integers(1, 9), max_size=12)
)
def test_all_vcs_have_all_they_reserved_at_once(spec: ClusterSpec, priority: int, loans: list[int]) -> None:
    """Whatever was lent, the largest cells first."""
    driver = Driver(spec)
    for i, gpus in enumerate(loans):
        vc = spec.virtual_clusters[i % len(spec.virtual_clusters)].name
        driver.run(Request(f"loan-{i}", vc, -1, (Member(1, 1 + (gpus - 1) % spec.chains[0].gpus_per_node),)))
    for owner in spec.virtual_clusters:
        cells: list[tuple[int, str, str | None]] = [
            (c.level, c.chain, None) for c in owner.cells for _ in range(c.number)
        ]
        cells += [(pin.level, pin.chain, pin.pinned_cell_id) for pin in owner.pinned]
        for number, (level, name, pin) in enumerate(sorted(cells, key=lambda cell: -cell[0])):
            chain = spec.chain(name)
            cell_type = chain.levels[min(level, chain.node_level) - 1].cell_type
            whole = Member(max(1, chain.levels[level - 1].gpus // chain.gpus_per_node), cell_type=cell_type)
            request = Request(f"{owner.name}-{number}", owner.name, priority, (whole,), pinned_cell_id=pin)
            assert not isinstance(driver.run(request), Wait), request
    held = sum(len(pod.leaf_cells) for run in driver.running.values() for pod in run.pods)
    assert held == sum(chain.gpus for chain in spec.chains)
