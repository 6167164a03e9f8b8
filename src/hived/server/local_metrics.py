"""What ``/metrics`` has of one machine alone: jobs that take turns on GPUs, and guests beside their owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from hived.engine.histogram import Histogram
from hived.engine.states import JobState
from hived.engines.local.counters import Cause
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job
from hived.errors import UnavailableError

from .local_service import LocalService
from .metrics import Metrics, Row, counter, gauge


class LocalMetrics(Metrics[Job]):
    """The metrics of the engine of one machine."""

    def __init__(self, service: LocalService) -> None:
        super().__init__(service)
        self._of_machine = service

    def more(self) -> Iterator[Metric]:
        """See :class:`~hived.server.metrics.Metrics`. O(VCs + jobs that have guests beside them)."""
        try:
            known = self._of_machine.scheduler()
        except UnavailableError:
            known = None
        counts = None if known is None else known.counts
        yield counter(
            "suspensions",
            "Suspensions of jobs at the end of a mini-batch. turn: for others of their VC; guest: of guests, for the "
            "owner of their GPUs; hand: a user told them so; moved: of guests, to go on on GPUs of their own.",
            ("cause",),
            () if counts is None else _by_cause(counts.suspensions),
        )
        yield counter(
            "resumptions",
            "Resumptions of suspended jobs, by what ended the suspension. moved: on other GPUs than before; else as of "
            "suspensions.",
            ("cause",),
            () if counts is None else _by_cause(counts.resumptions),
        )
        lasted = "How long suspensions took, from the end of a mini-batch until the job's GPUs were free."
        yield _durations("suspension_duration_seconds", lasted, None if counts is None else counts.suspension_s)
        lasted = "How long resumptions took, until the job went on."
        yield _durations("resumption_duration_seconds", lasted, None if counts is None else counts.resumption_s)
        yield counter(
            "suspended_bytes",
            "Device memory that suspensions have copied to the host, in bytes.",
            (),
            () if counts is None else [((), counts.bytes_to_host)],
        )
        yield gauge(
            "guests",
            "Guests beside the owners of GPUs, suspended ones too. Of all suspended jobs: hived_jobs.",
            ("vc",),
            () if known is None else _by_vc(known.usage.guests),
        )
        yield gauge(
            "limited_jobs",
            "Jobs with a limit of memory or compute, by hand or beside others on their GPUs.",
            ("vc",),
            () if known is None else _by_vc(known.usage.limited),
        )
        yield gauge(
            "owner_slowdown",
            "The worst now of jobs with guests beside them: the time of a mini-batch over that alone, 1 at best. "
            "Absent while there are none.",
            (),
            () if known is None else _worst(known),
        )


def _by_cause(counted: Counter[Cause]) -> Iterator[Row]:
    """Those at 0 too: so a rate sees the first one."""
    for cause in Cause:
        yield (cause.value,), counted[cause]


def _by_vc(counted: Counter[str]) -> Iterator[Row]:
    for vc, number in counted.items():
        if number:
            yield (vc,), number


def _worst(known: JobScheduler) -> Iterator[Row]:
    found = [
        known.probe.rate(job.id)
        for job in known.usage.hosts.values()
        if job.state is JobState.RUNNING and known.probe.knows(job.id)
    ]
    if found:
        yield (), 1.0 / min(found)


def _durations(name: str, what: str, found: Histogram | None) -> Metric:
    family = HistogramMetricFamily(f"hived_{name}", what)
    if found is not None:
        family.add_metric([], list(found.cumulative()), found.sum)
    return family
