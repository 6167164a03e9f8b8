"""The consistency check of a pool's bindings against the leaves in use and the bad leaves."""

from __future__ import annotations

from hived.cluster.binding import Binding, Inner
from hived.cluster.static_binding import StaticBinding
from hived.errors import ensure


def check_bindings(binding: Binding) -> None:
    """Check that the cells in use or bad are bound, each in its parent's, no two to one cell. O(cells of the VC)."""
    virtual, hierarchy, allocator = binding.virtual, binding.virtual.hierarchy, binding.allocator
    live = [0] * len(virtual.cells)
    if binding.pinned >= 0:
        live[binding.pinned] = 1
    taken: set[tuple[int, int]] = set()
    for number, (level, parent) in enumerate(virtual.cells):
        physical = binding.bound[number]
        if parent < 0:
            ensure(
                (physical < 0) == (number in binding.unbound[level]), f"cell {number} is listed as unbound while it is"
            )
        if physical < 0:
            continue
        ensure((level, physical) not in taken, f"physical cell {physical} of level {level} is bound to one cell")
        taken.add((level, physical))
        if parent >= 0:
            live[parent] += number not in binding.anchored
            above = physical // hierarchy.fanout[level + 1]
            ensure(binding.bound[parent] == above, f"virtual cell {number} is bound inside its parent's cell")
            ensure(not allocator.is_open(level, physical), f"cell {physical} was taken")
        else:
            ensure(
                binding.owners.get((level, physical)) == (binding, number), f"cell {number} is known to be bound there"
            )
        if number in binding.anchored:
            ensure(allocator.is_bad(level, physical), f"anchored cell {number} is bound to bad hardware")
        if number >= virtual.hosts and allocator.bad_leaves:
            for child in allocator.bad_children(level - 1, physical):
                ensure(not allocator.is_open(level - 1, child), f"bad child {child} is anchored")
    ensure(live == binding.live, "children in use per virtual cell")
    for number, bound in enumerate(binding.bound):
        used = number < virtual.hosts and binding.free[number] != virtual.shapes[number].full
        in_use = bound >= 0 and number not in binding.anchored
        ensure(in_use == (used or live[number] > 0), f"virtual cell {number} is bound while something in it is in use")
    for host, inner in enumerate(binding.inner):
        if inner is None:
            ensure(not binding.bad[host], f"host {host}: bad leaves are bound")
        else:
            _check_inside(binding, host, inner)


def _check_inside(binding: Binding, host: int, inner: Inner) -> None:
    virtual, shape = binding.virtual, binding.virtual.shapes[host]
    for cell, children in enumerate(shape.children):
        bound_to = [inner[c] for c in children if inner[c] >= 0]
        ensure(len(set(bound_to)) == len(bound_to), f"host {host}: inner cells are bound to different ones")
        at = inner[cell]
        ensure(all(at >= 0 and c in shape.children[at] for c in bound_to), f"host {host}: inner cells nest")
    for cell, leaves in enumerate(shape.masks):
        if cell and inner[cell] >= 0:
            idle = binding.free[host] & ~binding.bad[host]
            ensure(leaves & idle != leaves, f"host {host}: inner cell {cell} is bound while in use")
    node, part = divmod(binding.bound[host], virtual.hierarchy.node_size // shape.leaves)
    bad = binding.bad_leaves[node] >> part * shape.leaves & shape.full
    bound_to_bad = 0
    for cell, leaves in enumerate(shape.masks):
        if not shape.children[cell] and leaves & binding.bad[host]:
            ensure(inner[cell] >= 0, f"host {host}: bad leaf {cell} is bound")
            bound_to_bad |= shape.masks[inner[cell]]
    ensure(bound_to_bad == bad, f"host {host}: its bad leaves are bound to the bad ones")


def check_static(binding: StaticBinding) -> None:
    """Check that all cells are bound, each in its place in its parent's, and that the bad leaves are known."""
    virtual, hierarchy = binding.virtual, binding.virtual.hierarchy
    for number, (level, parent) in enumerate(virtual.cells):
        at = binding.bound[number]
        ensure(at >= 0 and not binding.allocator.is_open(level, at), f"virtual cell {number} is bound")
        if parent < 0:
            ensure(binding.owners.get((level, at)) == (binding, number), f"cell {number} is known to be bound there")
            continue
        fanout = hierarchy.fanout[level + 1]
        place = binding.bound[parent] * fanout + binding.children[parent].index(number)
        ensure(at == place, f"virtual cell {number} is bound to the cell of its number")
    ensure(not any(len(cells) for cells in binding.unbound), "no preassigned cell is unbound")
    for host in range(virtual.hosts):
        ensure(binding.bad[host] == binding._bad_in(host), f"bad leaves of host {host}")
    ensure(binding.bad_hosts == {host for host, bad in enumerate(binding.bad) if bad}, "hosts with bad leaves")
