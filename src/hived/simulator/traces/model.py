"""The jobs of a trace, as the simulator reads them.

Times in the simulator are whole milliseconds: sums and differences are exact, so the same trace gives the same bytes
on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MS = 1000  #: milliseconds in a second

#: Prefix of every job id of a synthetic trace. A CSV has no other place for this mark, and a synthetic trace must be
#: called so wherever it is shown, after any number of writes and reads.
SYNTHETIC_PREFIX = "synthetic-"


#: status of a job that had not ended when its log did: its duration is its time so far
RUNNING = "running"


class TraceJob(NamedTuple):
    """One job of a trace."""

    job_id: str
    tenant: str
    submit_ms: int  #: since the start of the trace; never negative
    duration_ms: int  #: total time it needs to hold its GPUs; never negative, and a job of 0 ends when it starts
    gpus: int  #: at least 1
    status: str  #: "pass", "killed_or_failed" or "running"; any other value of a file is kept as it is
    user: str = ""  #: of the tenant; empty: unknown
    model: str = ""  #: what the job trains; empty: unknown
    priority: int = 0  #: inside its tenant's virtual cluster, 0 to 1000: the higher preempt the lower
    mode: str = ""  #: guaranteed, opportunistic or either; empty: either
    soft: bool = False  #: whether it accepts any GPUs, however far apart
    elastic: bool = False  #: whether it may grow onto more GPUs than it asks for, and shrink again


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission; jobs of one instant stay in the order of the file."""

    name: str  #: its name in figures, e.g. that of the file
    jobs: tuple[TraceJob, ...]
    synthetic: bool = False  #: shown wherever the trace is shown
    dropped: tuple[tuple[str, int], ...] = ()  #: (reason, jobs of the file left out for it), in order of reason

    @property
    def running(self) -> int:
        """The jobs that had not ended when their log did. O(jobs)."""
        return sum(job.status == RUNNING for job in self.jobs)


def seconds(ms: int) -> str:
    """``ms`` milliseconds as seconds, with as many decimals as it has: ``1500 -> "1.5"``, ``2000 -> "2"``."""
    whole, rest = divmod(abs(ms), MS)
    return ("-" if ms < 0 else "") + (f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole))
