"""What a decision comes to inside the cluster: worked out, and not yet carried out."""

from __future__ import annotations

from dataclasses import dataclass

from .allocation import Part
from .decisions import Placement
from .demands import Demand
from .groups import Group
from .reasons import Reason
from .requests import EVERY_NODE, Given, Request
from .states import GroupEvent, GroupState, next_group_state
from .tenancy import Pods, Spared, Tenancy


class Plan:
    """A way to place a group, worked out and not yet carried out."""

    __slots__ = (
        "bound",
        "chain",
        "demand",
        "downgraded",
        "inside",
        "level",
        "now",
        "overtaken",
        "parts",
        "placement",
        "pods",
        "relaxed",
        "request",
        "spared",
        "standing",
        "suggested",
        "tenancy",
        "version",
        "victims",
    )

    def __init__(self, request: Request, demand: Demand, chain: int, level: int) -> None:
        self.request = request
        self.demand = demand
        #: number of the chain
        self.chain = chain
        #: lowest level at which one cell holds all pods, 0 for none
        self.level = level
        #: where its virtual leaves are; None for an opportunistic group
        self.tenancy: Tenancy | None = None
        #: per pod: virtual host and leaves
        self.pods: Pods = ()
        #: per pod: physical leaves
        self.parts: tuple[Part, ...] = ()
        #: the physical cells that some hosts must stand on
        self.standing: dict[int, int] | None = None
        #: its physical leaves by name, once somebody has asked
        self.placement: Placement | None = None
        #: which leaves of a node others should rather not lose
        self.spared: Spared | None = None
        #: who has to go
        self.victims: list[Group] = []
        #: who becomes opportunistic for it
        self.downgraded: list[Group] = []
        #: whose reservation ends
        self.overtaken: list[Group] = []
        #: names of the cell types given up as caps
        self.relaxed: tuple[str, ...] = ()
        #: what was bound inside hosts that others use, before its own leaves were
        self.inside: list[tuple[int, list[int] | None]] = []
        #: whether its virtual leaves are bound already
        self.bound = False
        #: the nodes it was restricted to, and those it was kept from
        self.suggested: Given = EVERY_NODE
        #: when it was asked for, by the clock of the caller
        self.now = 0.0
        #: the state's version that it was made for
        self.version = -1


@dataclass(slots=True)
class Waiting:
    """A group that holds nothing: it asked and could not start, or lost its reservation."""

    request: Request
    reasons: tuple[Reason, ...]
    sequence: int  #: rank among all that wait, by when they first asked
    since: float
    state: GroupState = GroupState.PENDING

    def happens(self, event: GroupEvent) -> None:
        """``event`` moves it to its next state, as the table of groups has it."""
        self.state = next_group_state(self.state, event)
