"""The jobs of a trace, in the form the simulator reads.

Time is counted in whole milliseconds everywhere in the simulator: sums and differences are exact, so the same
trace gives the same bytes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MS = 1000  #: milliseconds in a second

#: What every job id of a made-up trace begins with. A CSV has no other place to say so, and what is
#: synthetic must be called so wherever it is shown, after any number of writes and reads.
SYNTHETIC_PREFIX = "synthetic-"


class TraceJob(NamedTuple):
    """One job of a trace."""

    job_id: str
    tenant: str
    submit_ms: int  #: since the start of the trace; never negative
    duration_ms: int  #: GPU-holding time it needs in all; never negative, and a job of 0 ends where it starts
    gpus: int  #: at least 1
    status: str  #: "pass" or "killed_or_failed"; another writer's word is kept as it is


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission; jobs of one instant stay in the order of the file."""

    name: str  #: what figures call it, e.g. the file's name
    jobs: tuple[TraceJob, ...]
    synthetic: bool = False  #: shown wherever the trace is shown
    dropped: tuple[tuple[str, int], ...] = ()  #: (reason, jobs of the file left out for it), in order of reason


def seconds(ms: int) -> str:
    """``ms`` milliseconds as seconds, with as many decimals as it has: ``1500 -> "1.5"``, ``2000 -> "2"``."""
    whole, rest = divmod(ms, MS)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
