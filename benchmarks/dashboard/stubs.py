"""Made-up clusters that run: a box of 8 GPUs whose next moment a test decides, and one of 65,536 that churns."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from hived.errors import NotFoundError
from hived.server.pictures import (
    Chain,
    Comparison,
    Curves,
    Ended,
    EndedJobs,
    GpuTimeline,
    Holder,
    Layout,
    Level,
    Moment,
    Picture,
    Queue,
    Sample,
    Stay,
    Story,
    Stretch,
    Totals,
    Update,
    VcTotals,
    View,
    VirtualCluster,
    Waiting,
)
from hived.server.schema import Reserved

VIEW = "live"


class LiveStub:
    """A source whose state is set from the test's thread; the server's thread reads it."""

    live = True

    def __init__(self, chains: list[Chain], vcs: list[VirtualCluster], title: str, synthetic: bool = True) -> None:
        self.start = time.time() - 1800
        self.chains = chains
        self.vcs = vcs
        self.title = title
        self.synthetic = synthetic
        self.gpus = sum(len(chain.nodes) * chain.levels[chain.node_level - 1].gpus for chain in chains)
        self.holders: dict[str, Holder] = {}
        self.line: list[Waiting] = []
        self.bad: list[Stretch] = []
        self.over: list[Ended] = []  #: jobs that have ended, the latest first
        self.drained: list[Stretch] = []
        self.updates: list[Update] = []
        self.rebuilt = 0  #: number of the latest update that another cluster came with
        self._layout = self._make_layout()

    def _make_layout(self) -> Layout:
        view = View(key=VIEW, label="this cluster", chains=self.chains)
        return Layout(
            title=self.title,
            clock="unix",
            synthetic=self.synthetic,
            start=self.start,
            end=None,
            vcs=self.vcs,
            views=[view],
        )

    def change(
        self,
        holders: Sequence[Holder] = (),
        gone: Sequence[str] = (),
        queue: list[Waiting] | None = None,
        bad: list[Stretch] | None = None,
        drained: list[Stretch] | None = None,
    ) -> None:
        """The next moment."""
        for ref in gone:
            left = self.holders.pop(ref)
            self.over.insert(
                0,
                Ended(
                    id=left.id,
                    name=left.name,
                    vc=left.vc,
                    gpus=left.gpus,
                    priority=left.priority,
                    state="succeeded",
                    at=time.time(),
                    why="",
                ),
            )
        for holder in holders:
            self.holders[holder.id] = holder
        if queue is not None:
            self.line = queue
        if bad is not None:
            self.bad = bad
        if drained is not None:
            self.drained = drained
        totals = self.totals()
        sample = Sample(
            at=time.time(),
            guaranteed=totals.guaranteed / self.gpus,
            opportunistic=totals.opportunistic / self.gpus,
            fragmentation=totals.fragmentation,
            waiting=len(self.line),
        )
        self.updates.append(
            Update(
                seq=len(self.updates) + 1,
                at=time.time(),
                gone=list(gone),
                holders=list(holders),
                bad=bad,
                drained=drained,
                queue=None if queue is None else queue[:200],
                queue_total=len(self.line),
                usage=self.usage(),
                totals=totals,
                sample=sample,
            )
        )

    def rebuild(self, chains: list[Chain]) -> None:
        """Another cluster under the same jobs: the layout changes, and no update leads there."""
        self.chains = chains
        self._layout = self._make_layout()
        self.change()
        self.rebuilt = len(self.updates)

    def usage(self) -> list[VcTotals]:
        """Every VC, from the holders."""
        used = {vc.name: 0 for vc in self.vcs}
        borrowed = dict(used)
        for holder in self.holders.values():
            if holder.kind != "reserved":
                (used if holder.kind == "guaranteed" else borrowed)[holder.vc] += holder.gpus
        idle = {vc.name: max(0, vc.gpus - used[vc.name]) for vc in self.vcs}
        lent = dict.fromkeys(idle, 0)
        for _ in range(min(sum(borrowed.values()), sum(idle.values()))):
            lent[max(idle, key=lambda vc: idle[vc] - lent[vc])] += 1
        waits = [job.vc for job in self.line]
        return [
            VcTotals(
                vc=vc.name,
                reserved=vc.gpus,
                used=used[vc.name],
                lent=lent[vc.name],
                borrowed=borrowed[vc.name],
                waiting=waits.count(vc.name),
            )
            for vc in self.vcs
        ]

    def totals(self) -> Totals:
        """All GPUs, from the holders."""
        kinds = {"guaranteed": 0, "opportunistic": 0, "reserved": 0}
        for holder in self.holders.values():
            kinds[holder.kind] += holder.gpus
        held = {
            place for holder in self.holders.values() if holder.kind != "reserved" for place in _places(holder.parts)
        }
        bad, drained = set(_places(self.bad)), set(_places(self.drained))
        return Totals(
            gpus=self.gpus,
            guaranteed=kinds["guaranteed"],
            opportunistic=kinds["opportunistic"],
            reserved=kinds["reserved"],
            bad=len(bad - held),
            drained=len(drained - held),
            bad_used=len(bad & held),
            drained_used=len(drained & held),
            fragmentation=0.0 if not self.holders else 0.125,
        )

    # -- what the dashboard asks ---------------------------------------------------------------------------------------

    def layout(self) -> Layout:
        return self._layout

    def picture(self, view: str, at: float | None = None) -> Picture:
        if view != VIEW:
            raise NotFoundError(f"no view {view}")
        return Picture(
            seq=len(self.updates),
            at=time.time(),
            holders=list(self.holders.values()),
            bad=self.bad,
            drained=self.drained,
            queue=self.line[:200],
            queue_total=len(self.line),
            usage=self.usage(),
            totals=self.totals(),
        )

    def update(self, view: str, seq: int) -> Update | None:
        return self.updates[seq] if self.rebuilt <= seq < len(self.updates) else None

    async def changed(self, seq: int) -> None:
        while len(self.updates) <= seq:
            await asyncio.sleep(0.02)

    def curves(self, view: str) -> Curves:
        rng = random.Random(4)
        at = [self.start + 15 * step for step in range(120)]
        level, lent = 0.5, 0.1
        curves = Curves(at=at, guaranteed=[], opportunistic=[], fragmentation=[], waiting=[])
        for _ in at:
            level = min(0.75, max(0.2, level + rng.choice((-0.125, 0, 0, 0, 0.125))))
            lent = min(1 - level, max(0.0, lent + rng.choice((-0.125, 0, 0, 0.125))))
            curves.guaranteed.append(level)
            curves.opportunistic.append(lent)
            curves.fragmentation.append(0.0 if level < 0.3 else 0.25 if level < 0.6 else 0.5)
            curves.waiting.append(rng.randrange(4) if level > 0.4 else 0)
        return curves

    def story(self, view: str, job: str) -> Story:
        holder = self.holders.get(job)
        waits = next((one for one in self.line if one.id == job), None)
        if holder is None and waits is None:
            raise NotFoundError(f"no job {job}")
        of = holder or waits
        assert of is not None
        stays = [Stay(start=of.since - 240, end=of.since - 150, kind="waiting", where="")]
        moments = [Moment(at=of.since - 240, text=f"submitted to {of.vc}: {of.gpus} GPUs, priority {of.priority}")]
        if holder is not None:
            where = self.where(holder)
            stays += [
                Stay(start=of.since - 150, end=of.since - 40, kind="opportunistic", where=where),
                Stay(start=of.since - 40, end=of.since - 25, kind="stopping", where=where),
                Stay(start=of.since - 25, end=of.since, kind="waiting", where=""),
                Stay(start=of.since, end=None, kind="guaranteed", where=where),
            ]
            moments += [
                Moment(at=of.since - 150, text=f"started opportunistic on {where}, on idle cells of speech"),
                Moment(at=of.since - 40, text="preempted by speech/asr-3, which needs its own cells; SIGTERM sent"),
                Moment(at=of.since - 25, text="ended with 143 after 15 s, queued again (resume 1)"),
                Moment(at=of.since, text=f"started guaranteed on {where}"),
            ]
            explanation = f"{of.name} runs guaranteed on {where}.\nIts cells are bound there until it ends."
        else:
            stays = [Stay(start=of.since, end=None, kind="waiting", where="")]
            explanation = "\n".join(waits.why if waits else [])
        return Story(
            id=of.id,
            name=of.name,
            vc=of.vc,
            gpus=of.gpus,
            priority=of.priority,
            state="running" if holder else "queued",
            command="python train.py --model resnet50 --batch 256 --data /data/imagenet",
            explanation=explanation,
            stays=stays,
            moments=moments,
        )

    def where(self, holder: Holder) -> str:
        """``node:0,1;node2:3``."""
        return ";".join(
            f"{self.chains[chain].nodes[node]}:{','.join(str(first + i) for i in range(many))}"
            for chain, node, first, many in holder.parts
        )

    async def timeline(self, view: str, node: str, start: float, end: float) -> GpuTimeline:
        raise NotFoundError(f"no node {node!r}")

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        return Queue(jobs=self.line[offset : offset + limit], total=len(self.line))

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        return EndedJobs(jobs=self.over[offset : offset + limit], total=len(self.over))

    def comparison(self) -> Comparison | None:
        return None


LEVELS = [
    Level(cell_type="GPU", gpus=1),
    Level(cell_type="PAIR", gpus=2),
    Level(cell_type="SOCKET", gpus=4),
    Level(cell_type="NODE", gpus=8),
]


def _places(stretches: list[Stretch]) -> list[tuple[int, int, int]]:
    """The GPUs of stretches, one by one."""
    return [(chain, node, first + at) for chain, node, first, count in stretches for at in range(count)]


def held(
    ref: str, name: str, vc: str, kind: str, parts: list[Stretch], ago: float = 300.0, binding: str = "", **more: object
) -> Holder:
    """A holder, in short."""
    return Holder.model_validate(
        {
            "id": ref,
            "name": name,
            "vc": vc,
            "kind": kind,
            "gpus": sum(part[3] for part in parts),
            "since": time.time() - ago,
            "parts": parts,
            "binding": [binding] * len(parts),
            "priority": -1 if kind == "opportunistic" else 0,
            **more,
        }
    )


def waits(ref: str, name: str, vc: str, gpus: int, why: list[str], ago: float = 90.0, priority: int = 0) -> Waiting:
    """A waiting job, in short."""
    return Waiting(
        id=ref, name=name, vc=vc, gpus=gpus, priority=priority, since=time.time() - ago, kind="waiting", why=why
    )


def small_cluster() -> LiveStub:
    """One box of 8 GPUs, three tenants, every kind of fill on it."""
    chain = Chain(name="BOX", levels=LEVELS, node_level=4, nodes=["gpu-box"])
    vcs = [
        VirtualCluster(name="vision", gpus=4, reserved=[Reserved(cell_type="NODE.SOCKET", gpus=4, number=1)]),
        VirtualCluster(name="speech", gpus=2, reserved=[Reserved(cell_type="NODE.SOCKET.PAIR", gpus=2, number=1)]),
        VirtualCluster(
            name="nlp", gpus=2, reserved=[Reserved(cell_type="NODE.SOCKET.PAIR", gpus=2, number=1, pinned="nlp-pin")]
        ),
    ]
    stub = LiveStub([chain], vcs, "gpu-box, 8 simulated GPUs")
    stub.change(
        holders=[
            held("1", "resnet-1", "vision", "guaranteed", [(0, 0, 0, 2)], 1260, "pair 0 of vision's NODE.SOCKET 0"),
            held("4", "asr-4", "speech", "opportunistic", [(0, 0, 2, 1)], 200),
            held("5", "finetune-bert-5", "nlp", "guaranteed", [(0, 0, 4, 1)], 640, "nlp's pinned pair nlp-pin"),
            held("6", "wav2vec-6", "speech", "reserved", [(0, 0, 6, 1)], 12),
        ],
        queue=[
            waits(
                "7",
                "swin-large-7",
                "vision",
                4,
                [
                    "vision has 2 of its 4 GPUs free, and they are not one socket",
                    "waits for resnet-1 (2 GPUs) to end",
                ],
                412,
            ),
            waits("8", "lm-eval-8", "nlp", 2, ["1 of nlp's 2 GPUs is free; finetune-bert-5 has the other"], 95, 5),
            waits(
                "9", "sweep-9", "speech", 1, ["opportunistic: no idle GPU that speech may borrow at the moment"], 31, -1
            ),
        ],
        bad=[(0, 0, 7, 1)],
    )
    return stub


TENANTS = [f"{name}-{letter}" for name in ("prod", "res") for letter in "abcdef"]


def big_cluster(racks: int = 8, nodes: int = 1024) -> BigStub:
    """``racks`` racks of ``nodes`` nodes of 8 GPUs: 65,536 by default, some 10,000 jobs."""
    chain = Chain(
        name="A100",
        levels=[*LEVELS, Level(cell_type="RACK", gpus=8 * nodes)],
        node_level=4,
        nodes=[f"node-{rack}-{node:04}" for rack in range(racks) for node in range(nodes)],
    )
    total = racks * nodes
    per = total // len(TENANTS)
    vcs = [
        VirtualCluster(name=name, gpus=8 * per, reserved=[Reserved(cell_type="RACK.NODE", gpus=8, number=per)])
        for name in TENANTS
    ]
    return BigStub([chain], vcs, total)


class BigStub(LiveStub):
    """A large cluster, mostly full, whose jobs come and go."""

    def __init__(self, chains: list[Chain], vcs: list[VirtualCluster], nodes: int) -> None:
        super().__init__(chains, vcs, f"{8 * nodes:,} simulated GPUs")
        self.rng = random.Random(7)
        self.number = 0
        holders: list[Holder] = []
        node = 0
        while node < nodes:
            draw = self.rng.random()
            if draw < 0.04:
                many = min(nodes - node, self.rng.choice((2, 4, 8, 16, 32, 64)))
                holders.append(self.new([(0, node + i, 0, 8) for i in range(many)]))
                node += many
            elif draw < 0.3:
                holders.append(self.new([(0, node, 0, 8)]))
                node += 1
            else:
                holders += [self.new([part]) for part in self.split(node)]
                node += 1
        bad: list[Stretch] = [(0, self.rng.randrange(nodes), 0, 8) for _ in range(nodes // 400)]
        broken = {stretch[1] for stretch in bad}
        holders = [holder for holder in holders if not broken & {part[1] for part in holder.parts}]
        queue = [
            waits(
                f"w{i}",
                f"train-{90000 + i}",
                self.rng.choice(TENANTS),
                self.rng.choice((8, 8, 16, 64)),
                ["its VC has 12 nodes free, 16 are needed in one rack", f"{i} jobs of its VC are in line before it"],
                self.rng.uniform(10, 20000),
            )
            for i in range(640)
        ]
        self.change(holders, queue=queue, bad=bad)

    def split(self, node: int) -> list[Stretch]:
        """Small jobs of a node: stretches of 1, 2 and 4 GPUs with gaps."""
        parts: list[Stretch] = []
        at = 0
        while at < 8:
            size = self.rng.choice([size for size in (1, 2, 4, 4) if at % size == 0 and at + size <= 8])
            if self.rng.random() < 0.72:
                parts.append((0, node, at, size))
            at += size
        return parts

    def new(self, parts: list[Stretch]) -> Holder:
        """A job on these GPUs; racks belong to a few tenants each, as buddy allocation would have it."""
        self.number += 1
        opportunistic = self.rng.random() < 0.22
        near = (parts[0][1] * len(TENANTS)) // len(self.chains[0].nodes)
        vc = TENANTS[(near + self.rng.choice((0, 0, 0, 1, 2))) % len(TENANTS)]
        return held(
            f"j{self.number}",
            f"{self.rng.choice(('bert', 'gpt', 'vit', 'resnet', 'asr'))}-{self.number}",
            vc,
            "opportunistic" if opportunistic else "guaranteed",
            parts,
            self.rng.uniform(60, 90000),
            "" if opportunistic else f"{vc}'s RACK.NODE {self.number % 600}",
        )

    def churn(self, jobs: int) -> int:
        """So many jobs end, and others take their places. How many GPUs changed hands."""
        ended = self.rng.sample(sorted(self.holders), jobs)
        started = [self.new(self.holders[ref].parts) for ref in ended]
        self.change(started, gone=ended, queue=self.line[jobs:] + self.line[:jobs])
        return sum(holder.gpus for holder in started)
