"""A request checked against the cluster, and put into levels and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from hived.cells import Hierarchy, Need
from hived.errors import RequestError
from hived.spec.compiled import ClusterSpec, VirtualClusterSpec

from .requests import HIGHEST, OPPORTUNISTIC, Member, Request
from .sharing import Sharing

#: what tells requests apart, and of which types it has to be
_FIELDS = attrgetter(
    "group", "members", "priority", "guest", "vc", "leaf_cell_type", "pinned_cell_id", "within", "soft_affinity",
    "lazy_preemption", "whole_nodes",
)  # fmt: skip
_TYPES = {(str, tuple, int, bool, str, *names, bool, bool, bool) for names in product((str, type(None)), repeat=3)}
_MEMBER_FIELDS = attrgetter("pods", "leaf_cells", "cell_type")
_MEMBER_TYPES = {(int, int, str), (int, int, type(None))}
#: pods of all demands that are remembered: a few dozen bytes each
REMEMBERED_PODS = 1_000_000


class Choice(NamedTuple):
    """One place where a request may go: a pool of its VC, or a chain for an opportunistic one."""

    where: int  #: number of the pool among the VC's, or of the chain
    chain: int  #: number of the chain
    needs: tuple[Need, ...]  #: one per pod
    caps: tuple[int, ...]  #: highest common levels to be tried in turn, 0 for none


class Demand(NamedTuple):
    """What a request comes to in this cluster. Equal for requests that differ in name and priority alone."""

    tenant: int
    choices: tuple[Choice, ...]  #: in the order of the spec; none when there are more pods than leaf cells
    tries: tuple[tuple[int, Choice], ...]  #: in the order in which they are tried: which cap of which choice
    gpus: int  #: leaf cells of all pods, in the first choice
    pods: int
    largest_pod: int  #: leaf cells of the largest pod


class Demands:
    """Checks requests against one spec. What was checked once is remembered by shape."""

    __slots__ = ("_known", "_leaf_types", "_pods", "_pools", "_tenants", "gpus", "hierarchies", "sharing", "spec")

    def __init__(self, spec: ClusterSpec, sharing: Sharing) -> None:
        self.spec = spec
        self.sharing = sharing
        self.hierarchies = [Hierarchy(chain) for chain in spec.chains]
        #: leaf cells of the cluster
        self.gpus = spec.gpus
        self._tenants = {vc.name: number for number, vc in enumerate(spec.virtual_clusters)}
        self._leaf_types = {chain.leaf_type for chain in spec.chains}
        #: per tenant: chain number and pinned cell id of each of its pools, unpinned ones first
        self._pools = [pools_of(spec, vc, sharing) for vc in spec.virtual_clusters]
        self._known: dict[tuple[object, ...] | None, Demand] = {}
        self._pods = 0

    def of(self, request: Request) -> Demand:
        """The demand of ``request``. Raises :class:`RequestError` naming the field. O(pods); O(1) once seen."""
        key = _key(request)
        demand = None if key is None else self._known.get(key)
        if demand is None:
            demand = self._compile(request)
            self._pods += demand.pods if demand.choices else 1
            if self._pods > REMEMBERED_PODS:
                self._known.clear()
                self._pods = 0
            self._known[_key(request)] = demand
        return demand

    def check_form(self, request: Any) -> None:
        """Raise :class:`RequestError` for a request that would be wrong in any cluster."""
        _check_name_and_priority(request)
        for name in ("lazy_preemption", "soft_affinity", "whole_nodes", "guest"):
            if type(getattr(request, name)) is not bool:
                raise RequestError(name, f"true or false, not {getattr(request, name)!r}")
        if request.guest and not request.opportunistic:
            raise RequestError("guest", "a guest is opportunistic; ask with priority -1, or not as a guest")
        for name in ("vc", "leaf_cell_type", "pinned_cell_id", "within"):
            value = getattr(request, name)
            if not (isinstance(value, str) or (value is None and name != "vc")):
                raise RequestError(name, f"a name, not {value!r}")
        _check_members(request.members)

    def _compile(self, request: Request) -> Demand:
        self.check_form(request)
        tenant = self._tenants.get(request.vc)
        if tenant is None:
            raise RequestError("vc", f"there is no virtual cluster {request.vc!r}; there are {_listed(self._tenants)}")
        places = self._places(request, tenant)
        pods = request.pods
        choices = []
        if pods <= self.gpus and places:
            types = {name for number in {chain for _, chain in places} for name in self._names(number)}
            for position, member in enumerate(request.members):
                if member.cell_type is not None and member.cell_type not in types:
                    raise RequestError(
                        f"members[{position}].cell_type",
                        f"no cell of type {member.cell_type!r} there; there are {_listed(sorted(types))}",
                    )
            if request.within is not None and request.within not in types:
                raise RequestError(
                    "within", f"no cell of type {request.within!r} there; there are {_listed(sorted(types))}"
                )
            for where, number in places:
                choice = self._choice(request, where, number)
                if choice is not None:
                    choices.append(choice)
            if not choices:
                raise RequestError("members", "no chain has all the cell types asked for (within among them)")
        largest = max(
            [need.gpus for choice in choices[:1] for need in choice.needs]
            or [member.leaf_cells or 1 for member in request.members]
        )
        gpus = (
            sum(need.gpus for need in choices[0].needs)
            if choices
            else sum(member.pods * max(1, member.leaf_cells) for member in request.members)
        )
        tries = [(step, choice) for choice in choices for step in range(len(choice.caps))]
        tries.sort(key=itemgetter(0))
        return Demand(tenant, tuple(choices), tuple(tries), gpus, pods, largest)

    def _names(self, number: int) -> list[str]:
        return [level.cell_type for level in self.hierarchies[number].spec.levels]

    def _places(self, request: Request, tenant: int) -> list[tuple[int, int]]:
        """Pool (or chain) and chain numbers that the request may look at, in the order in which they are tried."""
        wanted = request.leaf_cell_type
        if wanted is not None and wanted not in self._leaf_types:
            raise RequestError(
                "leaf_cell_type",
                f"there is no leaf cell type {wanted!r}; there are {_listed(sorted(self._leaf_types))}",
            )
        chains = self.spec.chains
        if request.opportunistic:
            if request.pinned_cell_id is not None:
                raise RequestError(
                    "pinned_cell_id", "an opportunistic group cannot ask for a pinned cell; give it priority 0 or more"
                )
            shared = () if self.sharing is Sharing.PRIVATE else enumerate(chains)
            places = [(number, number) for number, chain in shared if wanted in (None, chain.leaf_type)]
        else:
            pools = self._pools[tenant]
            pinned = request.pinned_cell_id
            if pinned is not None and all(name != pinned for _, name in pools):
                have = _listed([name for _, name in pools if name is not None]) or "none"
                raise RequestError("pinned_cell_id", f"{request.vc!r} has no pinned cell {pinned!r}; it has {have}")
            of_vc = [(where, number) for where, (number, name) in enumerate(pools) if name == pinned]
            places = [(where, number) for where, number in of_vc if wanted in (None, chains[number].leaf_type)]
            if wanted is not None and not places:
                what = f"{request.vc!r}" if pinned is None else f"pinned cell {pinned!r}"
                have = _listed(sorted({chains[number].leaf_type for _, number in of_vc})) or "none"
                raise RequestError("leaf_cell_type", f"{what} has no cells of {wanted!r}; it has {have}")
        return places

    def _choice(self, request: Request, where: int, number: int) -> Choice | None:
        hierarchy = self.hierarchies[number]
        levels = {name: level for level, name in enumerate(self._names(number), 1)}
        needs: list[Need] = []
        for position, member in enumerate(request.members):
            if member.cell_type is None:
                size = hierarchy.node_size
                if request.whole_nodes and member.leaf_cells > size:
                    needs += [Need(size)] * (-(-member.leaf_cells // size) * member.pods)
                    continue
                need = Need(member.leaf_cells)
            else:
                level = levels.get(member.cell_type)
                if level is None:
                    return None
                if level > hierarchy.node_level:
                    node = hierarchy.name(hierarchy.node_level)
                    raise RequestError(
                        f"members[{position}].cell_type",
                        f"a pod runs on one node, and {member.cell_type!r} is above {node!r}: "
                        f"ask for {hierarchy.gpus[level] // hierarchy.node_size} pods of {node!r} within it",
                    )
                need = Need(hierarchy.gpus[level], level)
            needs += [need] * member.pods
        if request.within is None:
            caps: tuple[int, ...] = (0,)
        elif request.within not in levels:
            return None
        elif request.soft_affinity:
            caps = (*range(levels[request.within], hierarchy.top + 1), 0)
        else:
            caps = (levels[request.within],)
        return Choice(where, number, tuple(needs), caps)


def pools_of(spec: ClusterSpec, vc: VirtualClusterSpec, sharing: Sharing) -> list[tuple[int, str | None]]:
    """Chain number and pinned cell id of each pool of a VC, in the order of :func:`.sharing.lay_out`."""
    names = {cells.chain for cells in vc.cells if cells.number}
    if sharing is Sharing.QUOTA:  # a number of leaf cells of a type, in whichever chain has them
        types = {spec.chain(name).leaf_type for name in names}
        names = {chain.name for chain in spec.chains if chain.leaf_type in types}
    chains = [chain.name for chain in spec.chains]
    pools: list[tuple[int, str | None]] = [(number, None) for number, name in enumerate(chains) if name in names]
    return pools + [(chains.index(pin.chain), pin.pinned_cell_id) for pin in vc.pinned]


def _key(request: Any) -> tuple[object, ...] | None:
    """What tells requests apart but for name and priority; None for one that may be wrong in itself. O(members).

    Fields that equal others of another type (1, 1.0 and True) have to be of the right one.
    """
    if type(request) is not Request:
        return None
    values = _FIELDS(request)
    if (*map(type, values),) not in _TYPES:
        return None
    group, members, priority, guest, *others = values
    if not group or not OPPORTUNISTIC <= priority <= HIGHEST or (guest and priority >= 0):
        return None
    for member in members:
        if type(member) is not Member:
            return None
        values = _MEMBER_FIELDS(member)
        if (*map(type, values),) not in _MEMBER_TYPES:
            return None
        others += values
    return priority < 0, *others


def _check_name_and_priority(request: Any) -> None:
    kind = type(request)
    if kind is not Request:
        raise RequestError("request", f"expected a Request, not {request!r}")
    group = request.group
    if not isinstance(group, str) or not group:
        raise RequestError("group", f"a name, not {group!r}")
    priority = request.priority
    if type(priority) is not int or not OPPORTUNISTIC <= priority <= HIGHEST:
        raise RequestError(
            "priority",
            f"{priority!r} is out of range: {OPPORTUNISTIC} (opportunistic), or 0 to {HIGHEST} (guaranteed)",
        )


def _check_members(members: Any) -> None:
    if not members:
        raise RequestError(
            "members", "empty: a group has at least one pod, e.g. members=[Member(pods=1, leaf_cells=8)]"
        )
    for position, member in enumerate(members):
        kind = type(member)
        if kind is not Member:
            raise RequestError(f"members[{position}]", f"expected a Member, not {member!r}")
        field = f"members[{position}]"
        if type(member.pods) is not int or member.pods < 1:
            raise RequestError(f"{field}.pods", f"at least 1, not {member.pods!r}")
        if member.cell_type is not None:
            if not isinstance(member.cell_type, str):
                raise RequestError(f"{field}.cell_type", f"a name, not {member.cell_type!r}")
            if member.leaf_cells != 0:
                raise RequestError(f"{field}.leaf_cells", "leaf_cells and cell_type are two ways to say it; give one")
        elif type(member.leaf_cells) is not int or member.leaf_cells < 1:
            raise RequestError(f"{field}.leaf_cells", f"at least 1, not {member.leaf_cells!r}")


def _listed(names: Sequence[str] | dict[str, int]) -> str:
    """Some names for a message: the first ten."""
    listed = list(names)
    return ", ".join(map(repr, listed[:10])) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
