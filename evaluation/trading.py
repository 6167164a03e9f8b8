"""One trace, with and without trades: what each tenant had of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hived.exchange import Trade, make_arbiter
from hived.scheduling import Kind
from hived.simulator.exchange import HourlyTrading
from hived.simulator.exchange_report import exchanged
from hived.simulator.record import Record
from hived.simulator.traces import Trace
from hived.spec import ClusterSpec, equal_nodes, share_out

from .clusters import CROWDED_NODES, FULL_NODES, GPUS_PER_NODE, TENANTS, cluster_of, cluster_with
from .measures import HOUR_MS, Floats
from .simulations import Trial, Workload, play, played, trace_label

#: how tenants trade: not at all; by Algorithm 2, on what is known; on what will be idle; in an auction
ARMS = ("none", "balanced", "hindsight", "auction")
#: for so many hours cells were idle, or will be, that are offered, and for so many they are
WINDOW_H = 10


def nodes_by_demand(trace: Trace, nodes: int = FULL_NODES) -> dict[str, int]:
    """The nodes of each tenant by its share of the trace's GPU time: the draft's balanced assignment (5.4)."""
    asked = dict.fromkeys(TENANTS, 0)
    for job in trace.jobs:
        asked[job.tenant] += job.gpus * job.duration_ms
    return dict(zip(TENANTS, share_out(nodes, list(asked.values()), [1] * len(TENANTS)), strict=True))


def cluster_by_demand(trace: Trace, nodes: int = FULL_NODES) -> ClusterSpec:
    """A cluster of so many nodes, assigned so."""
    cells = {tenant: {"NODE": number} for tenant, number in nodes_by_demand(trace, nodes).items()}
    return cluster_with(equal_nodes(nodes, GPUS_PER_NODE), cells)


def carry_out(workload: Workload, by_demand: bool, arm: str, nodes: int) -> dict[str, Any]:
    """Play the trace; per tenant what it had of trades and of loans, its delay, and its use of GPUs by the hour."""
    trace = played(workload, nodes)
    spec = cluster_by_demand(trace, nodes) if by_demand else cluster_of(nodes)
    peaks = _hindsight(spec, trace) if arm == "hindsight" else None
    record, trading = play_trading(spec, trace, arm, peaks)
    until = trace.jobs[-1].submit_ms
    tenants = {}
    sizes = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}
    usage = used_gpus(record, trace, until)
    lent = loans(sizes, record, trace, trading.made, until)
    for of in exchanged(spec, trading.samples, HOUR_MS, until):
        mine = [
            number for number, job in enumerate(trace.jobs) if job.tenant == of.tenant and record.finish[number] >= 0
        ]
        waits = [record.queue(number) / 3_600_000 for number in mine]
        gpus = [trace.jobs[number].gpus for number in mine]
        deviation = (usage[of.tenant] - sizes[of.tenant]) ** 2
        tenants[of.tenant] = {
            "cells": of.reserved,
            "utilization": of.utilization,
            "increase": of.increase,
            "gain": of.gain,
            "benefited": of.benefited_h,
            "contributed": of.contributed_h,
            "given": of.given_h,
            "borrowed": lent[of.tenant][0],
            "lent": lent[of.tenant][1],
            "jobs": len(mine),
            "delay": sum(waits),
            "gpu_delay": sum(wait * number for wait, number in zip(waits, gpus, strict=True)),
            "gpus": sizes[of.tenant],
            "usage": usage[of.tenant].tolist(),
            "fluctuation": float(np.sqrt(deviation.mean())) / max(1, sizes[of.tenant]),
        }
    return {
        "jobs": len(trace.jobs),
        "trades": len(trading.made),
        "refused": trading.refused,
        "preemptions": sum(record.preemptions),
        "tenants": tenants,
    }


def trial(workload: Workload, by_demand: bool, arm: str, nodes: int = FULL_NODES) -> Trial:
    """:func:`carry_out` as a trial. ``by_demand``: the balanced assignment, else Table 1's quotas."""
    cost = 200.0 + 100 * (arm != "none") * (1 + 3 * (nodes == CROWDED_NODES))
    return Trial(carry_out, (workload, by_demand, arm, nodes), cost)


def setting_of(workload: Workload, by_demand: bool, plain: Mapping[str, Any], nodes: int = FULL_NODES) -> str:
    """The setting of its result in a line."""
    quotas = "nodes by each tenant's GPU time" if by_demand else "quotas of Table 1"
    return (
        f"{trace_label(workload)}, clock x{workload.clock_on(nodes):g}, {plain['jobs']:,} jobs; "
        f"{nodes} nodes of 8 GPUs, {quotas}, yarn-cs in every VC, loans as ever; "
        f"trades every hour, for {WINDOW_H} hours"
    )


def play_trading(
    spec: ClusterSpec, trace: Trace, arm: str, peaks: Callable[[str, int], int] | None = None
) -> tuple[Record, HourlyTrading]:
    """The trace, and what was traded."""
    arbiter = make_arbiter(arm if arm == "auction" else "balanced")
    trading = HourlyTrading(spec, arbiter, {} if arm == "none" else None, idle_looks=WINDOW_H, peaks=peaks)
    return play(spec, trace.jobs, scheme="hived", opportunistic=True, trading=trading), trading


def _hindsight(spec: ClusterSpec, trace: Trace) -> Callable[[str, int], int]:
    """The most cells that a tenant uses in the hours after a time, where nobody trades."""
    _, trading = play_trading(spec, trace, "none")
    used: dict[str, list[int]] = {}
    for sample in trading.samples:
        used.setdefault(sample.tenant, []).append(sample.used)

    def peak(tenant: str, now: int) -> int:
        at = now // HOUR_MS - 1
        return max(used[tenant][at : at + WINDOW_H + 1], default=0)

    return peak


def used_gpus(record: Record, trace: Trace, until: int, kinds: Sequence[Kind] = tuple(Kind)) -> dict[str, Any]:
    """GPUs in use by each tenant at every hour, in runs of these kinds. O(runs + tenants * hours)."""
    runs = ((trace.jobs[run.job].tenant, run.start, run.end, run.gpus) for run in record.runs if run.kind in kinds)
    return _hourly(runs, until)


def loans(
    sizes: Mapping[str, int], record: Record, trace: Trace, trades: Sequence[Trade], until: int
) -> dict[str, tuple[float, float]]:
    """GPU hours that each tenant's loans had of others' cells, and those that others' loans had of its own.

    A run on loan does not say whose cells it is on, since idle cells are bound to nobody. At every hour it counts as on
    the cells of all tenants, in proportion to the GPUs that each has reserved then, with its trades, and that none of
    its guaranteed jobs uses. What falls to the tenant of the run itself is neither. ``sizes``: GPUs that each tenant
    has reserved without trades. O(runs + trades + tenants * hours).
    """
    moved = []
    for trade in trades:
        start, end, gpus = int(trade.start * 1000), int(trade.end * 1000), trade.cells.number * GPUS_PER_NODE
        moved += [(trade.giver, start, end, -gpus), (trade.taker, start, end, gpus)]
    traded = _hourly(moved, until)
    guaranteed = used_gpus(record, trace, until, (Kind.GUARANTEED,))
    on_loan = used_gpus(record, trace, until, (Kind.OPPORTUNISTIC,))
    idle = {tenant: np.maximum(0, sizes[tenant] + traded[tenant] - guaranteed[tenant]) for tenant in sizes}
    all_idle, all_on_loan = np.sum(list(idle.values()), axis=0), np.sum(list(on_loan.values()), axis=0)
    found = {}
    for tenant in sizes:
        share: Floats = idle[tenant] / np.maximum(1, all_idle)
        borrowed = on_loan[tenant] * (all_idle > 0) * (1 - share)
        found[tenant] = float(borrowed.sum()), float((share * (all_on_loan - on_loan[tenant])).sum())
    return found


def _hourly(intervals: Iterable[tuple[str, int, int, int]], until: int) -> dict[str, Any]:
    """The sum of each tenant's numbers at every hour: tenant, first and last millisecond (excluded), number."""
    hours = until // HOUR_MS + 1
    change = {tenant: np.zeros(hours + 1, dtype=np.int64) for tenant in TENANTS}
    for tenant, start, end, number in intervals:
        first, last = -(-start // HOUR_MS), -(-end // HOUR_MS)  # the hours at which it is on
        if first < min(last, hours):
            change[tenant][first] += number
            change[tenant][min(last, hours)] -= number
    return {tenant: np.cumsum(of)[:hours] for tenant, of in change.items()}


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's correlation of ranks; ties have the mean of their ranks."""

    def ranks(values: Sequence[float]) -> Any:
        ordered = sorted(values)
        return np.asarray([ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values])

    a, b = ranks(one), ranks(other)
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")
