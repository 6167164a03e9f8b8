"""The compilation of requests: checked against the spec, with names resolved to levels and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from hived.cells import Hierarchy, Need
from hived.errors import RequestError
from hived.spec.compiled import ClusterSpec

from .nodes import Nodes
from .pool import Pool
from .requests import HIGHEST, OPPORTUNISTIC, Member, Request

#: the fields that distinguish requests, and their valid types
_FIELDS = attrgetter(
    "group", "members", "priority", "guest", "vc", "leaf_cell_type", "pinned_cell_id", "within", "soft_affinity",
    "lazy_preemption", "whole_nodes", "saves_work",
)  # fmt: skip
_TYPES = {
    (str, tuple, int, bool, str, *names, bool, bool, bool, bool) for names in product((str, type(None)), repeat=3)
}
_MEMBER_FIELDS = attrgetter("pods", "leaf_cells", "cell_type")
_MEMBER_TYPES = {(int, int, str), (int, int, type(None))}
#: pods of all cached demands: a few dozen bytes each
MAX_CACHED_PODS = 1_000_000

#: numbers of a pool (or chain) and of its chain, and that chain
_Place = tuple[int, int, Hierarchy]


class Choice(NamedTuple):
    """One candidate for a request: a pool of its VC or, for an opportunistic request, a chain."""

    where: int  #: number of the pool among the VC's, or of the chain
    chain: int  #: number of the chain
    needs: tuple[Need, ...]  #: one per pod
    caps: tuple[int, ...]  #: highest common levels, tried in turn; 0 for none


class Demand(NamedTuple):
    """A request compiled for this cluster. Equal for requests that differ in name and priority alone."""

    by: Any  #: the :class:`Demands` of one spec that compiled it
    tenant: int
    choices: tuple[Choice, ...]  #: in the order of the spec; none when there are more pods than leaf cells
    tries: tuple[tuple[int, Choice], ...]  #: the attempts in order: index of the cap, and choice
    gpus: int  #: leaf cells of all pods, in the first choice
    least_gpus: int  #: in the choice where they are fewest
    pods: int
    largest_pod: int  #: leaf cells of the largest pod


class Demands:
    """Checks requests against one spec, with a cache by shape."""

    def __init__(self, spec: ClusterSpec, lent: Sequence[Nodes], pools: Sequence[Sequence[Pool]]) -> None:
        """``lent``: the chains that opportunistic groups may use; ``pools``: of each tenant."""
        self.lent = lent
        # the pools that each tenant had when this was made: its demands have their numbers
        self._numbers = _numbers(pools)
        # whether tenants have chains of their own: there guests stay among themselves
        self._private = not lent
        self._pools = pools
        self._gpus = spec.gpus
        self._tenants = {vc.name: number for number, vc in enumerate(spec.virtual_clusters)}
        self._leaf_types = {chain.leaf_type for chain in spec.chains}
        self._known: dict[tuple[object, ...], Demand] = {}
        self._pods = 0

    def under(self, spec: ClusterSpec) -> Demands:
        """Those of a spec in which tenants have other numbers of cells: these, while they have the same pools."""
        return self if self._numbers == _numbers(self._pools) else Demands(spec, self.lent, self._pools)

    def of(self, request: Request) -> Demand:
        """The demand of ``request``. Raises :class:`RequestError` naming the field. O(pods); O(1) once cached."""
        key = _key(request)
        demand = None if key is None else self._known.get(key)
        if demand is None:
            demand = self._compile(request)
            self._pods += demand.pods if demand.choices else 1
            if self._pods > MAX_CACHED_PODS:
                self._known.clear()
                self._pods = 0
            if key is not None:
                self._known[key] = demand
        return demand

    def _compile(self, request: Request) -> Demand:
        check_form(request)
        tenant = self._tenants.get(request.vc)
        if tenant is None:
            raise RequestError("vc", f"there is no virtual cluster {request.vc!r}; there are {_listed(self._tenants)}")
        places = self._places(request, tenant)
        pods = request.pods
        choices: list[Choice] = []
        if pods <= self._gpus and places:
            types = {name for _, _, hierarchy in places for name in hierarchy.names[1:]}
            named = [(f"members[{at}].cell_type", member.cell_type) for at, member in enumerate(request.members)]
            for field, name in (*named, ("within", request.within)):
                if name is not None and name not in types:
                    raise RequestError(field, f"no cell of type {name!r} there; there are {_listed(sorted(types))}")
            choices = [choice for place in places if (choice := _choice(request, place)) is not None]
            if not choices:
                raise RequestError("members", "no chain has all the cell types asked for (within among them)")
        sizes = [(member.leaf_cells or 1, member.pods) for member in request.members]
        if choices:
            sizes = [(need.gpus, 1) for need in choices[0].needs]
        gpus = sum(size * number for size, number in sizes)
        tries = [(step, choice) for choice in choices for step in range(len(choice.caps))]
        tries.sort(key=itemgetter(0))
        least = min((sum([need.gpus for need in choice.needs]) for choice in choices), default=gpus)
        return Demand(self, tenant, tuple(choices), tuple(tries), gpus, least, pods, max(sizes)[0])

    def _places(self, request: Request, tenant: int) -> list[_Place]:
        """The pools or chains that the request may use, in the order of the attempts."""
        wanted, pinned = request.leaf_cell_type, request.pinned_cell_id
        if wanted is not None and wanted not in self._leaf_types:
            have = _listed(sorted(self._leaf_types))
            raise RequestError("leaf_cell_type", f"there is no leaf cell type {wanted!r}; there are {have}")
        if request.opportunistic:
            if pinned is not None:
                raise RequestError(
                    "pinned_cell_id", "an opportunistic group cannot ask for a pinned cell; give it priority 0 or more"
                )
            lent = self.lent
            if request.guest and self._private:
                lent = [pool.nodes for pool in self._pools[tenant] if pool.pinned is None]
            places = [(nodes.number, nodes.number, nodes.hierarchy) for nodes in lent]
        else:
            pools = self._pools[tenant]
            if pinned is not None and all(pool.pinned != pinned for pool in pools):
                have = _listed([pool.pinned for pool in pools if pool.pinned is not None]) or "none"
                raise RequestError("pinned_cell_id", f"{request.vc!r} has no pinned cell {pinned!r}; it has {have}")
            places = [(p.number, p.nodes.number, p.virtual.hierarchy) for p in pools if p.pinned == pinned]
        right = [place for place in places if wanted in (None, place[2].spec.leaf_type)]
        if not (right or request.opportunistic or wanted is None):
            what = f"{request.vc!r}" if pinned is None else f"pinned cell {pinned!r}"
            have = _listed(sorted({hierarchy.spec.leaf_type for _, _, hierarchy in places})) or "none"
            raise RequestError("leaf_cell_type", f"{what} has no cells of {wanted!r}; it has {have}")
        return right


def _numbers(pools: Sequence[Sequence[Pool]]) -> list[list[Pool]]:
    return [list(of_tenant) for of_tenant in pools]


def _choice(request: Request, place: _Place) -> Choice | None:
    """Compile a request for one pool or chain; None where it has no cells of a requested type."""
    where, number, hierarchy = place
    levels = {name: level for level, name in enumerate(hierarchy.names)}
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
                node = hierarchy.names[hierarchy.node_level]
                raise RequestError(
                    f"members[{position}].cell_type",
                    f"a pod runs on one node, and {member.cell_type!r} is above {node!r}: "
                    f"ask for {hierarchy.gpus[level] // hierarchy.node_size} pods of {node!r} within it",
                )
            need = Need(hierarchy.gpus[level], level)
        needs += [need] * member.pods
    caps: tuple[int, ...] = (0,)
    if request.within is not None:
        if request.within not in levels:
            return None
        lowest = levels[request.within]
        caps = (*range(lowest, hierarchy.top + 1), 0) if request.soft_affinity else (lowest,)
    return Choice(where, number, tuple(needs), caps)


def _key(request: Any) -> tuple[object, ...] | None:
    """The cache key of a request, without name and priority; None for a request that may be malformed. O(members).

    Types are compared too, since 1, 1.0 and True are equal.
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
    return priority < 0, guest, *others


def check_form(request: Any) -> None:
    """Raise :class:`RequestError` for a request that is malformed in any cluster.

    The types are in variables so that neither this code nor a compiler relies on the annotations.
    """
    kind = type(request)
    if kind is not Request:
        raise RequestError("request", f"expected a Request, not {request!r}")
    group, priority, members = request.group, request.priority, request.members
    if not isinstance(group, str) or not group:
        raise RequestError("group", f"a name, not {group!r}")
    if type(priority) is not int or not OPPORTUNISTIC <= priority <= HIGHEST:
        raise RequestError(
            "priority",
            f"{priority!r} is out of range: {OPPORTUNISTIC} (opportunistic), or 0 to {HIGHEST} (guaranteed)",
        )
    for field in ("lazy_preemption", "soft_affinity", "whole_nodes", "guest", "saves_work"):
        if type(getattr(request, field)) is not bool:
            raise RequestError(field, f"true or false, not {getattr(request, field)!r}")
    if request.guest and priority != OPPORTUNISTIC:
        raise RequestError("guest", "a guest is opportunistic; ask with priority -1, or not as a guest")
    for field in ("vc", "leaf_cell_type", "pinned_cell_id", "within"):
        name = getattr(request, field)
        if not isinstance(name, str) and (name is not None or field == "vc"):
            raise RequestError(field, f"a name, not {name!r}")
    if not members:
        raise RequestError(
            "members", "empty: a group has at least one pod, e.g. members=[Member(pods=1, leaf_cells=8)]"
        )
    for position, member in enumerate(members):
        field, kind = f"members[{position}]", type(member)
        if kind is not Member:
            raise RequestError(field, f"expected a Member, not {member!r}")
        number, leaf_cells, cell_type = member.pods, member.leaf_cells, member.cell_type
        if type(number) is not int or number < 1:
            raise RequestError(f"{field}.pods", f"at least 1, not {number!r}")
        if cell_type is None:
            if type(leaf_cells) is not int or leaf_cells < 1:
                raise RequestError(f"{field}.leaf_cells", f"at least 1, not {leaf_cells!r}")
        elif not isinstance(cell_type, str):
            raise RequestError(f"{field}.cell_type", f"a name, not {cell_type!r}")
        elif leaf_cells != 0:
            raise RequestError(f"{field}.leaf_cells", "leaf_cells and cell_type are two ways to say it; give one")


def _listed(names: Iterable[str]) -> str:
    """Some names for a message: the first ten."""
    listed = list(names)
    return ", ".join(map(repr, listed[:10])) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
