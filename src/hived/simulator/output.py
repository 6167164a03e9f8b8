"""The files of a simulation: ``jobs.csv``, ``runs.csv``, ``series.csv``, ``summary.json`` and the figures.

They are written beside the target and moved there when all is written, so nobody ever finds half of them. The same
spec, trace, options and version give the same bytes.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hived.cluster import NamedPlacement, Part, SharedCluster
from hived.errors import InputError

from .experiment import PolicyName, Results
from .report import Report
from .traces import seconds

JOB_COLUMNS = (
    "scheme", "policy", "job_id", "tenant", "gpus", "submit_s", "duration_s", "start_s", "finish_s", "queue_s",
    "preemptions", "finished",
)  # fmt: skip
#: what a folder of results holds
_OURS = (
    "jobs.csv",
    "runs.csv",
    "series.csv",
    "summary.json",
    *(f"*-{policy.value}.{end}" for policy in PolicyName for end in ("png", "svg")),
)
RUN_COLUMNS = ("scheme", "policy", "job_id", "start_s", "end_s", "kind", "placement")


def check_output(folder: Path, overwrite: bool) -> None:
    """Raise :class:`~hived.errors.InputError` unless results can be written to ``folder``: before hours of work."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, not a folder for results; choose another --out")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(
            f"{folder}: is not empty, and results are never mixed; choose another --out, or give --overwrite"
        )
    parent = next(p for p in (folder, *folder.parents) if p.exists())
    if not parent.is_dir():
        raise InputError(f"{parent}: is a file, so {folder} cannot be made; choose another --out")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise InputError(f"{parent}: cannot be written to ({error.strerror}); choose another --out") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of ``folder``'s files when the block ends well, and else is gone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    try:
        yield draft
        folder.mkdir(exist_ok=True)
        for pattern in _OURS:  # older results go, whatever else is there stays
            for old in folder.glob(pattern):
                old.unlink()
        for file in sorted(draft.iterdir()):
            file.replace(folder / file.name)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_jobs(results: Results, path: Path) -> None:
    """``jobs.csv``: one row per scheme, policy and job of the trace, in the order of the trace."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(JOB_COLUMNS)
        for record in results.records:
            for number, job in enumerate(record.jobs):
                finish = record.finish[number]
                if finish < 0:
                    times: tuple[str, ...] = ("", "", "")
                else:
                    times = (seconds(record.first_start[number]), seconds(finish), seconds(record.queue(number)))
                writer.writerow(
                    (
                        record.scheme, record.policy, job.job_id, job.tenant, job.gpus, seconds(job.submit_ms),
                        seconds(job.duration_ms), *times, record.preemptions[number],
                        "true" if finish >= 0 else "false",
                    )
                )  # fmt: skip


def write_runs(results: Results, path: Path) -> None:
    """``runs.csv``: every interval in which a job held GPUs, by scheme and policy, then by start and job."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RUN_COLUMNS)
        for record, cluster in zip(results.records, results.clusters, strict=True):
            names = _Placements(cluster)
            for run in sorted(record.runs, key=lambda run: (run.start, run.job)):
                writer.writerow(
                    (
                        record.scheme, record.policy, record.jobs[run.job].job_id, seconds(run.start),
                        seconds(run.end), run.kind.value, names.text(run.parts),
                    )
                )  # fmt: skip


class _Placements:
    """Placements as text; the same parts of a node come up again and again."""

    def __init__(self, cluster: SharedCluster) -> None:
        self._cluster = cluster
        self._known: dict[Part, str] = {}

    def text(self, parts: Sequence[Part]) -> str:
        words = []
        for part in parts:
            word = self._known.get(part)
            if word is None:
                word = self._known[part] = placement_text(self._cluster.named((part,)))
            words.append(word)
        return ";".join(words)


def placement_text(placement: NamedPlacement) -> str:
    """``node:0,1,2,3;node2:0,1``. The signs of this form in a node's name are percent-encoded, as in a URL."""
    return ";".join(f"{_encoded(node)}:{','.join(map(str, devices))}" for node, devices in placement)


def _encoded(name: str) -> str:
    return "".join(f"%{ord(sign):02X}" if sign in "%:;," else sign for sign in name)


def write_series(report: Report, path: Path) -> None:
    """``series.csv``: what the figures show over time, by the hour (less in short traces, more in those of many years).

    Shares (0 to 1) are means over the time from ``time_s`` to the next; delays (seconds, one column per tenant) are
    means of the jobs submitted within 6 hours of it, empty where there are none.
    """
    tenants = [vc.name for vc in report.results.spec.virtual_clusters]
    shares = ("utilization", "opportunistic", "fragmentation", "partly_used")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("scheme", "policy", "time_s", *shares, *(f"delay_s {tenant}" for tenant in tenants)))
        for run in report.runs:
            delays = run.delay_over_time
            for hour, start in enumerate(run.series.edges[:-1]):
                writer.writerow(
                    (
                        run.scheme,
                        run.policy,
                        seconds(int(start)),
                        *(_number(getattr(run.series, share)[hour]) for share in shares),
                        *(_number(delays.mean_ms[tenant][hour] / 1000) for tenant in tenants),
                    )
                )


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def write_summary(report: Report, path: Path) -> None:
    """``summary.json``: the report's numbers, null for what cannot be said."""
    text = json.dumps(_plain(report.to_json()), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    """Numbers rounded to what means something, NaN as null."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
