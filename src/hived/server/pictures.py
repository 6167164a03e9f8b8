"""The data that the dashboard draws: the same for a running engine and a finished simulation.

A *view* is one cluster at one time: an engine has one, a simulation one per scheme and policy. Times are seconds: since
the epoch when ``clock`` is "unix", since the start of the trace when it is "trace".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hived.engines.submission import Model
from hived.words import ranges, runs

from .schema import JobHeader, Limits, Reserved

#: boxes of one timeline, which a browser draws as elements
MOST_BOXES = 5_000
#: a command that submits a job of one machine
EXAMPLE = "hived submit --vc NAME --gpus 2 -- python train.py"
#: a stretch of leaf cells of one node: chain number, node number in the chain, first leaf, how many
Stretch = tuple[int, int, int, int]


class Level(Model):
    cell_type: str
    gpus: int


class Chain(Model):
    """One kind of top cell. Cells of a level are equal: cell ``i`` has the leaves ``i*gpus .. i*gpus+gpus-1``."""

    name: str
    levels: list[Level]  #: from the leaf to the top
    node_level: int  #: 1-based
    nodes: list[str]  #: names, in order
    #: device indices of the nodes (by number) that have other than 0, 1, 2, ...
    devices: dict[int, list[int]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_nodes(self) -> Self:
        if not 1 <= self.node_level <= len(self.levels):
            raise ValueError(f"node_level is one of the {len(self.levels)} levels, not {self.node_level}")
        return self

    @property
    def gpus_per_node(self) -> int:
        """Leaves of one node."""
        return self.levels[self.node_level - 1].gpus

    def indices(self, node: int) -> Sequence[int]:
        """Device indices of a node's leaves."""
        return self.devices.get(node) or range(self.gpus_per_node)


class VirtualCluster(Model):
    name: str
    gpus: int
    reserved: list[Reserved]


class View(Model):
    key: str  #: ``live``, or ``hived yarn-cs``
    label: str
    chains: list[Chain]


class Layout(Model):
    """What does not change from moment to moment."""

    title: str
    clock: Literal["unix", "trace"]
    synthetic: bool  #: whether devices or trace are synthetic: the page shows it
    start: float
    end: float | None  #: None: it goes on
    #: for a finished simulation, the time that averages are over: jobs arrive until then, and then only drain
    arrivals_end: float | None = None
    vcs: list[VirtualCluster]  #: their order gives each its colour
    views: list[View]
    #: a command that submits a job, with NAME where a virtual cluster is named
    example: str = EXAMPLE
    server: str = ""  #: what tells a running engine from others at the same address
    acts: bool = False  #: whether who has signed in does something here: ``/v1/me`` says what


class Holder(JobHeader):
    """A job that has GPUs, or has them reserved."""

    kind: Literal["guaranteed", "opportunistic", "guest", "reserved"]
    share: float = 1.0  #: of the time for which it has its GPUs; below 1 if it takes turns, on any of ``parts``
    rate: float = 1.0  #: work per second, against running alone at best affinity
    packed_with: tuple[str, ...] = ()  #: names of jobs that have their turns on the same GPUs at the same time
    limits: Limits | None = None  #: None: none
    since: float
    stopping: bool = False
    suspended: bool = False  #: its tasks stand still there, and others may have their turn
    priority: int = 0
    parts: list[Stretch]
    #: per part: the cell of its VC that is bound here, in words; "" for opportunistic ones
    binding: list[str] = Field(default_factory=list)


#: what a job does for a while
StayKind = Literal[
    "waiting", "reserved", "guaranteed", "opportunistic", "guest", "suspended", "stopping", "backoff", "held"
]


class Waiting(JobHeader):
    """A job in the queue."""

    since: float
    kind: StayKind
    why: list[str]  #: in words, the most decisive first


class Queue(Model):
    """Part of the queue."""

    jobs: list[Waiting]
    total: int  #: that wait


class Ended(JobHeader):
    """A job that has ended."""

    state: str  #: how: ``succeeded``, ``failed``, ``cancelled``, ``finished``, ``ended``
    at: float  #: when
    why: str  #: as a sentence; "" where the state suffices


class EndedJobs(Model):
    """Jobs that have ended, the latest first: by when they ended, on one machine by when they were submitted."""

    jobs: list[Ended]
    total: int  #: that are known


class Traded(Model):
    """Cells that a VC has given to another one, or has of it, for a while."""

    vc: str  #: the other one
    cell_type: str
    number: int
    until: float


class VcTotals(Model):
    """One VC now, in GPUs."""

    vc: str
    reserved: int
    used: int  #: by its guaranteed jobs
    lent: int  #: of its idle ones, what opportunistic jobs use (in proportion to what each VC leaves idle)
    borrowed: int  #: by its opportunistic jobs
    waiting: int  #: jobs
    given: list[Traded] = Field(default_factory=list)
    taken: list[Traded] = Field(default_factory=list)


class Totals(Model):
    gpus: int
    guaranteed: int
    opportunistic: int
    guests: int = 0  #: on which guests run, which hold none
    reserved: int  #: idle, in a reservation whose other victims are still being stopped
    bad: int  #: faulty and not in use
    drained: int = 0  #: healthy, kept from new jobs (on Kubernetes for foreign pods too), and no job uses them
    bad_used: int = 0  #: faulty, and in use
    drained_used: int = 0  #: healthy, kept from new jobs, and in use
    #: share of nodes that cannot give all their GPUs to one guaranteed job since some are in guaranteed use
    fragmentation: float


class Sample(Model):
    """A point of the curves."""

    at: float
    guaranteed: float  #: share of all GPUs
    opportunistic: float
    fragmentation: float
    waiting: int


class Picture(Model):
    """Everything about one moment."""

    seq: int
    at: float
    holders: list[Holder]
    bad: list[Stretch]  #: faulty, in use or not
    drained: list[Stretch] = Field(default_factory=list)  #: healthy, kept from new jobs, in use or not
    queue: Annotated[list[Waiting], Field(description="the first 200 in line")]
    queue_total: int
    usage: list[VcTotals]
    totals: Totals


class Update(Model):
    """What changed since the picture or update before it."""

    seq: int
    at: float
    gone: list[str]  #: ids of holders that hold nothing any more
    holders: list[Holder]  #: new or changed ones
    bad: list[Stretch] | None  #: None: as before
    drained: list[Stretch] | None = None  #: None: as before
    queue: list[Waiting] | None
    queue_total: int
    usage: list[VcTotals]
    totals: Totals
    sample: Sample | None


def updated(picture: Picture, update: Update) -> Picture:
    """The picture after what changed since. O(holders)."""
    gone = {*update.gone, *(holder.id for holder in update.holders)}
    changed = {name: value for name, value in update if value is not None and name in Picture.model_fields}
    changed["holders"] = [*(holder for holder in picture.holders if holder.id not in gone), *update.holders]
    return picture.model_copy(update=changed)


class Curves(Model):
    """Over time, a list per quantity; delays in seconds per VC where they are known."""

    at: list[float]
    guaranteed: list[float | None]
    opportunistic: list[float | None]
    fragmentation: list[float | None]
    waiting: list[int | None]
    delay: dict[str, list[float | None]] = Field(default_factory=dict)


class Stay(Model):
    """A stretch of a job's life."""

    start: float
    end: float | None  #: None: until now
    kind: StayKind
    #: ``node:0,1,2,3;node2:0,1``; "" where it held nothing, several with "or" between where it took turns on them
    where: str
    share: float = 1.0  #: of the time for which it had these GPUs
    rate: float = 1.0  #: work per second, against running alone at best affinity
    limit: float = 1.0  #: share of its GPUs' time that it may use
    by_hand: bool = False  #: suspended by somebody, past the scheduler


class Moment(Model):
    at: float
    text: str


class Story(JobHeader):
    """One job's life."""

    state: str
    held_by_hand: bool = False  #: whether somebody holds it, until it is released
    command: str  #: "" in a simulation
    explanation: str  #: lines of words
    stays: list[Stay]
    moments: list[Moment]


class GpuBox(Model):
    """A job on a GPU for some time, without a change of its share, its rate or its place in the GPU's band.

    Of a running engine too: changes that are too close together to be drawn are one box, with the means over its time.
    """

    job: int | None  #: place in the timeline's list; None: several, each of which has too little to be drawn
    start: float
    end: float
    bottom: float  #: of the band's height, 0 to 1; of guests above 1
    top: float
    way: Literal["whole", "sliced", "packed", "guest"]
    share: float  #: of the GPU's time
    #: of its work there, per second, against running alone at best affinity; 1 where that is not known, 0: it is paused
    rate: float
    limit: float = 1.0  #: share of the time that it may use


class GpuLane(Model):
    """One GPU."""

    device: int
    boxes: list[GpuBox]


class GpuUser(Model):
    """A job of a timeline."""

    id: str
    name: str
    vc: str
    gpus: int
    colour: int  #: 0 to 7; jobs that share a GPU have different ones


class GpuTimeline(Model):
    """Who has the GPUs of one node, and when; of a running engine up to now."""

    node: str
    start: float
    end: float
    lanes: list[GpuLane]
    jobs: list[GpuUser]  #: in order of their first starts there


class TenantOutcome(Model):
    """Queueing delays and completion times; None: not known, or of no jobs."""

    tenant: str
    jobs: int
    mean_delay_s: float | None
    median_delay_s: float | None = None
    p90_delay_s: float | None = None
    p95_delay_s: float | None
    p99_delay_s: float | None = None
    mean_completion_s: float | None = None
    median_completion_s: float | None = None
    p90_completion_s: float | None = None
    p95_completion_s: float | None = None
    p99_completion_s: float | None = None
    to_private: float | None  #: mean over that in the private cluster
    worse_jobs: int | None  #: that wait longer than in their private cluster


class Outcome(Model):
    """One scheme and policy, whole run."""

    view: str
    label: str
    utilization: float | None  #: share of all GPUs held, by whomever; one that jobs share counts once
    opportunistic: float | None  #: of which by opportunistic jobs
    fragmentation: float | None
    guests: float | None = None  #: share of all GPUs on which guests run, which hold none
    #: share of all GPUs that tenants cannot have as whole nodes because of their own guaranteed jobs, and of others'
    internal: float | None = None
    external: float | None = None
    preemptions: int
    preempted_gpus: int | None = None
    lost_gpu_s: float | None = None  #: GPU time of finished jobs that was not work, such as work done again
    makespan_s: float | None = None
    finished: int
    unfinished: int
    overall: TenantOutcome
    tenants: list[TenantOutcome]


class Comparison(Model):
    outcomes: list[Outcome]


class Places:
    """The nodes of chains by their names. O(nodes) to make."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        #: numbers of chain and node; a machine with two kinds of device is a node of two chains
        self.numbers: dict[str, list[tuple[int, int]]] = {}
        for number, chain in enumerate(chains):
            for node, name in enumerate(chain.nodes):
                self.numbers.setdefault(name, []).append((number, node))

    def devices(self, name: str) -> list[int]:
        """Device indices of a node, of all its chains; none where it is not there."""
        return [index for chain, node in self.numbers.get(name, ()) for index in self.chains[chain].indices(node)]

    def stretches(self, name: str, devices: Iterable[int], first: int = -1) -> list[Stretch]:
        """Stretches of devices of a node, in chain number ``first`` before others; devices of no chain are left out."""
        found: list[Stretch] = []
        left = set(devices)
        for number, node in sorted(self.numbers.get(name, ()), key=lambda place: (place[0] != first, place)):
            indices = self.chains[number].indices(node)
            leaves = [leaf for leaf, device in enumerate(indices) if device in left]
            left -= {indices[leaf] for leaf in leaves}
            found += [(number, node, low, high - low + 1) for low, high in runs(leaves)]
        return found


def named(parts: Iterable[Stretch], chains: Sequence[Chain], most: int) -> tuple[list[str], int]:
    """``node-3:0-3``, with the device indices: the first ``most`` nodes, and how many more there are."""
    nodes: dict[tuple[int, int], list[int]] = {}
    for chain, node, first, number in parts:
        nodes.setdefault((chain, node), []).extend(chains[chain].indices(node)[first : first + number])
    words = [f"{chains[chain].nodes[node]}:{ranges(sorted(on))}" for (chain, node), on in list(nodes.items())[:most]]
    return words, len(nodes) - len(words)
