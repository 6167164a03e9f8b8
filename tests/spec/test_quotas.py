"""Quotas in percent: read, shared in whole nodes, written as a spec."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import InputError
from hived.spec import parse_spec, read_quotas, share_nodes, spec_from_quotas

NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
TENANTS = st.lists(NAMES, min_size=1, max_size=12, unique=True)


@st.composite
def quotas(draw: st.DrawFn) -> list[tuple[str, Decimal]]:
    """Tenants with percentages of two decimals that sum to 100 or less."""
    names = draw(TENANTS)
    cuts = sorted(draw(st.lists(st.integers(0, 10_000), min_size=len(names), max_size=len(names))))
    return [(name, Decimal(b - a) / 100) for name, a, b in zip(names, [0, *cuts], cuts, strict=False)]


@pytest.mark.parametrize(
    ("nodes", "shares", "given"),
    [
        # largest remainders get the nodes that are left
        (10, "44.4 33.3 22.3", (5, 3, 2)),
        (10, "46 37 17", (4, 4, 2)),  # of 4.6, 3.7 and 1.7
        # equal remainders are served in the order given
        (11, "50 50", (6, 5)),
        (5, "33.33 33.33 33.34", (2, 1, 2)),
        # everyone gets at least one node, and the others pay for it
        (4, "98 1 1", (2, 1, 1)),
        (3, "100 0 0", (1, 1, 1)),
        (10, "49.9 49.9 0.2", (5, 4, 1)),
        # nodes that no tenant bought stay spare
        (10, "25 25", (3, 2)),
        (10, "99.4", (9,)),
        (10, "0", (1,)),
        # percentages that are only rounded share the whole cluster
        (300, "33.3 33.3 33.3", (100, 100, 100)),
        (1000, "50.2 50.2", (500, 500)),
    ],
)
def test_nodes_are_shared_by_quota(nodes: int, shares: str, given: tuple[int, ...]) -> None:
    assert share_nodes(nodes, [(f"t{n}", Decimal(value)) for n, value in enumerate(shares.split())]) == given


def test_floats_mean_their_decimal() -> None:
    text = spec_from_quotas(1000, [("a", 0.1), ("b", 99.9)])
    assert "#   a: 0.1 % = 1\n" in text
    assert [vc.cells[0].number for vc in parse_spec(text, "x").virtual_clusters] == [1, 999]


@given(quotas(), st.integers(0, 3000))
def test_shares_never_exceed_the_nodes(given: list[tuple[str, Decimal]], more: int) -> None:
    nodes = len(given) + more
    shares = share_nodes(nodes, given)
    total = sum(percent for _, percent in given)
    assert min(shares) >= 1
    assert sum(shares) <= nodes
    if total >= Decimal("99.5"):
        assert sum(shares) == nodes
    for (_, a), share_a in zip(given, shares, strict=True):
        for (_, b), share_b in zip(given, shares, strict=True):
            assert a <= b or share_a >= share_b  # a larger quota never gets less


@given(quotas(), st.integers(0, 3000), st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_the_text_is_a_spec_of_these_shares(given: list[tuple[str, Decimal]], more: int, gpus_per_node: int) -> None:
    nodes = len(given) + more
    spec = parse_spec(spec_from_quotas(nodes, given, gpus_per_node=gpus_per_node), "made.yaml")
    (chain,) = spec.chains
    assert (chain.name, chain.top_cells, chain.gpus_per_node) == ("NODE", nodes, gpus_per_node)
    assert chain.node_level == len(chain.levels)
    assert len(set(chain.node_names)) == nodes
    assert [(vc.name, vc.cells[0].number) for vc in spec.virtual_clusters] == [
        (name, share) for (name, _), share in zip(given, share_nodes(nodes, given), strict=True)
    ]
    assert spec.ignored == ()


@pytest.mark.parametrize(
    ("gpus", "levels"),
    [
        (1, "GPU NODE"),
        (2, "GPU NODE"),
        (4, "GPU GPU-PAIR NODE"),
        (8, "GPU GPU-PAIR SOCKET NODE"),
        (16, "GPU GPU-PAIR 4-GPU SOCKET NODE"),
    ],
)
def test_a_node_halves_down_to_its_gpus(gpus: int, levels: str) -> None:
    (chain,) = parse_spec(spec_from_quotas(3, [("a", 100)], gpus_per_node=gpus), "x").chains
    assert [level.cell_type for level in chain.levels] == levels.split()


def test_nodes_are_one_range() -> None:
    text = spec_from_quotas(200, [("a", 100)])
    assert "cellAddress: node-[000-199]\n" in text
    names = parse_spec(text, "x").chains[0].node_names
    assert (names[0], names[199]) == ("node-000", "node-199")
    assert tuple(parse_spec(spec_from_quotas(1, [("a", 100)]), "x").chains[0].node_names) == ("node-0",)


def test_the_header_says_how_it_was_made() -> None:
    header = spec_from_quotas(10, [("a", Decimal("62.5")), ("b", Decimal(30))]).splitlines()[:5]
    assert header == [
        "# 10 nodes of 8 GPUs, shared in whole nodes by quota (percent of the nodes, 92.5 in all):",
        "# largest remainder, at least 1 node for every tenant, ties in the order given; spare nodes: 1.",
        "#",
        "#   a: 62.5 % = 6",
        "#   b: 30 % = 3",
    ]


def test_names_that_yaml_reads_otherwise() -> None:
    names = ["yes", "007", "null", "a: b", "# c", "<<", "é", "😀", "x" * 300]
    text = spec_from_quotas(20, [(name, 11) for name in names])
    assert [vc.name for vc in parse_spec(text, "x").virtual_clusters] == names


@pytest.mark.parametrize(
    ("nodes", "shares", "gpus", "message"),
    [
        (2, [("a", 1), ("b", 1), ("c", 1)], 8, "3 tenants for 2 nodes, and each gets at least one"),
        (0, [("a", 1)], 8, "0 nodes: a cluster has 1 to"),
        (3_000_000, [("a", 1)], 8, "3000000 nodes: a cluster has 1 to 2,000,000"),
        (9, [("a", 1)], 6, "6 GPUs a node: it must be a power of two"),
        (9, [("a", 1)], 0, "0 GPUs a node"),
        (9, [("a", 1)], 8192, "4096 at most"),
        (9, [], 8, "quotas: no tenant in it"),
        (9, [("a", 1), ("a", 2)], 8, "quota 2: tenant `a` is given twice"),
        (9, [("a", float("nan"))], 8, "quota 1: the quota of `a` is NaN"),
        (9, [("a", 60), ("b", 41)], 8, "quotas: the quotas sum to 101.0 percent, 1.0 too much"),
        (9, [("a\nb", 60)], 8, "quota 1: a tenant needs a name"),
    ],
)
def test_quotas_that_cannot_be_shared(nodes: int, shares: list[tuple[str, float]], gpus: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec_from_quotas(nodes, shares, gpus_per_node=gpus)


def test_other_columns_and_the_total_skipped(tmp_path: Path) -> None:
    path = tmp_path / "quotas.csv"
    path.write_text("jobs,quota_pct,tenant\n5,28.57, a \n\n6,0.37,b\n11,100,total\n", encoding="utf-8-sig")
    assert read_quotas(path) == (("a", Decimal("28.57")), ("b", Decimal("0.37")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenant,quota_pct\na,1\nb,2\na,3\n", ":4: tenant `a` is given twice"),
        ("tenant,quota_pct\na,-1\n", ":2: the quota of `a` is -1; it must be from 0 to 100 percent"),
        ("tenant,quota_pct\na,1\nb,ten\n", ":3: quota_pct `ten` is not a number"),
        ("tenant,quota_pct\na,28%\n", ":2: quota_pct `28%` is not a number of percent like 8.79"),
        ("tenant,quota_pct\na\n", ":2: quota_pct `` is not a number"),
        ("tenant,quota_pct\n,1\n", ":2: a tenant needs a name"),
        ("tenant,quota_pct\na,60\nb,40.6\n", ": the quotas sum to 100.6 percent, 0.6 too much"),
        ("tenant,quota\na,60\n", ":1: no column `quota_pct`; the columns are tenant, quota (did you mean `quota`?)"),
        ("tenant,quota_pct\n", ": no tenant in it"),
        ("", ":1: no column `tenant`; the file is empty"),
    ],
)
def test_a_wrong_file_names_the_row(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "quotas.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_quotas(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot read the quotas: No such file"):
        read_quotas(tmp_path / "none.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"tenant,quota_pct\n\xe9,1\n")
    with pytest.raises(InputError, match="not a UTF-8 text"):
        read_quotas(path)
    path.write_text("tenant,quota_pct\n" + "a" * 200_000 + ",1\n")
    with pytest.raises(InputError, match=r"latin\.csv:2: not a CSV file: field larger"):
        read_quotas(path)
