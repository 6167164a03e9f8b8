"""What the service on Kubernetes answers to people and to the command line; times are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from hived.engine.states import JobState
from hived.server.pictures import Reserved
from hived.server.schema import Model


class NodeCounts(Model):
    """Nodes by what is known of them."""

    total: int
    """Of the spec."""
    healthy: int
    bad: int
    """Not ready, cordoned, or missing."""
    why: list[str]
    """Of bad nodes and single bad GPUs, in words: the first 20."""
    missing: list[str]
    """Of the spec, and not in Kubernetes: the first 20."""
    unmanaged: int
    """In Kubernetes, and not in the spec."""


class SpecStatus(Model):
    """The cluster spec in use."""

    source: str
    """A file, or ``configmap/namespace/name``."""
    loaded_at: float
    problem: str
    """Why the latest one was refused; "" where it was not."""


class VcSummary(Model):
    """A virtual cluster, in GPUs."""

    name: str
    reserved: int
    used: int
    """By its guaranteed groups."""
    borrowed: int
    """By its opportunistic groups."""
    waiting: int
    """Groups that wait."""


class Status(Model):
    """The service and its cluster, at a glance."""

    version: str
    started_at: float
    identity: str
    leader: bool
    """Whether this replica decides."""
    holder: str
    """Who holds the lease; "" where there is no election."""
    ready: bool
    spec: SpecStatus
    nodes: NodeCounts
    gpus: int
    guaranteed: int
    opportunistic: int
    reserved: int
    """Idle, kept for a group that waits for others to go."""
    bad: int
    """And not in use."""
    foreign: int
    """Kept from jobs for pods that HiveD did not place."""
    foreign_pods: list[str]
    """Which, and what they have, in words: the first 20."""
    groups: dict[str, int]
    """How many per state."""
    vcs: list[VcSummary]
    doomed: int
    """Reserved cells that cannot be healthy any more."""
    unavailable: int
    """GPUs that VCs reserved and cannot have now, since they are bad or kept for pods that HiveD did not place."""
    safety_margin: int | None
    """Of the spec, whatever is bad: least cells to spare over all levels. None: nothing is reserved; -1: sharing safety
    is broken, which is a bug."""


class GroupPod(Model):
    """A pod of a group."""

    namespace: str
    name: str
    uid: str
    state: Literal["waiting", "binding", "bound", "terminating"]
    node: str
    """"" while it has none."""
    devices: list[int]


class GroupInfo(Model):
    """An affinity group: pods placed all or none."""

    name: str
    vc: str
    priority: int
    state: JobState
    kind: Literal["guaranteed", "opportunistic"] | None
    """Of the GPUs it has; None: has none."""
    gpus: int
    size: int
    """Pods that it consists of; ``pods`` are those there are."""
    pods: list[GroupPod]
    since: float
    """When it began to wait, or got the GPUs that it has."""
    victims: list[str]
    """While reserved: groups that still have to go."""
    why: list[str]
    """Why it is where it is, in words, the most decisive first."""


class Groups(Model):
    groups: list[GroupInfo]
    total: int
    """That match, beyond the limit too."""


class VcDetail(Model):
    """One virtual cluster."""

    summary: VcSummary
    cells: list[Reserved]
    doomed: list[str]
    """Cells that cannot be healthy any more, in words."""
    running: list[GroupInfo]
    """The first 100."""
    waiting: list[GroupInfo]
    """In the order of their turns, the first 100."""


class GroupExplanation(Model):
    """Why a group waits, where it is, whom it waits for."""

    group: str
    pod: str
    """``namespace/name`` where a pod was asked for, else ""."""
    text: str
    """Lines."""
    reasons: list[dict[str, object]]
    """As data: ``kind`` and the numbers."""


class PlanRequest(Model):
    """What ``kubectl apply`` would be given."""

    objects: Annotated[list[dict[str, object]], Field(min_length=1, max_length=1000)]
    """Pods, Jobs, CronJobs, JobSets, PyTorchJobs, Deployments, ReplicaSets, StatefulSets; others without a VC."""
    namespace: Annotated[str, StringConstraints(max_length=63)] = "default"
    """Of those that name none."""


class PodPlace(Model):
    node: str
    devices: list[int]


class PlannedGroup(Model):
    """What would become of one group now, or of equal pods that are placed one by one."""

    group: str
    vc: str
    gpus: int
    outcome: Literal["now", "waits", "never", "unknown"]
    """``waits``: not all of its pods would start now. ``unknown``: the pods of an object of this kind are not known."""
    text: str
    placement: list[PodPlace]
    victims: list[str]
    reasons: list[dict[str, object]]


class PlanAnswer(Model):
    groups: list[PlannedGroup]
    """Each beside those before it. Empty: nothing here is for HiveD."""


class DrainRequest(Model):
    """Cordon a node, or let pods come again."""

    node: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    undo: StrictBool = False


class Drained(Model):
    """The node, as it is now."""

    node: str
    drained: bool
    gpus: int
    groups: list[str]
    """That run there, and run on."""
