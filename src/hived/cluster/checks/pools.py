"""The check of a pool against its groups."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from hived.cells.checks import check_space
from hived.cluster.groups import Group
from hived.cluster.pool import MAX_VIEWS, Pool, precedence_of
from hived.cluster.sharing import IdentityBinding, QuotaPool
from hived.cluster.static_binding import StaticBinding
from hived.errors import ensure

from .bindings import check_bindings, check_static

_NO_GROUPS: dict[Group, int] = {}


def check_pool(pool: Pool, groups: Iterable[Group]) -> None:
    """Re-derive holders, free leaves and views from the groups. O(hosts * views + groups)."""
    pool.refresh()
    held: dict[int, dict[Group, int]] = {}
    at: dict[int, set[Group]] = {}
    for group in groups:
        at.setdefault(precedence_of(group), set()).add(group)
        for host, mask in group.spots:
            of_host = held.setdefault(host, {})
            of_host[group] = of_host.get(group, 0) | mask
    ensure(held == pool.held, "groups per virtual host")
    ensure(at == {precedence: set(equals) for precedence, equals in pool.at.items()}, "groups per precedence")
    for host in range(pool.virtual.hosts):
        for one, mask in held.get(host, {}).items():
            for other, others in held[host].items():
                if one is not other and mask & others:
                    ensure(one.running != other.running, f"{one} and {other}: one runs, one has reserved")
                    runs, reserves = (one, other) if one.running else (other, one)
                    ensure(runs.priority <= reserves.priority, f"{one} and {other}: no lower one reserves")
    if isinstance(pool, QuotaPool):  # the nodes have its leaves
        ensure(pool.quota.left <= pool.quota.limit, "a quota is not given back twice")
    else:
        _check_spaces(pool)
    binding = pool.binding
    if isinstance(binding, StaticBinding):
        check_static(binding)
    elif not isinstance(binding, IdentityBinding):
        check_bindings(binding)


def _check_spaces(pool: Pool) -> None:
    for host, (shape, free) in enumerate(zip(pool.virtual.shapes, pool.free, strict=True)):
        taken = reduce(or_, pool.held.get(host, _NO_GROUPS).values(), 0)
        ensure(free == shape.full & ~taken, f"free leaves of virtual host {host}")
        free &= ~pool.binding.bad[host]
        ensure(pool._space.free[host] == free, f"healthy free leaves of virtual host {host}")
        for up_to, view in pool._views.items():
            obtainable = pool._healthy(host) & ~pool._blocked(host, up_to)
            ensure(view.free[host] == obtainable, f"leaves to be had at precedence {up_to} in host {host}")
            ensure(view.idle[host] == free, f"free ones among them in host {host}")
    for view in [pool._space, *pool._views.values()]:
        check_space(view)
    ensure(pool._unused.keys() == pool._views.keys() and len(pool._views) <= MAX_VIEWS, "views that are kept")
