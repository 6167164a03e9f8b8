"""The jobs of a trace, in the form the simulator reads.

Time is counted in whole milliseconds everywhere in the simulator: sums and differences are exact, so the same
trace gives the same bytes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MS = 1000  #: milliseconds in a second


class TraceJob(NamedTuple):
    """One job of a trace."""

    job_id: str
    tenant: str
    submit_ms: int  #: since the start of the trace; never negative
    duration_ms: int  #: GPU-holding time it needs in all; positive
    gpus: int  #: at least 1
    status: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission; jobs of one instant stay in the order of the file."""

    name: str  #: what figures call it, e.g. the file's name
    jobs: tuple[TraceJob, ...]
    synthetic: bool = False  #: shown wherever the trace is shown


def seconds(ms: int) -> str:
    """``ms`` milliseconds as seconds, with as many decimals as it has: ``1500 -> "1.5"``, ``2000 -> "2"``."""
    whole, rest = divmod(ms, MS)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
