"""``hived check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .helpers import NODES, Hived

SHARED = Path(__file__).parents[3] / "shared" / "specs"
SPECS = sorted([*SHARED.glob("design.yaml"), *SHARED.glob("hived-config-*.yaml")])


def test_a_feasible_spec_is_shown_as_a_tree(hived: Hived, folder: Path) -> None:
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    assert answer.err == ""
    for words in ("physical cluster: 16 GPUs", "NODE x 2", "n0, n1", "virtual clusters: 2", "── a: 8 GPUs", "feasible"):
        assert words in answer.out
    assert "infeasible" not in answer.out


def test_an_infeasible_spec_is_shown_with_what_is_missing(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("cellNumber: 1", "cellNumber: 2"), encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert answer.code == 2
    for words in ("infeasible: spec.yaml", "reserve 4", "a 2, b 2", "2 can be had", "2 fewer", "add 2"):
        assert words in answer.out


@pytest.mark.parametrize(("number", "feasible"), [(1, True), (2, False)])
def test_json_says_the_same_to_programs(hived: Hived, folder: Path, number: int, feasible: bool) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("cellNumber: 1", f"cellNumber: {number}"), encoding="utf-8")
    answer = hived("check", "spec.yaml", "--json")
    assert answer.code == (0 if feasible else 2)
    found = json.loads(answer.out)
    assert found["feasible"] is feasible
    assert found["gpus"] == 16
    assert [vc["name"] for vc in found["virtual_clusters"]] == ["a", "b"]
    assert [chain["nodes"] for chain in found["chains"]] == [2]
    assert bool(found["shortages"]) is not feasible
    if not feasible:
        (short,) = found["shortages"]
        assert (short["need"], short["supply"], short["reserve_fewer"]) == (4, 2, 2)


def test_the_weight_of_a_vc_among_opportunistic_groups_is_shown_where_it_is_given(hived: Hived, folder: Path) -> None:
    text = NODES.replace("a: {", "a: {opportunisticWeight: 2.5, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    lines = [line.strip("─├└ ") for line in hived("check", "spec.yaml").out.splitlines()]
    assert "a: 8 GPUs, opportunistic weight 2.5" in lines
    assert "b: 8 GPUs" in lines
    found = json.loads(hived("check", "spec.yaml", "--json").out)
    assert [vc.get("opportunisticWeight") for vc in found["virtual_clusters"]] == [2.5, None]
    assert "opportunisticWeight" not in found["virtual_clusters"][1]


def test_the_cap_on_the_grace_of_loans_is_shown_where_it_is_not_the_default(hived: Hived, folder: Path) -> None:
    text = NODES.replace("a: {", "a: {opportunisticGraceSeconds: 90, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    lines = [line.strip("─├└ ") for line in hived("check", "spec.yaml").out.splitlines()]
    assert "a: 8 GPUs, loans have at most 90 s of grace" in lines
    assert "b: 8 GPUs" in lines
    found = json.loads(hived("check", "spec.yaml", "--json").out)
    assert [vc["opportunisticGraceSeconds"] for vc in found["virtual_clusters"]] == [90, 30]


def test_the_guests_that_a_vc_takes_in_are_shown_where_there_can_be_any(hived: Hived, folder: Path) -> None:
    text = NODES.replace("a: {", "a: {guests: all, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    lines = [line.strip("─├└ ") for line in hived("check", "spec.yaml").out.splitlines()]
    assert "a: 8 GPUs, guests of all VCs beside its jobs" in lines
    assert "b: 8 GPUs" in lines
    found = json.loads(hived("check", "spec.yaml", "--json").out)
    assert [vc["guests"] for vc in found["virtual_clusters"]] == ["all", "none"]


def test_exact_safety_is_shown_and_refused_beside_a_policy_for_which_it_cannot_hold(hived: Hived, folder: Path) -> None:
    text = NODES.replace("a: {", "a: {safety: exact, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    lines = [line.strip("─├└ ") for line in hived("check", "spec.yaml").out.splitlines()]
    assert "a: 8 GPUs, exact safety" in lines
    found = json.loads(hived("check", "spec.yaml", "--json").out)
    assert [vc.get("safety") for vc in found["virtual_clusters"]] == ["exact", None]
    (folder / "spec.yaml").write_text(text.replace("safety: exact", "safety: exact, policy: gandiva"), encoding="utf-8")
    refused = hived("up", "spec.yaml", "--simulated", "--state", folder / "state")
    print(refused.err)
    assert refused.code == 5


def test_json_of_a_wrong_spec_is_no_json_but_one_line_on_standard_error(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("n[0-1]", "n[1-0]"), encoding="utf-8")
    answer = hived("check", "--json", "spec.yaml")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1


@pytest.mark.skipif(not SPECS, reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_deployed_spec_is_shown_and_feasible(hived: Hived, path: Path) -> None:
    answer = hived("check", path)
    assert answer.code == 0, answer.out
    assert answer.err == ""
    assert "…" not in answer.out
    found = json.loads(hived("check", "--json", path).out)
    assert found["feasible"]
    for key in found["ignored"]:
        assert f"ignored: {key['key']}" in answer.out


def test_a_million_gpus_are_checked(hived: Hived, folder: Path) -> None:
    text = NODES.replace("n[0-1]", "n[0-131071]").replace("cellNumber: 1", "cellNumber: 65536")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    assert "1,048,576 GPUs" in answer.out
    assert "n0, n1, ... n131071" in answer.out
