"""Traces: jobs and their submission times.

:func:`read_trace` and :func:`write_trace` for files, :func:`generate_table1` for a synthetic trace,
:func:`compress_clock` to raise the load, :func:`describe` for statistics.
"""

from __future__ import annotations

from .describing import BusiestWeek, Description, Workload, describe
from .generating import generate_table1
from .model import MS, SYNTHETIC_PREFIX, Trace, TraceJob, seconds
from .reading import read_trace
from .shaping import compress_clock
from .table1 import SIZE_CLASSES, TABLE1, TenantRow, size_class
from .writing import write_trace

__all__ = [
    "MS",
    "SIZE_CLASSES",
    "SYNTHETIC_PREFIX",
    "TABLE1",
    "BusiestWeek",
    "Description",
    "TenantRow",
    "Trace",
    "TraceJob",
    "Workload",
    "compress_clock",
    "describe",
    "generate_table1",
    "read_trace",
    "seconds",
    "size_class",
    "write_trace",
]
