"""The inspection API: paths, field names, values and errors of the deployed scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from hived.server.kubernetes import inspection
from hived.server.kubernetes.inspection import inspection_routes
from hived.spec import spec_from_dict

from ..contract.specs import flat, racks, reserves
from ..server.api.client import Client
from .fake_kubernetes import World
from .pods import gang_of, node, pod
from .replica import service_of

#: what the deployed scheduler gives every cell
ALWAYS = {"cellType", "cellAddress", "cellState", "cellHealthiness", "cellPriority"}


def inspected(spec: dict[str, Any]) -> World:
    return World(spec_from_dict(spec))


def served(world: World) -> FastAPI:
    app = FastAPI(redirect_slashes=False)
    app.include_router(inspection_routes(service_of(world)))
    return app


def got(world: World, path: str) -> Any:
    """What is there, as JSON."""
    response = Client(served(world)).get(f"/v1/inspect/{path}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def cells_in(trees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All cells of some trees, from the top down."""
    found = []
    for tree in trees:
        found += [tree, *cells_in(tree.get("cellChildren", []))]
    return found


def cell(kind: str, address: str, priority: int, **more: object) -> dict[str, object]:
    """A cell in use."""
    used = {"cellState": "Used", "cellHealthiness": "Healthy"}
    return {"cellType": kind, "cellAddress": address, **used, "cellPriority": priority, **more}


@pytest.fixture
def busy() -> World:
    """Two racks of two nodes: ``a`` has a rack, ``b`` a node; a loan, a preemption, a bad node, a gang that waits."""
    world = inspected(racks({"a": {"RACK": 1}, "b": {"RACK.NODE": 1}}))
    world.set_node(node("r1n1", ready=False))
    world.run(*gang_of("train", 2, 4, "a", priority="1"), pod("loan", 4, "a", priority="-1"))
    group = "{name: own, members: [{podNumber: 1, leafCellNumber: 2}]}"
    own = pod("own", said=f"{{virtualCluster: b, priority: 3, leafCellNumber: 2, affinityGroup: {group}}}")
    world.wants(own, *gang_of("waits", 2, 4, "a", priority="1"))
    world.question("waits-0")
    return world


FOUR = [0, 1, 2, 3]
GROUPS: dict[str, dict[str, object]] = {
    "t/loan": {
        "vc": "a",
        "priority": -1,
        "state": "BeingPreempted",
        "physicalPlacement": {"r1n0": FOUR},
        "allocatedPods": ["uid-t-loan"],
    },
    "own": {
        "vc": "b",
        "priority": 3,
        "state": "Preempting",
        "physicalPlacement": {"r1n0": [0, 1]},
        "virtualPlacement": {"b/0": ["b/0/0/0", "b/0/0/1"]},
        "preemptingPods": ["uid-t-own"],
    },
    "t/train": {
        "vc": "a",
        "priority": 1,
        "state": "Allocated",
        "physicalPlacement": {"r0n0": FOUR, "r0n1": FOUR},
        "virtualPlacement": {"a/0": [f"a/0/{leaf // 4}/{leaf // 2}/{leaf}" for leaf in range(8)]},
        "allocatedPods": ["uid-t-train-0", "uid-t-train-1"],
    },
}


def test_groups(busy: World) -> None:
    """All that hold cells, and none that waits; upstream's by the names in their pods."""
    listed = got(busy, "affinitygroups/")
    assert listed == got(busy, "affinitygroups")
    assert listed == {"items": [{"metadata": {"name": name}, "status": status} for name, status in GROUPS.items()]}
    assert [got(busy, f"affinitygroups/{name}") for name in GROUPS] == listed["items"]


def test_lazily_preempted_group() -> None:
    world = inspected(flat({"a": 1}, spare=1))
    world.run(pod("low", 4, lazy_preemption="true"))
    assert "lazyPreemptionStatus" not in got(world, "affinitygroups/t/low")["status"]
    world.now = 1010.0
    world.run(pod("high", 4, priority="1"))
    status = got(world, "affinitygroups/t/low")["status"]
    assert status["lazyPreemptionStatus"] == {"preemptor": "t/high", "preemptionTime": "1970-01-01T00:16:50Z"}
    assert "virtualPlacement" not in status
    assert status["priority"] == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("affinitygroups/nobody", "there is no affinity group 'nobody'"),
        ("affinitygroups/t/waits", "affinity group 't/waits' waits"),
        ("clusterstatus/virtualclusters/nobody", "there is no virtual cluster 'nobody'"),
    ],
    ids=["group", "waits", "vc"],
)
def test_what_is_not_there(busy: World, path: str, words: str) -> None:
    """A string with status 400."""
    response = Client(served(busy)).get(f"/v1/inspect/{path}")
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert isinstance(response.json(), str)
    assert words in response.json()


def test_physical_cell_and_its_virtual_cell(busy: World) -> None:
    physical = got(busy, "clusterstatus/physicalcluster")
    top = {key: value for key, value in physical[0].items() if key != "cellChildren"}
    of = {"leafCellType": "GPU"}
    assert top == cell("RACK", "0", 1, vc="a", virtualCell=cell("RACK", "a/0", 1, **of), **of)
    node = physical[0]["cellChildren"][1]
    assert (node["cellAddress"], node["isNodeLevel"], node["virtualCell"]["isNodeLevel"]) == ("0/r0n1", True, True)
    leaf = node["cellChildren"][1]["cellChildren"][1]
    assert leaf == cell("GPU", "0/r0n1/1/3", 1, vc="a", virtualCell=cell("GPU", "a/0/1/3/7", 1))


def test_words_of_the_deployed_scheduler(busy: World) -> None:
    """For states, priorities and health."""
    cells = {cell["cellAddress"]: cell for cell in cells_in(got(busy, "clusterstatus/physicalcluster"))}
    for address, words in {
        "1": ("Used", "Bad", 3),
        "1/r1n0": ("Used", "Healthy", 3),
        "1/r1n0/0": ("Reserving", "Healthy", 3),
        "1/r1n0/1/2": ("Used", "Healthy", -1),
        "1/r1n1": ("Free", "Bad", -2),
        "1/r1n1/1/3": ("Free", "Bad", -2),
    }.items():
        assert tuple(cells[address][key] for key in ("cellState", "cellHealthiness", "cellPriority")) == words, address
    assert (cells["1/r1n0/0/1"]["vc"], cells["1/r1n0/1/2"]["vc"]) == ("b", "a")
    assert "virtualCell" not in cells["1/r1n0/1/2"]
    busy.gang_scheduler.cluster.release("t/loan")
    cells = {cell["cellAddress"]: cell for cell in cells_in(got(busy, "clusterstatus/physicalcluster"))}
    assert cells["1/r1n0/0"]["cellState"] == "Reserved"


def test_vc_with_bound_cells_and_loans(busy: World) -> None:
    b = got(busy, "clusterstatus/virtualclusters/b")
    assert [(cell["cellAddress"], cell["cellState"], cell["cellPriority"]) for cell in cells_in(b)] == [
        ("b/0", "Used", 3),
        *((f"b/0/{address}", "Reserving", 3) for address in ("0", "0/0", "0/1")),
        *((f"b/0/{address}", "Free", -2) for address in ("1", "1/2", "1/3")),
    ]
    assert b[0]["physicalCell"]["cellAddress"] == "1/r1n0"
    assert "physicalCell" not in b[0]["cellChildren"][1]
    rack, *loans = got(busy, "clusterstatus/virtualclusters/a")
    assert rack["cellAddress"] == "a/0"
    assert [loan["cellAddress"] for loan in loans] == ["1/r1n0/1/2-opp", "1/r1n0/1/3-opp"]
    assert loans[0] == cell("GPU", "1/r1n0/1/2-opp", -1, physicalCell=cell("GPU", "1/r1n0/1/2", -1, vc="a"))


def test_the_whole_is_its_parts(busy: World) -> None:
    """With and without a slash."""
    whole = got(busy, "clusterstatus")
    assert whole == got(busy, "clusterstatus/")
    assert whole.keys() == {"physicalCluster", "virtualClusters"}
    for slash in ("", "/"):
        assert whole["physicalCluster"] == got(busy, f"clusterstatus/physicalcluster{slash}")
        assert whole["virtualClusters"] == got(busy, f"clusterstatus/virtualclusters{slash}")
    for vc in ("a", "b"):
        assert whole["virtualClusters"][vc] == got(busy, f"clusterstatus/virtualclusters/{vc}")


def test_fields_of_every_cell(busy: World) -> None:
    whole = got(busy, "clusterstatus")
    for cell in cells_in(whole["physicalCluster"]):
        assert ALWAYS <= cell.keys() <= ALWAYS | {"leafCellType", "isNodeLevel", "cellChildren", "vc", "virtualCell"}
        assert cell.get("virtualCell", {}).keys() <= ALWAYS | {"leafCellType", "isNodeLevel"}
    for cell in cells_in([cell for cells in whole["virtualClusters"].values() for cell in cells]):
        assert ALWAYS <= cell.keys() <= ALWAYS | {"leafCellType", "isNodeLevel", "cellChildren", "physicalCell"}
        assert cell.get("physicalCell", {}).keys() <= ALWAYS | {"leafCellType", "isNodeLevel", "vc"}
    tops = [*whole["physicalCluster"], whole["virtualClusters"]["a"][0], *whole["virtualClusters"]["b"]]
    assert all(cell["leafCellType"] == "GPU" for cell in tops)
    assert all("leafCellType" not in cell for top in tops for cell in cells_in(top["cellChildren"]))


def test_nothing_is_an_empty_list() -> None:
    world = inspected(flat({"a": 0}, nodes=1))
    assert got(world, "affinitygroups/") == {"items": []}
    assert got(world, "clusterstatus/virtualclusters/") == {"a": []}
    assert got(world, "clusterstatus/virtualclusters/a") == []


def test_answer_in_pieces_is_of_one_moment(busy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups end while the answer is under way; it shows them all the same."""
    monkeypatch.setattr(inspection, "AT_ONCE", 5)
    before = got(busy, "clusterstatus")
    app, pieces = served(busy), 0

    async def ends_groups(scope: Any, receive: Any, send: Any) -> None:
        async def watch(message: Any) -> None:
            nonlocal pieces
            await send(message)
            if message["type"] == "http.response.body" and message.get("more_body"):
                if pieces == 0:
                    busy.ended("train-0", "train-1", "loan")
                pieces += 1

        await app(scope, receive, watch)

    assert Client(ends_groups).get("/v1/inspect/clusterstatus").json() == before
    assert pieces > 6
    assert got(busy, "clusterstatus") != before


def test_names_with_marks() -> None:
    spec = flat({'ä "b"': 1})
    spec["physicalCluster"]["physicalCells"][0]["pinnedCellId"] = "pin"
    spec["virtualClusters"] = {'ä "b"': reserves(pinned=["pin"])}
    whole = got(inspected(spec), "clusterstatus/virtualclusters/")
    assert list(whole) == ['ä "b"']
    assert whole['ä "b"'][0]["cellAddress"] == 'ä "b"/0'
