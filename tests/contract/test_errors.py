"""A request that cannot be right is an error that names the field, and nothing has changed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hived import Bind, Cluster, Member, Preempt, Request, RequestError
from hived.cluster.decisions import Placement
from hived.cluster.explain.reasons import Misconfigured
from hived.errors import InputError
from hived.spec import spec_from_dict
from hived.spec.compiled import PinnedCellSpec

from .driver import Driver, running
from .specs import flat, lent, wants

WRONG: list[tuple[str, Request]] = [
    ("vc", wants("job", "nobody", 1)),
    ("vc", lent("job", "nobody", 1)),
    ("vc", wants("job", "", 1)),
    ("priority", wants("job", "a", 1, priority=-2)),
    ("priority", wants("job", "a", 1, priority=1001)),
    ("priority", wants("job", "a", 1, priority=10**9)),
    ("pinned_cell_id", wants("job", "a", 1, pinned_cell_id="nothing")),
    ("pinned_cell_id", wants("job", "b", 1, pinned_cell_id="pin-2")),
    ("pinned_cell_id", lent("job", "a", 1, pinned_cell_id="pin-2")),
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
def test_wrong_field_is_named(field: str, request_: Request) -> None:
    """Nothing changes, and a plan says the same."""
    driver = running(flat({"a": 1, "b": 1}, spare=1, pinned={2: "a"}), wants("other", "a", 1))
    error = driver.refused(request_, field)
    plan = driver.cluster.plan(request_)
    assert (plan.outcome, plan.reasons) == ("never", (Misconfigured(error.field, error.message),))


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
def test_running_group_cannot_become_another(field: str, changes: dict[str, Any]) -> None:
    driver = running(flat({"a": 2, "b": 1}), wants("job", "a", 2))
    other = Request(**{"group": "job", "vc": "a", "members": (Member(1, 2),)} | changes)
    driver.refused(other, field)
    assert isinstance(driver.ask(wants("job", "a", 2)), Bind)


def test_preempting_group_cannot_become_another() -> None:
    driver = running(flat({"a": 2}), *(wants(name, "a", 4) for name in ("one", "two")))
    driver.preempt(wants("high", "a", 4, priority=1))
    driver.refused(wants("high", "a", (2, 4), priority=1), "members")


@pytest.mark.parametrize("call", ["release", "cancel", "group", "explain"])
def test_no_such_group(call: str) -> None:
    driver = running(flat({"a": 1}), wants("gone", "a", 1), wants("job", "a", 1))
    driver.release("gone")
    before = driver.cluster.snapshot()
    for name in ("ghost", "gone", *(["job"] if call == "cancel" else [])):  # what runs is not cancelled
        with pytest.raises(RequestError):
            getattr(driver.cluster, call)(name)
    assert driver.cluster.snapshot() == before
    driver.check()


def test_decision_of_another_cluster() -> None:
    """It is refused, and so is one that was made up."""
    other = running(flat({"a": 2}), (wants("first", "a", 4), "n0"))
    driver = running(flat({"a": 1, "b": 1}), wants("theirs", "b", 4))
    driver.ask(wants("job", "a", 4))
    forged = Preempt("job", Placement("NODE", driver.running["theirs"].pods), ("theirs",))
    for mine, decision in ((Driver(flat({"a": 1})), other.ask(wants("job", "a", 4))), (driver, forged)):
        before = mine.cluster.snapshot()
        with pytest.raises(RequestError):
            mine.cluster.commit(decision)
        assert mine.cluster.snapshot() == before
        mine.check()


def test_members_that_are_no_sequence() -> None:
    with pytest.raises(RequestError) as caught:
        Request(group="job", vc="a", members=7)  # type: ignore[arg-type]
    assert caught.value.field == "members"


def test_spec_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    with pytest.raises(InputError):
        Cluster.load(str(path))
    path.write_text(json.dumps(flat({"a": 1})))
    assert isinstance(Cluster.load(str(path)).schedule(wants("job", "a", 2)), Bind)


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ([PinnedCellSpec("p", "SHELF", 3, 0)], "a reserves cells of chain 'SHELF'; there is NODE"),
        ([PinnedCellSpec("p", "NODE", 4, 0)], "a reserves 1 cells of level 4: chain NODE has levels 1 to 3"),
        ([PinnedCellSpec("p", "NODE", 0, 0)], "a reserves 1 cells of level 0: chain NODE has levels 1 to 3"),
        ([PinnedCellSpec("p", "NODE", 3, 3)], "'p' of a is cell 3 of level 3: chain NODE has 3 cells there, from 0"),
        ([PinnedCellSpec("p", "NODE", 3, -1)], "'p' of a is cell -1 of level 3"),
        ([PinnedCellSpec("p", "NODE", 3, 1), PinnedCellSpec("q", "NODE", 1, 7)], "'p' of a and 'q' of a share leaf"),
    ],
)
def test_cells_that_no_chain_has(pins: list[PinnedCellSpec], says: str) -> None:
    """In a spec that a program made."""
    spec = spec_from_dict(flat({"a": 1, "b": 1}, spare=1))
    vc = replace(spec.virtual_clusters[0], pinned=tuple(pins))
    with pytest.raises(InputError, match=re.escape(says)):
        Cluster(replace(spec, virtual_clusters=(vc, *spec.virtual_clusters[1:])))
