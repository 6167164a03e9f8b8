"""The report of an experiment: the numbers for the table, ``summary.json`` and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hived.cluster.sharing import Sharing
from hived.installed import __version__

from .experiment import Results
from .metrics import (
    Anomalies,
    Delay,
    DelayOverTime,
    Floats,
    Ints,
    Series,
    Usage,
    anomalies,
    comparable_jobs,
    delay,
    delay_over_time,
    lost_work,
    queues,
    series,
    submission_window,
)
from .record import Record
from .scenario import Victims


@dataclass(frozen=True, slots=True)
class WholeNodes:
    """GPUs reserved in whole nodes, and their mean shares over the submission window, which add up to 1.

    NaN where none are. See :mod:`~.fragmentation`.
    """

    gpus: int
    used: float
    free: float
    internal: float
    external: float


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant under one scheme, over the comparable jobs."""

    tenant: str | None  #: None: all tenants together
    delay: Delay
    #: mean delay over that in the private cluster: infinite if only the latter is 0, NaN if both are or it was not run
    to_private: float
    #: against the private cluster; None if that was not simulated
    anomalies: Anomalies | None
    whole_nodes: WholeNodes


@dataclass(frozen=True, slots=True)
class RunReport:
    """One scheme with one policy."""

    scheme: str
    policy: str
    finished: int
    unfinished: int
    tenants: tuple[TenantReport, ...]
    overall: TenantReport
    utilization: float  #: means over the submission window, as in :class:`~.metrics.Series`
    guaranteed: float
    opportunistic: float
    fragmentation: float
    partly_used: float
    internal: float
    external: float
    preemptions: int
    preempted_gpus: int
    lost_gpu_s: float  #: of all jobs that finished: see :func:`~.metrics.lost_work`
    guests: float  #: a mean over the submission window
    makespan_s: float  #: from the start of the trace to the last event, or to ``--until``
    series: Series
    delay_over_time: DelayOverTime


@dataclass(frozen=True, slots=True)
class Report:
    """The whole experiment."""

    results: Results
    gpus: int  #: of the shared cluster
    nodes: int
    load: float  #: mean GPUs the trace requests over the submission window, as a share of the cluster
    compared: int  #: jobs compared
    window_s: float
    runs: tuple[RunReport, ...]

    def run(self, scheme: Sharing, policy: str) -> RunReport | None:
        """One run's report, ``None`` if it was not simulated."""
        for run in self.runs:
            if run.scheme == scheme.value and run.policy == policy:
                return run
        return None

    def never_fit(self) -> list[dict[str, object]]:
        """The jobs that are left out because they can never fit their private cluster."""
        jobs = self.results.trace.jobs
        return [
            {"job_id": jobs[n].job_id, "tenant": jobs[n].tenant, "gpus": jobs[n].gpus} for n in self.results.never_fit
        ]

    def to_json(self) -> dict[str, object]:
        """The report as plain data, in a fixed order."""
        scenario = self.results.scenario
        trace = self.results.trace
        return {
            "hived_version": __version__,
            "trace": {
                "name": trace.name,
                "synthetic": trace.synthetic,
                "jobs": len(trace.jobs),
                "dropped": dict(trace.dropped),
                "clock_compression": scenario.clock_compression,
                "window_s": self.window_s,
            },
            "cluster": {
                "spec": self.results.spec.source,
                "gpus": self.gpus,
                "nodes": self.nodes,
                "offered_load": self.load,
            },
            "options": {
                "opportunistic": scenario.opportunistic,
                "preempted": scenario.preempted.value,
                "until_s": None if scenario.until_ms is None else scenario.until_ms / 1000,
                "binding": scenario.binding.value,
                **({} if scenario.victims is Victims.FEWEST_GPUS else {"victims": scenario.victims.value}),
                **({} if scenario.safety is None else {"safety": scenario.safety.value}),
                **({} if scenario.exchange is None else {"exchange": scenario.exchange.value}),
                "soft": scenario.soft,
                "seed": scenario.seed,
            },
            "compared_jobs": self.compared,
            "never_fit_private": self.never_fit(),
            "runs": [_run_json(run) for run in self.runs],
        }


def _run_json(run: RunReport) -> dict[str, object]:
    plain: dict[str, object] = {
        name: getattr(run, name)
        for name in (
            "scheme", "policy", "finished", "unfinished", "utilization", "opportunistic", "fragmentation",
            "partly_used", "preemptions", "preempted_gpus", "makespan_s", "guaranteed", "internal", "external",
            "lost_gpu_s", "guests",
        )
    }  # fmt: skip
    plain["overall"] = _tenant_json(run.overall)
    plain["tenants"] = {str(tenant.tenant): _tenant_json(tenant) for tenant in run.tenants}
    return plain


def _tenant_json(tenant: TenantReport) -> dict[str, object]:
    return {
        **asdict(tenant.delay),
        "queue_to_private": tenant.to_private,
        "anomalies": None if tenant.anomalies is None else asdict(tenant.anomalies),
        "whole_nodes": asdict(tenant.whole_nodes),
    }


def shorter_under_quota(runs: Sequence[RunReport]) -> list[tuple[str | None, float, float]]:
    """Tenants (None: all together) that wait less under a quota than under HiveD: name, both means in seconds.

    ``runs`` are those of one policy; empty unless both schemes are among them.
    """
    by_scheme = {run.scheme: run for run in runs}
    quota, hived = by_scheme.get(Sharing.QUOTA.value), by_scheme.get(Sharing.HIVED.value)
    if quota is None or hived is None:
        return []
    pairs = zip((*quota.tenants, quota.overall), (*hived.tenants, hived.overall), strict=True)
    return [(a.tenant, a.delay.mean_s, b.delay.mean_s) for a, b in pairs if a.delay.mean_s < b.delay.mean_s]


def make_report(results: Results) -> Report:
    """Derive every number. O(pods log pods + tenants * pods)."""
    trace = results.trace
    chosen = comparable_jobs(results)
    tenant_of = np.asarray([job.tenant for job in trace.jobs], dtype=object)
    window = submission_window(results)
    gpus = results.spec.gpus
    asked = sum(job.gpus * job.duration_ms for job in trace.jobs if job.submit_ms <= window)
    privates = {record.policy: record for record in results.records if record.scheme == Sharing.PRIVATE.value}

    def tenant_report(name: str | None, record: Record, lost: Ints, whole: WholeNodes) -> TenantReport:
        mine = chosen if name is None else chosen & (tenant_of == name)
        own = delay(record, mine, lost)
        private = privates.get(record.policy)
        if private is None:
            return TenantReport(name, own, float("nan"), None, whole)
        base, waited = float(queues(private)[mine].sum()), float(queues(record)[mine].sum())
        ratio = waited / base if base else (float("inf") if waited else float("nan"))
        return TenantReport(name, own, ratio, anomalies(record, private, mine), whole)

    def run_report(record: Record) -> RunReport:
        usage = Usage(results, record)
        lost = lost_work(record, usage.pods)
        over_time = series(results, record, usage=usage)
        widths = np.diff(over_time.edges)
        finished = sum(f >= 0 for f in record.finish)
        reserved, shares = usage.reservations.gpus, usage.reservations.shares(window)
        whole = [WholeNodes(gpus, *of) for gpus, of in zip(reserved.tolist(), shares.tolist(), strict=True)]
        some = reserved > 0
        everyone = np.average(shares[some], axis=0, weights=reserved[some]) if some.any() else np.full(4, np.nan)
        names = [vc.name for vc in results.spec.virtual_clusters]

        def mean(values: Floats) -> float:
            return float(np.average(values, weights=widths))

        return RunReport(
            record.scheme,
            record.policy,
            finished,
            len(trace.jobs) - finished,
            tuple(tenant_report(name, record, lost, of) for name, of in zip(names, whole, strict=True)),
            tenant_report(None, record, lost, WholeNodes(int(reserved.sum()), *everyone.tolist())),
            mean(over_time.utilization),
            mean(over_time.guaranteed),
            mean(over_time.opportunistic),
            mean(over_time.fragmentation),
            mean(over_time.partly_used),
            mean(over_time.internal),
            mean(over_time.external),
            sum(record.preemptions),
            record.preempted_gpus,
            float(lost.sum()) / 1000,
            mean(over_time.guests),
            record.end / 1000,
            over_time,
            delay_over_time(results, record, chosen),
        )

    return Report(
        results,
        gpus,
        sum(chain.cells_at(chain.node_level) for chain in results.spec.chains),
        asked / window / gpus,
        int(chosen.sum()),
        window / 1000,
        tuple(run_report(record) for record in results.records),
    )
