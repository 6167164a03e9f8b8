"""Traces: jobs and their submission times.

:func:`read_trace` and :func:`write_trace` for files, :func:`trace_of` for frames, :func:`generate_table1` for a
synthetic trace, :func:`filter_jobs`, :func:`cut_window`, :func:`sample_jobs` and :func:`compress_clock` for a part or
another load of it, :func:`describe` for statistics.
"""

from __future__ import annotations

from .describing import BusiestWeek, Description, Workload, describe
from .frames import is_frame
from .generating import generate_table1
from .model import MS, SYNTHETIC_PREFIX, Trace, TraceJob, seconds
from .reading import StillRunning, read_trace, trace_of
from .shaping import compress_clock, cut_window, filter_jobs, read_window, sample_jobs
from .table1 import SIZE_CLASSES, TABLE1, TenantRow, size_class
from .writing import write_trace

__all__ = [
    "MS",
    "SIZE_CLASSES",
    "SYNTHETIC_PREFIX",
    "TABLE1",
    "BusiestWeek",
    "Description",
    "StillRunning",
    "TenantRow",
    "Trace",
    "TraceJob",
    "Workload",
    "compress_clock",
    "cut_window",
    "describe",
    "filter_jobs",
    "generate_table1",
    "is_frame",
    "read_trace",
    "read_window",
    "sample_jobs",
    "seconds",
    "size_class",
    "trace_of",
    "write_trace",
]
