"""Requests of tenants: groups of pods, placed all or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hived.errors import RequestError

#: the priority of opportunistic groups
OPPORTUNISTIC = -1
#: the highest priority of a guaranteed group
HIGHEST = 1000

#: names of the nodes that a request may use (None: all), and of the nodes that it may not use
NodeFilter = tuple[frozenset[str] | None, frozenset[str]]
EVERY_NODE: NodeFilter = None, frozenset()


@dataclass(frozen=True, slots=True)
class Member:
    """``pods`` equal pods of a group, each on one node.

    Each pod gets ``leaf_cells`` devices as close together as possible, or one whole cell of type ``cell_type``:
    ``Member(pods=2, cell_type="NODE")`` asks for two nodes.
    """

    pods: int
    leaf_cells: int = 0
    cell_type: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """An affinity group (gang): placed all or none, as close together as possible (HiveD, OSDI'20, section 2).

    A request is checked when it is scheduled: a request that is malformed, or wrong for the cluster, raises a
    :class:`~hived.errors.RequestError` that names the field.
    """

    group: str  #: the name of the group, unique among waiting and running groups
    vc: str  #: the virtual cluster it belongs to
    priority: int = 0  #: -1: opportunistic; 0 to 1000: guaranteed, the higher preempt the lower inside their VC
    members: tuple[Member, ...] = field(default=())  #: any sequence; kept as a tuple
    leaf_cell_type: str | None = None  #: device type; None: any that fits, chains in the order of the spec
    pinned_cell_id: str | None = None  #: the pinned cell of the VC to run in
    lazy_preemption: bool = (
        False  #: when preempted inside its VC: becomes opportunistic first, and runs on while it can
    )
    within: str | None = None  #: cell type that has to hold all pods together, e.g. ``RACK``
    soft_affinity: bool = False  #: where ``within`` does not fit: relax it level by level, rather than wait
    #: split a pod of more leaf cells than a node has into pods of whole nodes: for jobs of a trace
    whole_nodes: bool = False
    #: run an opportunistic group as a guest: it holds no cells, and runs on idle ones or beside groups that accept it
    guest: bool = False
    #: it loses no work when it is told to end, since it saves its state then: of loans such make room first
    saves_work: bool = False

    def __post_init__(self) -> None:
        if type(self.members) is not tuple:
            try:
                object.__setattr__(self, "members", tuple(self.members))
            except TypeError:
                raise RequestError("members", f"a sequence of Member, not {self.members!r}") from None

    @property
    def opportunistic(self) -> bool:
        """Whether it asks for a loan of idle leaf cells."""
        return self.priority == OPPORTUNISTIC

    @property
    def pods(self) -> int:
        """Pods of all members."""
        return sum(member.pods for member in self.members)

    def one_by_one(self) -> Iterator[Request]:
        """The same pods as groups of one pod each, ``name/0``, ``name/1``, ...: for jobs that are not gangs."""
        number = 0
        for member in self.members:
            for _ in range(member.pods):
                yield replace(self, group=f"{self.group}/{number}", members=(replace(member, pods=1),))
                number += 1


class Provenance(NamedTuple):
    """The call that a decision answers, so that it can be repeated."""

    method: str  #: its name
    arguments: tuple[Any, ...]
    version: int  #: of the state at the answer


#: of an answer that was committed at once
COMMITTED = Provenance("", (), -1)
