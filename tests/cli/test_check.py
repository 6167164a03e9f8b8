"""``hived check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from .helpers import NODES, Hived, refused

SHARED = Path(__file__).parents[3] / "shared" / "specs"
SPECS = sorted([*SHARED.glob("design.yaml"), *SHARED.glob("hived-config-*.yaml")])


def test_feasible_spec_as_a_tree(hived: Hived, folder: Path) -> None:
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    assert answer.err == ""
    for words in ("physical cluster: 16 GPUs", "NODE x 2", "n0, n1", "virtual clusters: 2", "── a: 8 GPUs", "feasible"):
        assert words in answer.out
    assert "infeasible" not in answer.out
    found = json.loads(hived("check", "spec.yaml", "--json").out)
    assert (found["feasible"], found["gpus"], found["shortages"]) == (True, 16, [])
    assert [vc["name"] for vc in found["virtual_clusters"]] == ["a", "b"]
    assert [chain["nodes"] for chain in found["chains"]] == [2]


def test_infeasible_spec_and_what_is_missing(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("cellNumber: 1", "cellNumber: 2"), encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert answer.code == 2
    for words in ("infeasible: spec.yaml", "reserve 4", "a 2, b 2", "2 can be had", "2 fewer", "add 2"):
        assert words in answer.out
    answer = hived("check", "spec.yaml", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["feasible"]) == (2, False)
    (short,) = found["shortages"]
    assert (short["need"], short["supply"], short["reserve_fewer"]) == (4, 2, 2)


@pytest.mark.parametrize(
    ("key", "value", "other", "words"),
    [
        ("opportunisticWeight", 2.5, None, "opportunistic weight 2.5"),
        ("opportunisticGraceSeconds", 90, 30, "loans have at most 90 s of grace"),
        ("guests", "all", "none", "guests of all VCs beside its jobs"),
        ("safety", "exact", None, "exact safety"),
    ],
)
def test_option_of_a_vc_is_shown(
    hived: Hived, folder: Path, key: str, value: object, other: object, words: str
) -> None:
    """In words where it is not the default; as JSON it is left out where there is none."""
    text = NODES.replace("a: {", f"a: {{{key}: {value}, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    lines = [line.strip("─├└ ") for line in hived("check", "spec.yaml").out.splitlines()]
    assert f"a: 8 GPUs, {words}" in lines
    assert "b: 8 GPUs" in lines
    found = json.loads(hived("check", "spec.yaml", "--json").out)["virtual_clusters"]
    assert [vc.get(key) for vc in found] == [value, other]
    assert (key in found[1]) is (other is not None)


def test_a_vc_without_cells_is_said_to_give_way(hived: Hived, folder: Path) -> None:
    """Its loans went for those of any other, and nothing of the spec said so."""
    (folder / "spec.yaml").write_text(NODES.rstrip() + "\n  loans: {}\n", encoding="utf-8")
    said = hived("check", "spec.yaml").out
    assert "loans: 0 GPUs, so its loans give way to those of all others (opportunisticWeight)" in said
    (folder / "spec.yaml").write_text(NODES.rstrip() + "\n  loans: {opportunisticWeight: 1}\n", encoding="utf-8")
    assert "give way" not in hived("check", "spec.yaml").out


def test_who_may_use_it_is_shown(hived: Hived, folder: Path) -> None:
    """In the tree and as JSON; who is no user of this machine is named, for it may be the spec of another."""
    rules = 'members: [root, bne, "group:nosuch", "namespace:ml", "*"], admins: [root], maxJobs: 3, maxPriority: 0, '
    text = NODES.replace("a: {", "a: {" + rules + "fileGroup: root, ", 1) + "operators: [root, olgaa]\n"
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    lines = [line.strip("─├└│ ") for line in answer.out.splitlines()]
    for line in (
        "virtual clusters: 2, operators: root, olgaa", "members: root, bne, group:nosuch, namespace:ml, *",
        "admins: root", "a member: at most 3 jobs that have not ended, priority 0",
        "files: read by the group root too",
    ):  # fmt: skip
        assert line in lines
    assert answer.err.splitlines() == [
        "hived: this machine has no user olgaa, whom the spec has among its operators",
        "hived: this machine has no user bne, whom a has among its members",
        "hived: this machine has no group nosuch, whom a has among its members",
    ]
    found = json.loads(hived("spec", "check", "spec.yaml", "-o", "json").out)
    assert found == json.loads(hived("check", "spec.yaml", "--json").out)
    assert found == yaml.safe_load(hived("spec", "check", "spec.yaml", "-o", "yaml").out)
    first, second = found["virtual_clusters"]
    assert (first["members"][1], first["admins"], first["maxJobs"], first["maxPriority"], first["fileGroup"]) == (
        "bne", ["root"], 3, 0, "root",
    )  # fmt: skip
    assert not {"members", "admins", "maxJobs", "maxGpus"} & set(second)
    assert "maxGpus" not in first
    assert found["operators"] == ["root", "olgaa"]
    assert refused(hived("spec", "check", "spec.yaml", "--json", "-o", "yaml")).startswith("--json and -o yaml: ")


@pytest.mark.parametrize("policy", ["fare", "fair:half=3"])
def test_policy_by_which_no_engine_starts(hived: Hived, folder: Path, policy: str) -> None:
    """The spec was called feasible, and the engine did not start with it."""
    text = NODES.replace("b: {", f"b: {{policy: '{policy}', ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    line = refused(hived("check", "spec.yaml"))
    assert line.startswith("spec.yaml: b: ")
    if policy == "fare":
        assert line.endswith("did you mean fair?")
        assert "unknown policy 'fare'; there are yarn-cs, fifo," in line
    refused(hived("check", "spec.yaml", "-o", "json"))


def test_policy_of_ones_own_that_is_not_here(hived: Hived, folder: Path) -> None:
    text = NODES.replace("b: {", "b: {policy: 'nowhere:Policy', ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    line = refused(hived("check", "spec.yaml"), 5)
    assert line.startswith("policy nowhere:Policy: its module cannot be imported")
    assert line.endswith("; it is that of b in spec.yaml")


def test_exact_safety_and_its_policies(hived: Hived, folder: Path) -> None:
    """Beside a policy for which it cannot hold no engine starts."""
    text = NODES.replace("a: {", "a: {safety: exact, policy: gandiva, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert hived("up", "spec.yaml", "--simulated", "--state", folder / "state").code == 5
    assert "the safety of a can be exact under policies" in refused(hived("check", "spec.yaml"), 5)
    text = NODES.replace("a: {", "a: {policy: antman, ", 1).replace("b: {", "b: {policy: gandiva, ", 1)
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    assert "its jobs cannot share GPUs in one cluster with those of" in refused(hived("check", "spec.yaml"), 5)


def test_wrong_spec_is_no_json(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("n[0-1]", "n[1-0]"), encoding="utf-8")
    refused(hived("check", "--json", "spec.yaml"))


@pytest.mark.skipif(not SPECS, reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_deployed_spec(hived: Hived, path: Path) -> None:
    answer = hived("check", path)
    assert answer.code == 0, answer.out
    assert answer.err == ""
    assert "…" not in answer.out
    found = json.loads(hived("check", "--json", path).out)
    assert found["feasible"]
    for key in found["ignored"]:
        assert f"ignored: {key['key']}" in answer.out


@pytest.mark.parametrize("nodes", [8192, pytest.param(131_072, marks=pytest.mark.slow)])
def test_large_cluster(hived: Hived, folder: Path, nodes: int) -> None:
    text = NODES.replace("n[0-1]", f"n[0-{nodes - 1}]").replace("cellNumber: 1", f"cellNumber: {nodes // 2}")
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    assert f"{nodes * 8:,} GPUs" in answer.out
    assert f"n0, n1, ... n{nodes - 1}" in answer.out
