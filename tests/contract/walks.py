"""Any events on any cluster: specs and requests at random, and a walk of tenants, operators and hardware."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from random import Random

from hypothesis import strategies as st

from hived import Bind, Cluster, Member, Preempt, Request, RequestError, Wait, replay
from hived.cluster.decisions import Decision
from hived.cluster.recovery import reconfigured
from hived.exchange.cells import changed
from hived.spec import ClusterSpec
from hived.spec.compiled import GuestsOf

from ..strategies import feasible_specs
from .driver import Driver, devices


def with_guests(spec: ClusterSpec, sharing: Sequence[GuestsOf]) -> ClusterSpec:
    """The same, and the VCs have guests of these."""
    vcs = [replace(vc, guests=whose) for vc, whose in zip(spec.virtual_clusters, cycle(sharing), strict=False)]
    return replace(spec, virtual_clusters=tuple(vcs))


BARE_SPECS = st.booleans().flatmap(lambda tight: feasible_specs(max_gpus=16, tight=tight))
SPECS = st.builds(
    with_guests,
    BARE_SPECS,
    st.one_of(st.just(["none"]), st.lists(st.sampled_from(["none", "own", "all"]), min_size=1, max_size=3)),
)
SEEDS = st.integers(0, 1_000_000)


def any_request(random: Random, spec: ClusterSpec, group: str) -> Request:
    """A request of any tenant, mostly such that its VC could hold it."""
    chains = {chain.name: chain for chain in spec.chains}
    priority = random.choice([-1, -1, -1, 0, 0, 1, 2, 5])
    reserving = [vc for vc in spec.virtual_clusters if vc.cells or vc.pinned]
    owner = random.choice((priority >= 0 and reserving) or spec.virtual_clusters)
    chain, level, number = random.choice(spec.chains), 0, 1
    pinned = None
    if priority >= 0 and owner.pinned and (not owner.cells or random.random() < 0.3):
        pinned = random.choice(owner.pinned)
        chain, level = chains[pinned.chain], pinned.level
    elif priority >= 0 and owner.cells:
        cells = random.choice(owner.cells)
        chain, level, number = chains[cells.chain], cells.level, cells.number
    gpus = chain.levels[(level or len(chain.levels)) - 1].gpus
    largest = min(gpus, chain.gpus_per_node)
    shape = random.choice([1, largest, random.randint(1, largest)])
    members = [Member(random.randint(1, min(4, number * gpus // largest)), shape)]
    if random.random() < 0.2:
        members.append(Member(1, random.randint(1, largest)))
    has_some = level > 0 or priority < 0
    if random.random() < 0.1 and has_some:
        top = min(level or len(chain.levels), chain.node_level)
        members = [Member(1, cell_type=chain.levels[random.randrange(top)].cell_type)]
    return Request(
        group=group,
        vc=owner.name,
        priority=priority,
        members=tuple(members),
        leaf_cell_type=chain.leaf_type if random.random() < 0.2 and has_some and not pinned else None,
        pinned_cell_id=pinned.pinned_cell_id if pinned else None,
        lazy_preemption=random.random() < 0.4,
        within=random.choice(chain.levels).cell_type if random.random() < 0.1 and has_some else None,
        soft_affinity=random.random() < 0.5,
        guest=priority < 0 and random.random() < 0.5,
    )


class Walk:
    """Tenants, operators and hardware, all at once; what fails shows the log."""

    def __init__(
        self,
        spec: ClusterSpec,
        seed: int,
        others: Collection[ClusterSpec] = (),
        breaks: bool = True,
        trades: bool = False,
    ) -> None:
        self.spec = spec
        #: whether VCs trade cells
        self.trades = trades
        #: whether hardware breaks and heals
        self.breaks = breaks
        self.random = Random(seed)
        self.others = list(others)
        self.driver = Driver(spec, log=True)
        self.driver.cluster.spare_work(bool(seed % 2))
        self.asked: list[Request] = []
        #: decisions not committed yet, some of them out of date
        self.open: list[Decision] = []

    def go(self, steps: int) -> None:
        """So many events; the log at the end gives the same cluster."""
        try:
            for _ in range(steps):
                self.event()()
                for name in self.driver.cluster.groups():
                    assert self.driver.cluster.explain(name)
            again = replay(self.driver.lines, Cluster)
            assert again.snapshot() == self.driver.cluster.snapshot()
        except Exception as error:
            error.add_note("\n".join(self.driver.lines))
            raise

    def event(self) -> Callable[[], None]:
        """What happens next."""
        driver = self.driver
        events: list[tuple[int, Callable[[], None]]] = [
            (12, self.ask_and_carry_out),
            (4, self.ask_and_commit),
            (2, self.ask_and_keep),
            (3, self.what_if),
            (2, self.try_out),
            (4, self.ask_and_give_up),
        ]
        events += [(1, self.a_node_turns), (2, self.a_device_turns)] if self.breaks else []
        events += [(3, self.ask_again)] if self.asked else []
        events += [(3, self.commit_late)] if self.open else []
        events += [(4, self.end), (1, self.restart)] if driver.running else []
        events += [(4, self.end_a_victim), (2, self.give_up)] if driver.preempting else []
        events += [(2, self.reconfigure)] if self.others else []
        events += [(4, self.trade)] if self.trades else []
        return self.random.choices([call for _, call in events], [weight for weight, _ in events])[0]

    def request(self) -> Request:
        """A request that was not made yet."""
        return any_request(self.random, self.spec, f"job-{len(self.asked)}")

    def new_request(self) -> Request:
        self.asked.append(self.request())
        return self.asked[-1]

    def suggestion(self) -> list[str] | None:
        """Some of the nodes, now and then."""
        if self.random.random() < 0.8:
            return None
        nodes = self.driver.hardware.nodes
        return self.random.sample(nodes, self.random.randint(1, len(nodes)))

    def some(self, names: Collection[str]) -> str:
        return self.random.choice(sorted(names))

    def knows(self, request: Request) -> bool:
        """Whether the VC of the request is in the spec."""
        return request.vc in {vc.name for vc in self.spec.virtual_clusters}

    def ask_and_carry_out(self) -> None:
        self.driver.run(self.new_request(), self.suggestion())

    def ask_and_commit(self) -> None:
        self.driver.start(self.new_request(), self.suggestion())

    def ask_and_keep(self) -> None:
        decision = self.driver.ask(self.new_request(), self.suggestion())
        if not isinstance(decision, Wait):
            self.open.append(decision)

    def ask_again(self) -> None:
        preempting = [reservation.request for reservation in self.driver.preempting.values()]
        request = self.random.choice(preempting if preempting and self.random.random() < 0.5 else self.asked)
        if self.knows(request):
            group = request.group
            try:
                decision = self.driver.ask(request, self.suggestion())
            except RequestError:  # the new spec has no such pinned cell or device type
                return
            if group in self.driver.running:
                assert isinstance(decision, Bind)
            elif group in self.driver.preempting and not isinstance(decision, Wait):
                reservation = self.driver.preempting[group]
                if decision.placement.pods == reservation.pods:
                    assert isinstance(decision, Preempt) == bool(reservation.victims)
                elif self.random.random() < 0.3:
                    self.open.append(decision)
                    return
            if not isinstance(decision, Wait) and group not in self.driver.running:
                self.driver.commit(decision)

    def commit_late(self) -> None:
        decision = self.open.pop(self.random.randrange(len(self.open)))
        if decision.group in self.driver.running:
            self.driver.check()
            return
        before = self.driver.cluster.snapshot()
        try:
            self.driver.commit(decision)
        except RequestError:
            assert self.driver.cluster.snapshot() == before, "a refused commit has changed the state"
            self.driver.check()

    def end(self) -> None:
        self.driver.release(self.some(self.driver.running))

    def end_a_victim(self) -> None:
        name = self.some(self.driver.preempting)
        reservation = self.driver.preempting[name]
        if reservation.victims:
            self.driver.step(reservation.request)
        else:
            self.driver.run(reservation.request)

    def give_up(self) -> None:
        self.driver.cancel(self.some(self.driver.preempting))

    def ask_and_give_up(self) -> None:
        request = self.request()
        before, running = self.driver.cluster.snapshot(), set(self.driver.running)
        decision = self.driver.ask(request)
        if isinstance(decision, Preempt):
            self.driver.commit(decision)
            self.driver.cancel(request.group)
        elif isinstance(decision, Wait):
            self.driver.cancel(request.group)
        # whose reservation was overtaken, or whose host was downgraded for a moment, has to ask again
        kept = isinstance(decision, Wait | Bind) or not decision.overtaken
        if kept and running <= self.driver.running.keys():
            assert self.driver.cluster.snapshot() == before, "giving up has not given everything back"

    def a_node_turns(self) -> None:
        self.driver.set_node(self.some(self.driver.hardware.nodes), self.random.random() < 0.6)

    def a_device_turns(self) -> None:
        node = self.some(self.driver.hardware.nodes)
        device = self.random.choice(self.driver.hardware.devices_of(node))
        self.driver.set_device(node, device, self.random.random() < 0.6)

    def what_if(self) -> None:
        request = self.request()
        before = self.driver.cluster.snapshot()
        plan = self.driver.cluster.plan(request)
        assert plan.outcome in {"now", "waits", "never"}
        assert isinstance(plan.decision, Wait) == bool(plan.reasons)
        assert self.driver.cluster.snapshot() == before

    def try_out(self) -> None:
        """Some of all that may happen, and nothing of it for good: the log, which is replayed, has none of it."""
        cluster, random, lines = self.driver.cluster, self.random, len(self.driver.lines)
        self.open.clear()  # what was not committed is out of date
        before, doomed = cluster.snapshot(), cluster.doomed()
        nodes = self.driver.hardware
        with cluster.what_if():
            for number in range(random.randint(1, 8)):
                match random.randrange(6):
                    case 0:
                        node = self.some(nodes.nodes)
                        device = random.choice(nodes.devices_of(node))
                        cluster.set_device_health(node, device, random.random() < 0.6)
                    case 1:
                        cluster.set_node_health(self.some(nodes.nodes), random.random() < 0.6)
                    case 2:
                        names = cluster.groups()
                        with suppress(RequestError):  # it waits, and holds nothing
                            cluster.release(random.choice(names) if names else "nobody")
                    case 3:
                        for run in list(self.driver.running.values())[:2]:
                            with suppress(RequestError):  # it is no loan
                                cluster.promote(run.request)
                    case _:
                        request = any_request(random, self.spec, f"tried-{number}")
                        cluster.commit(cluster.schedule(request, self.suggestion()))
            cluster.validate()
        cluster.validate()
        assert (cluster.snapshot(), cluster.doomed()) == (before, doomed)
        assert len(self.driver.lines) == lines

    def restart(self) -> None:
        """The process restarts with the running groups, in any order, and the broken hardware alone."""
        old = self.driver
        placed = {device for run in old.running.values() for device in devices(run.pods)}
        there = {(node, device) for node in old.hardware.nodes for device in old.hardware.devices_of(node)}
        if old.preempting or not placed <= there or any(not run.pods for run in old.running.values()):
            return
        if all(len(run.pods) == run.request.pods for run in old.running.values()):
            records = list(old.cluster.records())
            one = old.recovered(self.spec, reversed(records))
            self.random.shuffle(records)
            assert old.recovered(self.spec, records).cluster.snapshot() == one.cluster.snapshot()

    def reconfigure(self) -> None:
        self.spec = self.random.choice(self.others)
        self.driver.reconfigure(self.spec)

    def trade(self) -> None:
        """Cells change hands; those groups become opportunistic that would under a whole reconfiguration."""
        driver, cluster, after = self.driver, self.driver.cluster, self.traded()
        before = {name for name in driver.running if driver.guaranteed(name)}
        _, whole = reconfigured(cluster.state_now(), after)
        would = cluster.would_downgrade(after)
        assert would == tuple(name for name, _ in whole.downgraded)
        effect = cluster.trade(after)
        if effect is None:  # and nothing has changed
            driver.check()
            return
        self.spec = after
        driver.traded()
        assert effect.downgraded == would
        now = {name for name in driver.running if driver.guaranteed(name)}
        assert (before - now, now - before) == ({*effect.downgraded}, set())
        for name in effect.downgraded:
            driver.running[name].downgraded = True
        driver.check()

    def traded(self) -> ClusterSpec:
        """A spec in which cells of one level or two have changed hands."""
        spec, random = self.spec, self.random
        for _ in range(random.choice([1, 1, 2])):
            givers = [vc for vc in spec.virtual_clusters if vc.cells]
            if givers and len(spec.virtual_clusters) > 1:
                giver = random.choice(givers)
                taker = random.choice([vc for vc in spec.virtual_clusters if vc is not giver])
                cells = random.choice(giver.cells)
                kind, number = (cells.chain, cells.level), random.randint(0, cells.number)
                spec = changed(spec, {giver.name: {kind: -number}, taker.name: {kind: number}})
        return spec
