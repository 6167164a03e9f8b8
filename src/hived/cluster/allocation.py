"""What a job holds: the one thing that clusters hand out and take back."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from hived.cells import Rank


class Kind(Enum):
    """How a job holds its GPUs (HiveD, OSDI'20, section 3.3)."""

    GUARANTEED = "guaranteed"  #: inside its tenant's own share
    OPPORTUNISTIC = "opportunistic"  #: on what others leave idle; gives way to guaranteed jobs


class Part(NamedTuple):
    """GPUs of one node."""

    chain: int  #: number of the chain (in a private cluster: of the tenant's pool)
    node: int  #: number of the node in it
    mask: int  #: its leaves, a bit each


class Spots(NamedTuple):
    """A choice of leaves by a policy, in the cluster that its view shows (virtual ones where that is a VC)."""

    pool: int
    hosts: tuple[tuple[int, int], ...]  #: (host, mask of its leaves)


class Allocation:
    """The GPUs of one job, or of several that share them: of one kind at a time, none when ``kind`` is None."""

    __slots__ = ("gpus", "group", "kind", "parts", "spots", "started", "tenant")

    def __init__(self, group: str, tenant: int, gpus: int) -> None:
        #: the affinity group's name
        self.group = group
        #: number of the tenant
        self.tenant = tenant
        #: GPUs asked for
        self.gpus = gpus
        #: None exactly when ``parts`` is empty
        self.kind: Kind | None = None
        #: the physical GPUs held
        self.parts: tuple[Part, ...] = ()
        #: rank of its present loan among all loans
        self.started = 0
        #: where it stands in its VC; None unless guaranteed there
        self.spots: Spots | None = None

    @property
    def held(self) -> int:
        """GPUs held: what was asked for, or whole nodes where it is more than one."""
        return sum([part.mask.bit_count() for part in self.parts])

    def __repr__(self) -> str:
        return f"Allocation({self.group!r}, tenant={self.tenant}, gpus={self.gpus}, {self.kind}, {self.parts})"


class Grant(NamedTuple):
    """The answer to a guaranteed request that fits."""

    in_place: bool  #: an opportunistic holder that keeps the very GPUs it has
    victims: tuple[Allocation, ...]  #: opportunistic holders that lost theirs, in the order in which they started


#: a grant to who held nothing, at nobody's cost
NEW = Grant(False, ())


class ClusterView(Protocol):
    """What a policy sees of a cluster: the same for a private cluster, a quota share and a VC. Read only."""

    @property
    def tenant(self) -> str:
        """Whose cluster it is."""

    @property
    def gpus(self) -> int:
        """GPUs in it, or the quota."""

    def can_ever_fit(self, gpus: int) -> bool:
        """Whether a job of ``gpus`` would fit if the tenant ran nothing else."""

    def closest(self, gpus: int, rank: Rank) -> Spots | None:
        """Leaves for a guaranteed job, ``None`` if it must wait.

        Up to a node's GPUs: on the one host that ranks best. Above: whole nodes, as many as it takes, as close
        together as possible.
        """


#: A policy's choice: the view and the number of GPUs give the spots, or None.
Place = Callable[[ClusterView, int], Spots | None]


def nodes_needed(gpus: int, node_size: int) -> int:
    """Hard affinity: a job that fits one node stays in one, a larger one takes whole nodes."""
    return 1 if gpus <= node_size else -(-gpus // node_size)
