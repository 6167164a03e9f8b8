"""Whose doing it is that a tenant cannot have its GPUs as whole nodes: by hand, and looked at in every millisecond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import strategies as st

from hived.simulator import Sharing, make_report
from hived.simulator.metrics import Usage, series

from ..strategies import given_in_tiers
from .hardware import Chain, Hardware, read_hardware
from .helpers import Experiment, Row, nodes_of_8, simulated, spec_text, trace_text
from .reader import Outcome
from .strategies import specs

#: of the GPUs that a tenant reserved in whole nodes: used, free, internal, external
Split = tuple[int, int, int, int]


def parts(found: Experiment, scheme: str, tenant: str) -> list[float]:
    """GPUs that a tenant reserved in whole nodes, and the shares of a :class:`Split`."""
    run = next(run for run in make_report(found.results).runs if run.scheme == scheme)
    whole = next(of.whole_nodes for of in run.tenants if of.tenant == tenant)
    return [whole.gpus, whole.used, whole.free, whole.internal, whole.external]


# By hand: the window is 100 s, so a share of 0.5 is 50 s of all GPUs.

LAST: Row = ("last", "c", 100, 1, 1)


def test_a_node_denied_by_others_is_external(tmp_path: Path) -> None:
    """Four jobs of half a node each share the nodes of a and b under quota; a's end, and b has a half of each."""
    rows: list[Row] = [
        ("a1", "a", 0, 20, 4), ("b1", "b", 0, 80, 4), ("a2", "a", 0, 20, 4), ("b2", "b", 0, 80, 4),
        ("wants a node", "a", 30, 10, 8), ("last", "a", 100, 1, 1),
    ]  # fmt: skip
    found = simulated(tmp_path, nodes_of_8(2, {"a": 1, "b": 1}), trace_text(rows), opportunistic=False)
    assert found["quota"].kinds("b1")[0][3].split(":")[0] != found["quota"].kinds("b2")[0][3].split(":")[0]
    # a uses 8 GPUs for 20 s, and then there is no whole node for it until b's jobs end, though it uses nothing
    assert found["quota"].kinds("wants a node")[0][:2] == (80.0, 90.0)
    assert parts(found, "quota", "a") == pytest.approx([8, 0.3, 0.1, 0, 0.6])
    assert parts(found, "quota", "b") == pytest.approx([8, 0.8, 0.2, 0, 0])
    for scheme in ("private", "hived"):
        assert found[scheme].kinds("wants a node")[0][:2] == (30.0, 40.0)
        assert parts(found, scheme, "a") == pytest.approx([8, 0.3, 0.7, 0, 0])


def test_idle_gpus_of_ones_own_node_are_internal(tmp_path: Path) -> None:
    """And a loan denies nobody a node."""
    rows: list[Row] = [("a1", "a", 0, 50, 3), ("lent", "c", 0, 100, 16), ("more", "c", 0, 100, 8), LAST]
    found = simulated(tmp_path, nodes_of_8(4, {"a": 2, "c": 2}), trace_text(rows))
    for run in make_report(found.results).runs:
        assert parts(found, run.scheme, "a") == pytest.approx([16, 3 / 32, 24 / 32, 5 / 32, 0])
        assert run.internal == pytest.approx(5 / 32 / 2)
        assert run.external == 0
    for scheme in ("quota", "hived"):
        assert found[scheme].runs["more"][0].kind == "opportunistic"


def test_jobs_spread_by_quota_are_internal(tmp_path: Path) -> None:
    """a's long jobs are left on both of the cluster's nodes; its quota has a node left, and no node is without them."""
    rows: list[Row] = [(f"short{n}", "a", 0, 10, 1) for n in range(7)]
    rows += [("long1", "a", 0, 100, 1), ("long2", "a", 0, 100, 1), ("last", "a", 100, 1, 1)]
    found = simulated(tmp_path, nodes_of_8(2, {"a": 2}), trace_text(rows), schemes=["quota"])
    # 9 of 16 GPUs for 10 s, on both nodes; then 2, with 14 that are no whole node
    assert parts(found, "quota", "a") == pytest.approx([16, (0.9 + 1.8) / 16, 0, (0.7 + 14 * 0.9) / 16, 0])


def test_smaller_cells_are_apart(tmp_path: Path) -> None:
    """a has a node of each kind and two sockets; two jobs of a socket each are no use of its nodes."""
    types = {"SOCKET": ("V100", 4), "NODE": ("SOCKET", 2), "SMALL": ("K80", 4)}
    cells = [{"cellType": "NODE", "cellAddress": "n[0-3]"}, {"cellType": "SMALL", "cellAddress": "k[0-1]"}]
    vcs = {"a": {"NODE": 1, "NODE.SOCKET": 2, "SMALL": 1}, "c": {"NODE": 1, "SMALL": 1}}
    rows: list[Row] = [("s1", "a", 0, 50, 4), ("s2", "a", 0, 50, 4), LAST]
    found = simulated(tmp_path, spec_text(types, cells, vcs, ("NODE", "SMALL")), trace_text(rows))
    for scheme in Sharing:
        assert parts(found, scheme.value, "a") == [12, 0, 1, 0, 0]


# Every millisecond, from the files and the spec alone.


def every_split(outcome: Outcome, hardware: Hardware, at: int) -> dict[str, Split]:
    """The split of each tenant's whole nodes at an instant."""
    uses: dict[str, Counter[str]] = {tenant: Counter() for tenant in hardware.tenants}  # by tenant and node
    for job, run in outcome.all_runs("guaranteed"):
        if run.start <= at < run.end:
            for node, devices in run.placement:
                uses[job.tenant][node] += len(devices)
    chain_of = {node: chain for chain in hardware.chains for node, _ in chain.leaves}
    if outcome.scheme == "private":
        chain_of = {n: chain for tenant in uses for n, (chain, _) in private_nodes(hardware, tenant).items()}
    found = {}
    for tenant in hardware.tenants:
        groups = _groups(outcome.scheme, hardware)
        parts = [_split(outcome.scheme, hardware, group, tenant, uses, chain_of) for group in groups]
        found[tenant] = tuple(map(sum, zip(*parts, strict=True)))
    return found  # type: ignore[return-value]


def private_nodes(hardware: Hardware, tenant: str) -> dict[str, tuple[Chain, int]]:
    """Chain and GPUs of a tenant's private nodes: numbered by chain in the order of the spec, and as reserved."""
    hosts = [
        (r.chain, size)
        for chain in hardware.chains
        for r in hardware.tenants[tenant]
        if r.chain is chain
        for size in r.hosts()
    ]
    return {f"{tenant}-node-{number}": host for number, host in enumerate(hosts)}


def _groups(scheme: str, hardware: Hardware) -> list[list[Chain]]:
    if scheme != "quota":
        return [[chain] for chain in hardware.chains]
    types = dict.fromkeys(chain.device for chain in hardware.chains)
    return [[chain for chain in hardware.chains if chain.device == device] for device in types]


def _split(
    scheme: str, hardware: Hardware, group: list[Chain], tenant: str, uses: dict[str, Counter[str]],
    chain_of: dict[str, Chain],
) -> Split:  # fmt: skip
    reserved = [r for r in hardware.tenants[tenant] if r.chain in group]
    whole = sum(r.gpus for r in reserved if r.chain.gpus[r.level] >= r.chain.node_gpus)
    small = sum(r.gpus for r in reserved) - whole
    small_cells = sum(r.number for r in reserved if r.chain.gpus[r.level] < r.chain.node_gpus)
    own = {node: gpus for node, gpus in uses[tenant].items() if chain_of[node] in group}
    if scheme == "private":
        sizes = private_nodes(hardware, tenant)
        own = {node: gpus for node, gpus in own.items() if sizes[node][1] >= chain_of[node].node_gpus}
        small = small_cells = 0
    use, nodes = sum(own.values()), sum(chain_of[node].node_gpus for node in own)
    used = max(0, use - small)
    taken = {node for of in uses.values() for node in of if chain_of[node] in group}
    idle = sum(len(chain.leaves) for chain in group) - sum(chain_of[node].node_gpus for node in taken)
    unit = int(np.gcd.reduce([chain.node_gpus for chain in group]))
    if scheme == "quota":
        left = max(k * unit for k in range(whole // unit + 1) if k == 0 or k * unit <= whole + small - use)
        alone = min(left, sum(len(chain.leaves) for chain in group) - nodes)
        now = min(alone, idle)
        return used, now, whole - used - alone, alone - now
    mine = max(-(-used // unit), len(own) - small_cells)  # nodes that have to be among its whole ones
    alone = max(0, whole - unit * mine)
    surely = max(0, whole - nodes)
    denied = 0 if scheme == "private" else max(0, surely - idle)
    return used, alone - denied, whole - used - alone, denied


@st.composite
def crowds(draw: st.DrawFn) -> tuple[str, str]:
    """A spec, and short jobs in its first hundred milliseconds.

    The spec is any, or of two tenants whose nodes are full of jobs smaller than a node: under quota they share them.
    """
    times, sizes = st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 2, 3, 4, 6, 8, 16])
    if draw(st.booleans()):
        spec, names = draw(specs())
    else:
        nodes, names = {name: draw(st.integers(1, 2)) for name in "ab"}, ["a", "b"]
        cells = [{"cellType": "NODE", "cellAddress": f"n[0-{sum(nodes.values()) - 1}]"}]
        spec = spec_text({"NODE": ("GPU", 4)}, cells, {name: {"NODE": number} for name, number in nodes.items()})
        times, sizes = st.sampled_from([0, 2, 5, 10, 40, 60]), st.sampled_from([1, 2, 2, 4])
    jobs = draw(st.lists(st.tuples(st.sampled_from(names), times, times, sizes), min_size=1, max_size=30))
    return spec, trace_text((f"j{n}", vc, at / 1000, ms / 1000, gpus) for n, (vc, at, ms, gpus) in enumerate(jobs))


def instants(outcome: Outcome) -> range:
    """Every millisecond, up to a while after the last end."""
    return range(min(1000, max((run.end for _, run in outcome.all_runs()), default=0) + 5))


@given_in_tiers(15, 120, crowds(), st.sampled_from(list(Sharing)), st.booleans())
def test_every_millisecond_is_split_as_defined(case: tuple[str, str], scheme: Sharing, opportunistic: bool) -> None:
    with TemporaryDirectory() as folder:
        found = simulated(Path(folder), case[0], case[1], schemes=[scheme.value], opportunistic=opportunistic)
        hardware = read_hardware(Path(folder) / "spec.yaml")
    (record,) = found.results.records
    over_time = series(found.results, record, bin_ms=1)
    total: Counter[tuple[str, int]] = Counter()
    assert over_time.edges[-1] == 1000
    for at in instants(found[scheme.value]):
        splits = every_split(found[scheme.value], hardware, at)
        for tenant, split in splits.items():
            assert min(split) >= 0, "no part is below 0"
            for part, gpus in enumerate(split):
                total[tenant, part] += gpus
        expected = [sum(split[part] for split in splits.values()) / hardware.gpus for part in (2, 3)]
        assert (over_time.internal[at], over_time.external[at]) == pytest.approx(expected, abs=1e-9)
        if scheme is not Sharing.QUOTA:
            assert over_time.external[at] == 0, "sharing safety"
    usage = Usage(found.results, record)
    until = len(instants(found[scheme.value]))
    for number, name in enumerate(hardware.tenants):
        gpus = int(usage.reservations.gpus[number])
        of = usage.reservations.shares(until)[number] if until else []
        assert np.isnan(of).all() or of == pytest.approx(
            [total[name, part] / (gpus * until) for part in range(4)], abs=1e-9
        )
