"""The inspection API: paths, field names, values and errors of the deployed scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from hived import Bind, Cluster, Preempt, Request
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.inspection import AT_ONCE, GroupPods, inspection_routes

from ..contract.specs import flat, lent, racks, reserves, wants
from ..server.api.client import Client

#: what the deployed scheduler gives every cell
ALWAYS = {"cellType", "cellAddress", "cellState", "cellHealthiness", "cellPriority"}


class Source(EngineService):
    """A cluster and its pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.pods: dict[str, GroupPods] = {}
        self.lazy: dict[str, tuple[str, str]] = {}

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def run(self, *requests: Request) -> None:
        """Ask, and commit what is answered."""
        for request in requests:
            decision = self.cluster.schedule(request)
            assert isinstance(decision, (Bind, Preempt)), decision
            self.cluster.commit(decision)
            uids = tuple(f"{request.group}-{number}" for number in range(len(decision.placement.pods)))
            self.pods[request.group] = GroupPods(uids) if isinstance(decision, Bind) else GroupPods((), uids)

    def title(self, group: str) -> str:
        return group

    def by_title(self, title: str) -> str:
        return title

    def pods_of(self, group: str) -> GroupPods:
        return self.pods[group]

    def lazy_preemption(self, group: str) -> tuple[str, str] | None:
        return self.lazy.get(group)


def served(source: Source) -> FastAPI:
    app = FastAPI(redirect_slashes=False)
    app.include_router(inspection_routes(source))
    return app


def got(source: Source, path: str) -> Any:
    """What is there, as JSON."""
    response = Client(served(source)).get(f"/v1/inspect/{path}")
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
def busy() -> Source:
    """Two racks of two nodes: ``a`` has a rack, ``b`` a node; loans, a preemption, a bad node."""
    source = Source(Cluster.from_spec(racks({"a": {"RACK": 1}, "b": {"RACK.NODE": 1}})))
    source.cluster.set_node_health("r1n1", healthy=False)
    source.run(
        wants("a/train", "a", (2, 4), priority=1), lent("borrowed", "a", 4), wants("b/train", "b", 2, priority=3)
    )
    return source


FOUR = [0, 1, 2, 3]
GROUPS: dict[str, dict[str, object]] = {
    "a/train": {
        "vc": "a",
        "priority": 1,
        "state": "Allocated",
        "physicalPlacement": {"r0n0": FOUR, "r0n1": FOUR},
        "virtualPlacement": {"a/0": [f"a/0/{leaf // 4}/{leaf // 2}/{leaf}" for leaf in range(8)]},
        "allocatedPods": ["a/train-0", "a/train-1"],
    },
    "b/train": {
        "vc": "b",
        "priority": 3,
        "state": "Preempting",
        "physicalPlacement": {"r1n0": [0, 1]},
        "virtualPlacement": {"b/0": ["b/0/0/0", "b/0/0/1"]},
        "preemptingPods": ["b/train-0"],
    },
    "borrowed": {
        "vc": "a",
        "priority": -1,
        "state": "BeingPreempted",
        "physicalPlacement": {"r1n0": FOUR},
        "allocatedPods": ["borrowed-0"],
    },
}


def test_groups(busy: Source) -> None:
    """All that hold cells, and none that waits."""
    busy.cluster.schedule(wants("waits", "a", (2, 4), priority=1))
    listed = got(busy, "affinitygroups/")
    assert listed == got(busy, "affinitygroups")
    assert listed == {"items": [{"metadata": {"name": name}, "status": status} for name, status in GROUPS.items()]}
    assert [got(busy, f"affinitygroups/{name}") for name in GROUPS] == listed["items"]


def test_lazily_preempted_group() -> None:
    source = Source(Cluster.from_spec(flat({"a": 1}, spare=1)))
    source.run(wants("low", "a", 4, priority=0, lazy_preemption=True), wants("high", "a", 4, priority=1))
    source.lazy["low"] = ("high", "2026-01-02T03:04:05Z")
    status = got(source, "affinitygroups/low")["status"]
    assert status["lazyPreemptionStatus"] == {"preemptor": "high", "preemptionTime": "2026-01-02T03:04:05Z"}
    assert "virtualPlacement" not in status
    assert status["priority"] == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("affinitygroups/nobody", "there is no affinity group 'nobody'"),
        ("affinitygroups/waits", "affinity group 'waits' waits"),
        ("clusterstatus/virtualclusters/nobody", "there is no virtual cluster 'nobody'"),
    ],
    ids=["group", "waits", "vc"],
)
def test_what_is_not_there(busy: Source, path: str, words: str) -> None:
    """A string with status 400."""
    busy.cluster.schedule(wants("waits", "a", (2, 4), priority=1))
    response = Client(served(busy)).get(f"/v1/inspect/{path}")
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert isinstance(response.json(), str)
    assert words in response.json()


def test_physical_cell_and_its_virtual_cell(busy: Source) -> None:
    physical = got(busy, "clusterstatus/physicalcluster")
    top = {key: value for key, value in physical[0].items() if key != "cellChildren"}
    of = {"leafCellType": "GPU"}
    assert top == cell("RACK", "0", 1, vc="a", virtualCell=cell("RACK", "a/0", 1, **of), **of)
    node = physical[0]["cellChildren"][1]
    assert (node["cellAddress"], node["isNodeLevel"], node["virtualCell"]["isNodeLevel"]) == ("0/r0n1", True, True)
    leaf = node["cellChildren"][1]["cellChildren"][1]
    assert leaf == cell("GPU", "0/r0n1/1/3", 1, vc="a", virtualCell=cell("GPU", "a/0/1/3/7", 1))


def test_words_of_the_deployed_scheduler(busy: Source) -> None:
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
    busy.cluster.release("borrowed")
    cells = {cell["cellAddress"]: cell for cell in cells_in(got(busy, "clusterstatus/physicalcluster"))}
    assert cells["1/r1n0/0"]["cellState"] == "Reserved"


def test_vc_with_bound_cells_and_loans(busy: Source) -> None:
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


def test_the_whole_is_its_parts(busy: Source) -> None:
    """With and without a slash."""
    whole = got(busy, "clusterstatus")
    assert whole == got(busy, "clusterstatus/")
    assert whole.keys() == {"physicalCluster", "virtualClusters"}
    for slash in ("", "/"):
        assert whole["physicalCluster"] == got(busy, f"clusterstatus/physicalcluster{slash}")
        assert whole["virtualClusters"] == got(busy, f"clusterstatus/virtualclusters{slash}")
    for vc in ("a", "b"):
        assert whole["virtualClusters"][vc] == got(busy, f"clusterstatus/virtualclusters/{vc}")


def test_fields_of_every_cell(busy: Source) -> None:
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
    source = Source(Cluster.from_spec(flat({"a": 0}, nodes=1)))
    assert got(source, "affinitygroups/") == {"items": []}
    assert got(source, "clusterstatus/virtualclusters/") == {"a": []}
    assert got(source, "clusterstatus/virtualclusters/a") == []


def test_answer_in_pieces_is_of_one_moment() -> None:
    """Groups end while the answer is under way; it shows them all the same."""
    source = Source(Cluster.from_spec(flat({"a": 200})))
    source.run(*[wants(f"g{number}", "a", 4) for number in range(100)])
    before = got(source, "clusterstatus")
    assert len(cells_in(before["physicalCluster"])) > 3 * AT_ONCE
    app, pieces = served(source), 0

    async def ends_groups(scope: Any, receive: Any, send: Any) -> None:
        async def watch(message: Any) -> None:
            nonlocal pieces
            await send(message)
            if message["type"] == "http.response.body" and message.get("more_body"):
                if pieces < 100:
                    source.cluster.release(f"g{pieces}")
                pieces += 1

        await app(scope, receive, watch)

    assert Client(ends_groups).get("/v1/inspect/clusterstatus").json() == before
    assert pieces > 6
    assert got(source, "clusterstatus") != before


def test_names_with_marks() -> None:
    spec = flat({'ä "b"': 1})
    spec["physicalCluster"]["physicalCells"][0]["pinnedCellId"] = "pin"
    spec["virtualClusters"] = {'ä "b"': reserves(pinned=["pin"])}
    whole = got(Source(Cluster.from_spec(spec)), "clusterstatus/virtualclusters/")
    assert list(whole) == ['ä "b"']
    assert whole['ä "b"'][0]["cellAddress"] == 'ä "b"/0'
