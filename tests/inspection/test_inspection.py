"""Every cell as it is shown: of leaves, groups, health and bindings it says what the rest of the contract says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pytest

from hived import Cluster, LeafState, Member, Request, RequestError, Wait
from hived.cluster.states import GroupState
from hived.inspection import Cell, Inspection, virtual_leaves
from hived.spec import ClusterSpec, load_spec

from ..contract.driver import Driver
from ..contract.hardware import Hardware
from ..contract.specs import flat, lent, reserves, wants
from ..contract.walks import SEEDS, SPECS, Walk
from ..strategies import given_in_tiers

SHARED = Path(__file__).parents[3] / "shared"
REAL_SPECS = sorted([*SHARED.glob("specs/design.yaml"), *SHARED.glob("specs/hived-config-*.yaml")])
RUNS = (LeafState.USED, LeafState.RESERVING)
RESERVES = (LeafState.RESERVED, LeafState.RESERVING)
#: cells by VC; leaf cells by chain, node and device
Shown = dict[str, list[Cell]]
Leaves = dict[tuple[str, str, int], Cell]


def agrees(cluster: Cluster, spec: ClusterSpec) -> None:
    """All that can be inspected agrees with itself and with the rest of the contract."""
    before = cluster.snapshot()
    inspection = Inspection(cluster)
    physical = list(inspection.physical())
    virtual = {vc: list(inspection.virtual(vc)) for vc in inspection.vcs}
    assert {vc.name for vc in spec.virtual_clusters} <= set(inspection.vcs)
    assert len({(cell.chain, cell.address) for cell in physical}) == len(physical)
    leaves = _leaves_by_device(physical, spec)
    _physical_leaves_are_the_groups(cluster, leaves)
    _has_the_cells_of(physical, spec)
    _parents_follow_their_children(physical)
    for vc, cells in virtual.items():
        own = [cell for cell in cells if not cell.lent]
        assert len({cell.address for cell in cells}) == len(cells)
        assert {cell.vc for cell in cells} <= {vc}
        _parents_follow_their_children(own)
        assert list(Inspection(cluster).virtual(vc)) == cells
    _reserved_cells_are_the_specs(virtual, spec)
    _every_binding_is_seen_from_both_sides(physical, virtual)
    _groups_are_placed_in_their_vcs(cluster, virtual, leaves)
    _loans_are_shown(cluster, virtual, leaves)
    _doomed_cells_are_bad(cluster, virtual)
    assert cluster.snapshot() == before, "looking has changed the state"


def _leaves_by_device(physical: Iterable[Cell], spec: ClusterSpec) -> Leaves:
    """The leaf cells by chain, node and device, by what their addresses say."""
    chains = {chain.name: chain for chain in spec.chains}
    found = {}
    for cell in physical:
        if cell.level == 1:
            chain, parts = chains[cell.chain], cell.address.split("/")
            device = chain.device_index(0, 0) if cell.is_node else int(parts[-1])
            found[cell.chain, parts[len(chain.levels) - chain.node_level], device] = cell
    return found


def _physical_leaves_are_the_groups(cluster: Cluster, leaves: Leaves) -> None:
    priorities: dict[tuple[str, int], int] = {}
    for name in cluster.groups():
        group = cluster.group(name)
        for node, devices in group.placement.pods if group.placement is not None and not group.guest else ():
            for device in devices:
                priority = group.priority if group.guaranteed else -1
                priorities[node, device] = max(priorities.get((node, device), -2), priority)
    for (_, node, device), cell in leaves.items():
        assert cell.state is cluster.leaf_state(node, device), cell
        assert cell.priority == priorities.pop((node, device), -2), cell
        assert (cell.priority == -2) == (cell.state is LeafState.FREE)
    assert not priorities


def _has_the_cells_of(physical: Sequence[Cell], spec: ClusterSpec) -> None:
    shown = Counter((cell.chain, cell.level, cell.cell_type, cell.is_node) for cell in physical)
    assert shown == {
        (chain.name, level, kind.cell_type, level == chain.node_level): chain.cells_at(level)
        for chain in spec.chains
        for level, kind in enumerate(chain.levels, 1)
    }
    assert {cell.address.split("/")[-1] for cell in physical if cell.is_node} == {
        name for chain in spec.chains for name in chain.node_names
    }


def _parents_follow_their_children(cells: Sequence[Cell]) -> None:
    """The rules for a cell with others in it; and those are the ones that its address says."""
    children: dict[int, list[Cell]] = {}
    above: list[int] = []
    for number, cell in enumerate(cells):
        del above[cell.depth :]
        assert len(above) == cell.depth
        if above:
            parent = cells[above[-1]]
            assert cell.address.rpartition("/")[0] == parent.address
            assert cell.level == parent.level - 1
            children.setdefault(above[-1], []).append(cell)
        above.append(number)
    for number, inside in children.items():
        cell = cells[number]
        states = {child.state for child in inside}
        shared = states.pop() if len(states) == 1 else None
        runs = any(child.state in RUNS for child in inside)
        assert cell.state is (shared or (LeafState.USED if runs else LeafState.FREE)), cell
        assert cell.healthy == all(child.healthy for child in inside), cell
        assert cell.priority == max(child.priority for child in inside), cell


def _reserved_cells_are_the_specs(virtual: Shown, spec: ClusterSpec) -> None:
    for vc in spec.virtual_clusters:
        wanted = [(cells.chain, cells.level) for cells in vc.cells for _ in range(cells.number)]
        wanted += [(pin.chain, pin.level) for pin in vc.pinned]
        tops = [cell for cell in virtual[vc.name] if cell.depth == 0 and not cell.lent]
        assert [(cell.chain, cell.level) for cell in tops] == wanted
        assert [cell.address for cell in tops] == [f"{vc.name}/{number}" for number in range(len(wanted))]
        counted: dict[int, int] = {}
        for cell in virtual[vc.name]:
            if cell.depth and not cell.lent:
                assert cell.address.rpartition("/")[2] == str(counted.get(cell.level, 0)), "counted in the top cell"
                counted[cell.level] = counted.get(cell.level, 0) + 1
            else:
                counted = {}
        for pin, top in zip(vc.pinned, tops[len(tops) - len(vc.pinned) :], strict=True):
            assert top.other is not None, f"{pin} is bound for good"


def _every_binding_is_seen_from_both_sides(physical: Sequence[Cell], virtual: Shown) -> None:
    from_below = {(cell.chain, cell.address): cell for cell in physical if cell.other is not None}
    from_above = {
        (cell.chain, cell.other.address): cell
        for cells in virtual.values()
        for cell in cells
        if cell.other is not None and not cell.lent
    }
    assert from_below.keys() == from_above.keys()
    for key, below in from_below.items():
        above = from_above[key]
        assert below == above.other._replace(other=below.other) if above.other else False
        assert above == below.other._replace(other=above.other) if below.other else False
        assert (below.level, below.cell_type, below.healthy) == (above.level, above.cell_type, above.healthy)
        assert below.vc == above.vc
        assert above.priority <= below.priority
        if above.level == 1 and above.state is not LeafState.FREE:
            assert (above.state, above.priority) == (below.state, below.priority)
    for cells in virtual.values():
        for cell in cells:
            if cell.other is None:
                assert (cell.state, cell.healthy, cell.priority) == (LeafState.FREE, True, -2), "unbound, and not free"


def _groups_are_placed_in_their_vcs(cluster: Cluster, virtual: Shown, leaves: Leaves) -> None:
    by_address = {cell.address: cell for cells in virtual.values() for cell in cells}
    in_use: set[str] = set()
    for name in cluster.groups():
        group = cluster.group(name)
        held = virtual_leaves(cluster, name)
        assert group.vc in virtual or not held
        if not group.guaranteed:
            assert held == ()
            continue
        assert group.placement is not None
        chain = group.placement.chain
        on = set()
        for reserved, leaf in held:
            cell = by_address[leaf]
            assert by_address[reserved].depth == 0
            assert leaf.startswith(reserved)
            assert (cell.level, cell.vc) == (1, group.vc)
            assert cell.state in (RUNS if group.state is not GroupState.PREEMPTING else RESERVES), name
            assert cell.priority >= group.priority
            assert cell.other is not None
            on.add(cell.other.address)
            in_use.add(leaf)
        assert on == {
            leaves[chain, node, device].address for node, devices in group.placement.pods for device in devices
        }
        levels = {by_address[reserved].level for reserved, _ in held}
        assert levels == set(group.placement.reserved_levels)
    for cell in by_address.values():
        if cell.level == 1 and not cell.lent:
            assert (cell.state is not LeafState.FREE) == (cell.address in in_use), cell


def _loans_are_shown(cluster: Cluster, virtual: Shown, leaves: Leaves) -> None:
    by_device = {(node, device): cell for (_, node, device), cell in leaves.items()}
    wanted: dict[str, set[str]] = {vc: set() for vc in virtual}
    groups = [cluster.group(name) for name in cluster.groups()]
    reserved = {
        device: group.name for group in groups if group.state is GroupState.PREEMPTING for device in _devices_of(group)
    }
    for group in groups:
        if group.placement is not None and not group.guaranteed and not group.guest:  # a guest holds no cells
            for device in _devices_of(group):
                if reserved.get(device, group.name) == group.name:
                    wanted[group.vc].add(f"{by_device[device].address}-opp")
    for vc, cells in virtual.items():
        shown = [cell for cell in cells if cell.lent]
        assert {cell.address for cell in shown} == wanted[vc]
        for cell in shown:
            assert cell.other is not None
            assert (cell.depth, cell.level, cell.priority) == (0, 1, -1)
            assert cell.other.vc == vc or cell.other.priority == -1
            assert cell.address == f"{cell.other.address}-opp"


def _devices_of(group: object) -> list[tuple[str, int]]:
    placement = getattr(group, "placement", None)
    return [(node, device) for node, devices in placement.pods for device in devices] if placement is not None else []


def _doomed_cells_are_bad(cluster: Cluster, virtual: Shown) -> None:
    for vc, chain, cell_type, node in cluster.doomed():
        assert any(
            cell.other is not None
            and not cell.healthy
            and (cell.depth, cell.chain, cell.cell_type) == (0, chain, cell_type)
            and (node in cell.other.address.split("/") or cell.level > 1)
            for cell in virtual[vc]
        ), (vc, cell_type, node)


def watch(walk: Walk, steps: int) -> None:
    """Look at every cell after every event."""
    walk.driver.careful = False
    try:
        for _ in range(steps):
            walk.event()()
            agrees(walk.driver.cluster, walk.driver.hardware.spec)
    except Exception as error:
        error.add_note("\n".join(walk.driver.lines))
        raise


@given_in_tiers(5, 60, SPECS, SEEDS)
def test_any_events(spec: ClusterSpec, seed: int) -> None:
    watch(Walk(spec, seed), 40)


@given_in_tiers(4, 30, SPECS, SPECS, SEEDS)
def test_any_events_and_new_specs(spec: ClusterSpec, other: ClusterSpec, seed: int) -> None:
    watch(Walk(spec, seed, [spec, other]), 30)


@pytest.mark.skipif(not REAL_SPECS, reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize("path", REAL_SPECS, ids=lambda path: path.stem)
def test_deployed_cluster(path: Path) -> None:
    spec = load_spec(path)
    cluster = Cluster(spec)
    agrees(cluster, spec)
    random = Random(path.stem)
    nodes = Hardware(spec).nodes
    for node in random.sample(nodes, max(1, len(nodes) // 5)):
        cluster.set_node_health(node, healthy=False)
    for number in range(60):
        vc, members = random.choice(spec.virtual_clusters).name, (Member(1, random.randint(1, 4)),)
        decision = cluster.schedule(Request(f"g{number}", vc, random.choice([-1, 0, 3]), members=members))
        if not isinstance(decision, Wait):
            cluster.commit(decision)
        if number % 10 == 0:
            agrees(cluster, spec)
    assert any(cluster.group(name).placement for name in cluster.groups())
    agrees(cluster, spec)


def test_reservation_over_a_loan() -> None:
    driver = Driver(flat({"a": 1, "b": 0}))
    driver.bind(lent("loan", "b", 4))
    driver.preempt(wants("job", "a", 4, priority=1))
    inspection = Inspection(driver.cluster)
    assert {cell.state for cell in inspection.physical()} == {LeafState.RESERVING}
    assert {(cell.state, cell.priority) for cell in inspection.virtual("a")} == {(LeafState.RESERVING, 1)}
    assert list(inspection.virtual("b")) == []
    driver.release("loan")
    assert {cell.state for cell in Inspection(driver.cluster).physical()} == {LeafState.RESERVED}
    assert {cell.state for cell in inspection.physical()} == {LeafState.RESERVING}, "an inspection is of one moment"


def test_loan_on_a_pinned_cell() -> None:
    spec = flat({"b": 0}, nodes=1)
    spec["physicalCluster"]["physicalCells"][0]["pinnedCellId"] = "pin"
    spec["virtualClusters"]["a"] = reserves(pinned=["pin"])
    driver = Driver(spec)
    driver.bind(lent("loan", "b", 1))
    inspection = Inspection(driver.cluster)
    (below, *_), (above, *_) = inspection.physical(), inspection.virtual("a")
    assert (above.state, above.priority, above.other) == (LeafState.FREE, -2, below._replace(other=None))
    assert (below.state, below.priority, below.other) == (LeafState.USED, -1, above._replace(other=None))
    lent_to = [(cell.address, cell.vc) for cell in inspection.physical() if cell.priority == -1]
    assert lent_to == [("n0", "a"), ("n0/0", None), ("n0/0/0", "b")]


def test_vc_that_a_new_spec_lacks() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("job", "b", 2))
    driver.cluster.reconfigure(flat({"a": 2}))
    inspection = Inspection(driver.cluster)
    assert inspection.vcs == ("a", "b")
    assert [cell.address for cell in inspection.virtual("b")] == ["n0/0/0-opp", "n0/0/1-opp"]
    driver.cluster.release("job")
    assert Inspection(driver.cluster).vcs == ("a",)


def test_groups_and_vcs_that_are_not_there() -> None:
    """A group that waits has no virtual placement."""
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", 4))
    driver.wait(wants("waits", "a", 4))
    assert virtual_leaves(driver.cluster, "waits") == ()
    with pytest.raises(RequestError, match="'nobody': no such group"):
        virtual_leaves(driver.cluster, "nobody")
    with pytest.raises(RequestError, match="there is no virtual cluster 'z'"):
        Inspection(driver.cluster).virtual("z")
