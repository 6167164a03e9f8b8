"""Random walks: random events of users, schedulers, kubelets and other clients on a fake cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Any

import yaml
from msgspec.structs import replace as changed

from hived import Cluster, RecordedCluster, replay
from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.engine.states import JobState
from hived.engines.kubernetes.gangs.gang import Binding
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.bind_info import pod_annotations, shared
from hived.engines.kubernetes.pods.objects import Owner, Pod, PodStatus
from hived.exchange import Cells, Offer, Request
from hived.spec.compiled import ClusterSpec

from .fake_kubernetes import Sent, World
from .pods import annotated, foreign, labelled, node, node_names, pod

Members = tuple[Member, ...] | None


class Walk:
    """A random walk over the events of a :class:`~.fake_kubernetes.World`."""

    def __init__(self, spec: ClusterSpec, seed: int, others: Iterable[ClusterSpec] = (), rough: bool = True) -> None:
        #: the event log of each core, one per gang scheduler
        self.lives: list[list[str]] = []
        self.world = World(spec, seed, self._recorded)
        self.random = Random(seed + 1)
        self.others = list(others)
        #: whether other clients change what HiveD has written
        self.rough = rough
        self.numbers = count(1)

    def _recorded(self, spec: ClusterSpec) -> Cluster:
        self.lives.append([])
        return RecordedCluster(spec, self.lives[-1].append)

    def go(self, steps: int) -> None:
        """Run ``steps`` events, then quiesce; replays of the event logs give the same decisions."""
        for step in range(steps):
            self.world.now += self.random.choice([0.1, 0.5, 1.0, 3.0])
            event = self.event()
            self.world.log.append(f"{step}: {event.__name__}")
            event()
        self.world.quiesce()
        self.world.restart()
        self.world.quiesce()
        again = [replay(life, Cluster) for life in self.lives]
        assert again[-1].snapshot() == self.world.gang_scheduler.cluster.snapshot()

    def event(self) -> Callable[[], None]:
        """Draw the next event."""
        world = self.world
        events: list[tuple[int, Callable[[], None]]] = [
            (5, self.pods_come),
            (10 if world.active else 0, self.ask),
            (8 if world.updates else 0, self.deliver),
            (4 if world.node_updates else 0, world.deliver_nodes),
            (8 if world.todo else 0, world.carry_out),
            (4 if world.sent else 0, self.arrive),
            (4 if world.unanswered else 0, self.read_binding),
            (4, self.kubelet),
            (3, self.time_passes),
            (3 if world.pods else 0, self.a_pod_ends),
            (2 if world.pods else 0, self.a_gang_ends),
            (2, self.a_node_changes),
            (2, self.a_foreign_pod_comes),
            (1, self.restart),
            (1, world.restart),
            (1 if self.others else 0, self.respecify),
            (4, self.trade),
            (2 if world.pods else 0, self.all_are_asked_again),
        ]
        if self.rough:
            events += [(2, self.labels_change), (1, self.tamper), (1, self.bind_behind), (1, self.split_brain)]
        return self.random.choices([call for _, call in events], [weight for weight, _ in events])[0]

    def some(self, uids: Iterable[str]) -> str | None:
        """A random one; None: there is none."""
        found = sorted(uids)
        return self.random.choice(found) if found else None

    def pods_come(self) -> None:
        """Create a gang of any kind, whole or in part."""
        rng, number, world = self.random, next(self.numbers), self.world
        vcs = world.spec.virtual_clusters
        owner_vc = rng.choice(vcs)
        vc = owner_vc.name if rng.random() < 0.97 else "nobody"
        size, gpus = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 1, 2, 4])
        priority = rng.choice(["-1", "-1", "opportunistic", "0", "0", "5", "20"])
        created = int(world.now)
        labels = {"priority": priority}
        if rng.random() < 0.3:
            labels["lazy_preemption"] = "true"
        if priority not in ("-1", "opportunistic") and rng.random() < 0.4:
            labels["mode"] = "either"
        pinned = [pin.pinned_cell_id for pin in owner_vc.pinned]
        if pinned and priority not in ("-1", "opportunistic") and rng.random() < 0.5:
            labels["pinned_cell"] = rng.choice(pinned)
        name = f"g{number}" if rng.random() < 0.9 else f"g{rng.randint(1, number)}"
        kind = rng.choice(["labels", "labels", "annotation", "owner", "owner", "alone"])
        made: list[Pod] = []
        members: Members = None
        if kind == "labels":
            many = size + rng.choice([0, 0, 0, 1, -1])
            made = [
                pod(f"{name}-{i}", gpus, vc, created=created, group=name, group_size=str(size), more=labels)
                for i in range(max(1, many))
            ]
        elif kind == "annotation":
            number_of = "-1" if priority == "opportunistic" else priority
            said: dict[str, Any] = {"virtualCluster": vc, "priority": int(number_of), "leafCellNumber": gpus}
            if size > 1:
                said["affinityGroup"] = {"name": name, "members": [{"podNumber": size, "leafCellNumber": gpus}]}
            said["lazyPreemptionEnable"] = "lazy_preemption" in labels
            said["ignoreK8sSuggestedNodes"] = rng.random() < 0.4
            if "pinned_cell" in labels:
                said["pinnedCellId"] = labels["pinned_cell"]
            made = [pod(f"{name}-{i}", said=yaml.safe_dump(said), created=created) for i in range(size)]
        else:
            job = Owner(api_version="batch/v1", kind="Job", name=name, uid=f"job-{number}", controller=True)
            if kind == "alone":
                labels["gang"] = "false"
            else:
                head = rng.random() < 0.8 and rng.random() > 0.8
                members = (Member(size, gpus), Member(1, 1)) if head else (Member(size, gpus),)
            made = [pod(f"{name}-{i}", gpus, vc, created=created, owner=job, more=labels) for i in range(size)]
            if members is not None and len(members) > 1:
                made.append(pod(f"{name}-head", 1, vc, created=created, owner=job, more=labels))
        fresh = [changed(one, metadata=changed(one.metadata, uid=f"{one.key}#{number}")) for one in made]
        taken = {there.key for there in world.pods.values()}
        world.create(*(one for one in fresh if one.key not in taken), members=members, deliver=rng.random() < 0.5)

    def ask(self) -> None:
        uid = self.random.choice(sorted(self.world.active))
        if uid not in self.world.pods or self.world.pods[uid].spec.node_name:
            self.world.active.discard(uid)
            return
        offered = self.world.usable
        if self.random.random() < 0.25:
            offered = self.random.sample(offered, self.random.randint(0, len(offered)))
        if self.world.ask(uid, offered, bind=False) == "node":
            place = self.world.entry(uid).given
            if place is None:
                self.world.active.add(uid)
            else:
                outcome = self.random.choice(["done"] * 6 + ["failed", "lost", "late", "late"])
                self.world.bind(uid, place.node, outcome)

    def all_are_asked_again(self) -> None:
        """A cluster event makes kube-scheduler retry all waiting pods."""
        self.world.active |= {uid for uid, there in self.world.pods.items() if not there.spec.node_name}

    def deliver(self) -> None:
        uid = self.random.choice(sorted(self.world.updates))
        self.world.deliver(uid, newest=self.random.random() < 0.5)

    def arrive(self) -> None:
        self.world.arrive(self.random.choice(self.world.sent))

    def read_binding(self) -> None:
        self.world.read_binding(self.random.choice(sorted(self.world.unanswered)))

    def kubelet(self) -> None:
        self.world.kubelet()
        self.world.step()

    def time_passes(self) -> None:
        self.world.wait(self.random.choice([1.0, 5.0, 30.0]))

    def a_pod_ends(self) -> None:
        """A pod ends or is deleted; its owner may replace it at once, under the same name."""
        self._end(self.random.choice(sorted(self.world.pods)))

    def _end(self, uid: str) -> None:
        there, world = self.world.pods[uid], self.world
        if there.spec.node_name and self.random.random() < 0.4:
            world.write(changed(there, status=PodStatus(phase=self.random.choice(["Succeeded", "Failed"]))))
            return
        world.delete(uid)
        if self.random.random() < 0.5 and uid not in world.pods:
            fresh = world.recreated(there, int(world.now))
            world.create(fresh, members=world.members.get(uid), deliver=False)

    def a_gang_ends(self) -> None:
        gang = self.some(self.world.gang_scheduler.gangs)
        for uid in list(self.world.gang_scheduler.gangs[gang].pods) if gang is not None else ():
            if uid in self.world.pods:
                self._end(uid)

    def a_node_changes(self) -> None:
        name = self.random.choice(node_names(self.world.spec))
        kind = self.random.choice(["well", "well", "well", "not ready", "cordoned", "gone", "marked"])
        deliver = self.random.random() < 0.5
        if kind == "gone":
            self.world.remove_node(name, deliver)
        else:
            bad = self.random.choice(["0", "1, 3", "nonsense"]) if kind == "marked" else None
            self.world.set_node(node(name, kind != "not ready", kind == "cordoned", bad), deliver)
        self.all_are_asked_again()

    def a_foreign_pod_comes(self) -> None:
        """Another scheduler binds a pod with GPUs."""
        gpus = self.random.choice([1, 1, 2, 4, "many"])
        where = self.random.choice(node_names(self.world.spec))
        one = foreign(f"f{next(self.numbers)}", gpus, where, created=int(self.world.now))
        if self.random.random() < 0.3:
            one = annotated(one, ISOLATION=self.random.choice(["0", "1,2", "0,1,2,3"]))
        self.world.untrusted.add(one.metadata.uid)
        self.world.write(one)
        self.world.taint(one)
        if self.random.random() < 0.5:
            self.world.deliver_all()

    def restart(self) -> None:
        self.world.restart(compare=False)

    def respecify(self) -> None:
        spec = self.random.choice(self.others)
        for name in node_names(spec):
            if name not in self.world.nodes and self.random.random() < 0.7:
                self.world.set_node(node(name))
        self.world.respecify(spec)

    def trade(self) -> None:
        """Two tenants post what may match, and something happens while that is written down."""
        rng, world = self.random, self.world
        spec = world.spec
        of = {vc.name: vc.cells for vc in spec.virtual_clusters if vc.cells}
        giver, taker = rng.choice(sorted(of)), rng.choice(spec.virtual_clusters).name
        some = rng.choice(of[giver])
        cells, back = Cells(some.chain, some.level), None
        if rng.random() < 0.3 and taker in of:
            other = rng.choice(of[taker])
            back = Cells(other.chain, other.level)
        start, length = rng.choice([0.0, 0.0, 5.0]), rng.choice([5.0, 40.0])
        world.record.mortal = True
        world.record.meanwhile = self._meanwhile if rng.random() < 0.5 else lambda: None

        def window(at: float) -> tuple[float, float]:
            return at + start, at + start + length

        world.trade(lambda trading, at: trading.offer(Offer(giver, cells, *window(at), back), at))
        if rng.random() < 0.8:
            world.trade(lambda trading, at: trading.request(Request(taker, cells, *window(at), back), at))
        world.record.meanwhile, world.record.mortal = (lambda: None), False
        world.step()

    def _meanwhile(self) -> None:
        """Pods come, and may be placed."""
        self.pods_come()
        for _ in range(3):
            if self.world.active:
                self.ask()

    # -- interference of other clients ----------------------------------------------------------------------------

    def labels_change(self) -> None:
        uid = self.some(self.world.pods)
        if uid is None:
            return
        there = self.world.pods[uid]
        change: dict[str, str | None] = self.random.choice(
            [{"priority": "7"}, {"vc": "elsewhere"}, {"vc": None}, {"group": "other", "group_size": "1"}, {"x": "y"}]
        )
        self.world.taint(there)
        self.world.write(labelled(there, **change))
        self.world.taint(there)
        if there.spec.node_name is None:
            self.world.active.add(uid)

    def tamper(self) -> None:
        """Change the annotations of a bound pod."""
        uid = self.some(u for u, there in self.world.pods.items() if there.spec.node_name)
        if uid is None:
            return
        there = self.world.pods[uid]
        other = self.some(u for u, o in self.world.pods.items() if o.annotation(keys.BIND_INFO))
        info = there.annotation(keys.BIND_INFO) or ""
        notes: dict[str, str | None] = self.random.choice(
            [
                {"BIND_INFO": None},
                {"BIND_INFO": "[" * 50},
                {"BIND_INFO": info.replace("0", "1")},
                {"ISOLATION": "0,1,2,3"},
                {"BIND_INFO": None, "ISOLATION": None},
                {"BIND_INFO": self.world.pods[other].annotation(keys.BIND_INFO)} if other else {"ISOLATION": "x"},
            ]
        )
        self.world.untrusted.add(uid)
        self.world.taint(there)
        self.world.write(annotated(there, **notes))
        self.world.taint(self.world.pods[uid])

    def bind_behind(self) -> None:
        """Another client binds a waiting pod, with invented annotations or none."""
        uid = self.some(u for u, there in self.world.pods.items() if not there.spec.node_name and not there.ended)
        if uid is None:
            return
        devices = self.random.choice([(0,), (0, 1), (2,), (2, 3), (0, 1, 2, 3)])
        place = PodPlacement(self.random.choice(node_names(self.world.spec)), devices)
        chain = self.random.choice(self.world.spec.chains)
        text = shared(
            Placement(chain.name, (place,), (len(chain.levels),)), (Member(1, len(devices)),), self.world.spec
        )
        notes = pod_annotations(place, text) if self.random.random() < 0.8 else {}
        binding = Binding(uid, self.world.pods[uid].key, place.node, notes)
        if self.world.land(Sent(binding, self.world.gang_scheduler, stale=True)):
            self.world.taint(self.world.pods[uid])

    def split_brain(self) -> None:
        """The gang scheduler loses its lease unnoticed; its bindings land under the next one."""
        world = self.world
        placed = [gang for gang in world.gang_scheduler.gangs.values() if gang.state is JobState.RUNNING]
        entries = [entry for gang in placed for entry in gang.pods.values() if not entry.holds]
        late = [(entry.uid, entry.given.node) for entry in entries if entry.given is not None]
        bindings = [Sent(world.gang_scheduler.binding(*one), world.gang_scheduler, stale=True) for one in late]
        world.restart(compare=False)
        world.sent += bindings
