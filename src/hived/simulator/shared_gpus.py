"""GPUs in use where jobs share them, each counted once: by turns, packed, or with guests beside their owner.

A GPU is in use or not: at any moment it counts once for its kind (guaranteed, opportunistic) while at least one job of
that kind has a turn on it, however many take turns or are packed there, and whatever their shares. So a job that takes
turns counts by its share: the shares of the jobs that use up a GPU's time sum to 1. Where gangs of several sizes leave
slices of a GPU's time unused, these are the cost of the turns, and not idle: no job outside of the turns can have them.
Guaranteed jobs share GPUs within their tenant, others with those of any. Guests hold no cells: beside their owner they
are counted by themselves, a GPU with several guests once; where no owner is left, they are opportunistic.

That is exact from intervals and placements alone, in integers. Shares would not do: two rows of one time, place and
share may be two turns or one packed turn, and their sum is wrong for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.scheduling import Kind

from .record import Record

Ints = NDArray[np.int64]
KINDS = tuple(Kind)


class InUse(NamedTuple):
    """Intervals in which so many GPUs of a node are in use by jobs of a kind; guaranteed ones: of one tenant. (n,)"""

    node: Ints
    kind: Ints  #: number in :data:`KINDS`
    job: Ints  #: one of the jobs
    start: Ints
    end: Ints
    gpus: Ints


def in_use(record: Record, nodes: Mapping[tuple[str, str], int]) -> InUse:
    """All of a record; ``nodes``: their numbers, by chain and name. O(n log n) for n GPUs of all runs."""
    tenants: dict[str, int] = {}
    tenant = [tenants.setdefault(job.tenant, len(tenants)) for job in record.jobs]
    rows = [
        (
            KINDS.index(run.kind), tenant[run.job] if run.kind is Kind.GUARANTEED else -1,
            nodes[run.placement.chain, node], leaf, run.start, run.end, run.job,
        )
        for run in record.runs
        for node, leaves in run.placement.pods
        for leaf in leaves
    ]  # fmt: skip
    columns = np.asarray(rows, dtype=np.int64).reshape(-1, 7).T
    key, start, end, job = columns[:4], *columns[4:]
    order = np.lexsort((start, *key[::-1]))
    key, start, end, job = key[:, order], start[order], end[order], job[order]
    first = _changes(key)
    # the latest end so far of the same GPU: times are shifted by a horizon per GPU, so that one running maximum serves
    shift = (np.cumsum(first) - 1) * (int(end.max(initial=0)) + 1)
    latest = np.maximum.accumulate(end + shift)
    first[1:] |= (start + shift)[1:] > latest[:-1]
    at = np.flatnonzero(first)
    if not len(at):
        return InUse(*np.zeros((6, 0), dtype=np.int64))
    end = (latest - shift)[np.append(at[1:], len(first)) - 1]
    return _together(key[:3, at], start[at], end, job[at])


def _together(key: Ints, start: Ints, end: Ints, job: Ints) -> InUse:
    """Join the GPUs of one node that are in use for the same time. ``key``: kind, tenant, node (3, n)."""
    order = np.lexsort((end, start, *key[::-1]))
    rows = np.vstack((key, start, end))[:, order]
    at = np.flatnonzero(_changes(rows))
    kind, _, node, start, end = rows[:, at]
    return InUse(node, kind, job[order][at], start, end, np.diff(np.append(at, rows.shape[1])))


def _changes(columns: Ints) -> NDArray[np.bool_]:
    """Where sorted rows differ from the row before. ``columns`` (m, n); result (n,)."""
    first = np.ones(columns.shape[1], dtype=bool)
    first[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return first


def work_done(record: Record) -> NDArray[np.float64]:
    """Work of every job, and the time that it held GPUs without working, by its share of them. In ms. (jobs,)

    Work is the sum of ``rate * (end - start)`` over its runs. A run of the rate 0 is a migration, or that of a guest
    that found no idle time, which holds nothing.
    """
    done = np.zeros(len(record.jobs))
    for job, start, end, kind, _, share, rate in record.runs:
        done[job] += (end - start) * (rate or (share if kind is not Kind.GUEST else 0.0))
    return done
