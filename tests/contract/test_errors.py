"""A request that cannot be right is an error that names the field, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hived import Bind, Cluster, Member, Preempt, Request, RequestError
from hived.cluster.reasons import Misconfigured
from hived.errors import InfeasibleError, InputError, SpecError

from .driver import Driver
from .specs import Spec, flat, lent, wants


def pinned() -> Spec:
    """VC a has a node and a pinned one, b a node."""
    spec = flat({"a": 1, "b": 1}, spare=1)
    spec["physicalCluster"]["physicalCells"][2]["pinnedCellId"] = "a-pin"
    spec["virtualClusters"]["a"]["pinnedCells"] = [{"pinnedCellId": "a-pin"}]
    return spec


WRONG: list[tuple[str, Request]] = [
    ("vc", wants("job", "nobody", 1)),
    ("vc", lent("job", "nobody", 1)),
    ("vc", wants("job", "", 1)),
    ("priority", wants("job", "a", 1, priority=-2)),
    ("priority", wants("job", "a", 1, priority=1001)),
    ("priority", wants("job", "a", 1, priority=10**9)),
    ("pinned_cell_id", wants("job", "a", 1, pinned_cell_id="nothing")),
    ("pinned_cell_id", wants("job", "b", 1, pinned_cell_id="a-pin")),
    ("pinned_cell_id", lent("job", "a", 1, pinned_cell_id="a-pin")),
    ("leaf_cell_type", wants("job", "a", 1, leaf_cell_type="TPU")),
    ("leaf_cell_type", wants("job", "a", 1, leaf_cell_type="NODE")),
    ("within", wants("job", "a", 1, within="GALAXY")),
    ("members[0].cell_type", wants("job", "a", Member(pods=1, cell_type="SHELF"))),
    ("members[1].cell_type", wants("job", "a", 1, Member(pods=1, cell_type="SHELF"))),
    ("members", wants("job", "a")),
    ("members[0].pods", wants("job", "a", (0, 1))),
    ("members[0].pods", wants("job", "a", (-1, 1))),
    ("members[1].pods", wants("job", "a", (1, 1), (0, 1))),
    ("members[0].leaf_cells", wants("job", "a", (1, 0))),
    ("members[0].leaf_cells", wants("job", "a", (1, -4))),
    ("group", wants("", "a", 1)),
]


@pytest.mark.parametrize(("field", "request_"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_field_is_named(field: str, request_: Request) -> None:
    driver = Driver(pinned())
    driver.bind(wants("other", "a", 1))
    driver.refused(request_, field)
    assert "job" not in driver.cluster.groups()


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("members", {"members": (Member(2, 2),)}),
        ("members", {"members": (Member(1, 3),)}),
        ("members", {"members": (Member(1, 2), Member(1, 2))}),
        ("vc", {"vc": "b"}),
        ("priority", {"priority": 3}),
        ("priority", {"priority": -1}),
    ],
)
def test_a_group_that_runs_cannot_become_another(field: str, changes: dict[str, Any]) -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("job", "a", 2))
    other = Request(**{"group": "job", "vc": "a", "members": (Member(1, 2),)} | changes)
    driver.refused(other, field)
    assert isinstance(driver.ask(wants("job", "a", 2)), Bind)


def test_a_group_that_preempts_cannot_become_another() -> None:
    driver = Driver(flat({"a": 2}))
    for name in ("one", "two"):
        driver.bind(wants(name, "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
    driver.refused(wants("high", "a", (2, 4), priority=1), "members")


def test_many_errors_leave_no_trace() -> None:
    driver = Driver(pinned())
    before = driver.cluster.snapshot()
    for field, request in WRONG:
        driver.refused(request, field)
    assert driver.cluster.snapshot() == before
    assert not list(driver.cluster.groups())


def test_a_plan_of_a_wrong_request_never_fits_and_names_the_field() -> None:
    driver = Driver(flat({"a": 1}))
    plan = driver.cluster.plan(wants("job", "nobody", 1))
    assert plan.outcome == "never"
    (reason,) = plan.reasons
    assert isinstance(reason, Misconfigured)
    assert reason.field == "vc"


@pytest.mark.parametrize("call", ["release", "cancel", "group", "explain"])
def test_an_unknown_group_is_an_error(call: str) -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", 1))
    before = driver.cluster.snapshot()
    with pytest.raises(RequestError):
        getattr(driver.cluster, call)("ghost")
    assert driver.cluster.snapshot() == before
    driver.check()


def test_a_group_is_released_once() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", 1))
    driver.release("job")
    with pytest.raises(RequestError):
        driver.cluster.release("job")
    driver.check()


def test_a_running_group_is_not_cancelled() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", 1))
    before = driver.cluster.snapshot()
    with pytest.raises(RequestError):
        driver.cluster.cancel("job")
    assert driver.cluster.snapshot() == before
    driver.check()


def test_a_decision_of_another_cluster_is_refused() -> None:
    mine, other = Driver(flat({"a": 1})), Driver(flat({"a": 2}))
    other.bind(wants("first", "a", 4), suggested=["n0"])
    decision = other.ask(wants("job", "a", 4))
    with pytest.raises(RequestError):
        mine.cluster.commit(decision)
    mine.check()


def test_a_forged_decision_is_refused() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("theirs", "b", 4))
    driver.ask(wants("job", "a", 4))
    before = driver.cluster.snapshot()
    placement = driver.cluster.group("theirs").placement
    assert placement is not None
    forged = Preempt("job", placement, ("theirs",))
    with pytest.raises(RequestError):
        driver.cluster.commit(forged)
    assert driver.cluster.snapshot() == before
    driver.check()


def test_members_that_are_no_sequence_are_an_error_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        Request(group="job", vc="a", members=7)  # type: ignore[arg-type]
    assert caught.value.field == "members"


def test_a_spec_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InfeasibleError):
        Cluster.from_spec(flat({"a": 2}, nodes=1))


@pytest.mark.parametrize("weight", [-1, "much", [1], True])
def test_a_weight_that_is_no_number_is_refused(weight: Any) -> None:
    spec = flat({"a": 1})
    spec["virtualClusters"]["a"]["opportunisticWeight"] = weight
    with pytest.raises(SpecError):
        Cluster.from_spec(spec)


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Cluster.load(str(tmp_path / "missing.yaml"))


def test_a_spec_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "physicalCluster:\n"
        "  cellTypes:\n"
        "    NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}\n"
        "  physicalCells:\n"
        "  - {cellType: NODE, cellAddress: x}\n"
        "virtualClusters:\n"
        "  a:\n"
        "    opportunisticWeight: 2\n"
        "    virtualCells: [{cellType: NODE, cellNumber: 1}]\n"
    )
    cluster = Cluster.load(str(path))
    assert isinstance(cluster.schedule(wants("job", "a", 2)), Bind)
