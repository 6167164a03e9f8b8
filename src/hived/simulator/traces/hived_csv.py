"""Reading our own format: CSV with the columns ``job_id,tenant,submit_s,duration_s,gpus,status``.

Times are seconds since the start of the trace and stay as they are; ``duration_s`` is the time the job
holds its GPUs. The columns ``user,model,priority,mode,soft,elastic`` are optional, and so is every value in them: a job
without a priority has 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Location
from .fields import (
    TWICE,
    FieldError,
    gpu_count,
    identifier,
    milliseconds,
    mode_of,
    one_line,
    priority_of,
    shown,
    truth_of,
)
from .formats import Parsed
from .model import TraceJob
from .tables import Row, columns

COLUMNS = ("job_id", "tenant", "submit_s", "duration_s", "gpus", "status")
OPTIONAL = ("user", "model", "priority", "mode", "soft", "elastic")


def parse(header: Row, rows: Iterator[Row], parsed: Parsed) -> None:
    """Add the jobs of ``rows`` to ``parsed``. O(rows), about a microsecond each."""
    file = parsed.file
    places = columns(header[1], COLUMNS, Location(file, header[0]), optional=OPTIONAL, others=False)
    at_id, at_tenant, at_submit, at_duration, at_gpus, at_status, *at_more = places
    at_user, at_model, at_priority, at_mode, at_soft, at_elastic = at_more
    more = max(at_more) >= 0
    user = model = mode = ""
    priority = 0
    soft = elastic = False
    seen: dict[str, int] = {}
    tenants: set[str] = set()  # few and repeated: each is checked once
    words: set[str] = {""}  # statuses, users and models
    priorities: dict[str, int] = {}
    jobs = parsed.jobs
    for line, row in rows:
        column = "job_id"
        try:
            job_id = identifier(row[at_id])
            column = "tenant"
            tenant = row[at_tenant]
            if tenant not in tenants:
                tenants.add(identifier(tenant))
            column = "submit_s"
            submit_ms = milliseconds(row[at_submit])
            column = "duration_s"
            duration_ms = milliseconds(row[at_duration])
            column = "gpus"
            gpus = gpu_count(row[at_gpus])
            if not gpus:
                raise FieldError("is 0: a job holds at least 1 GPU; leave CPU-only jobs out", "0")  # noqa: TRY301 - caught below, where the place in the file is added
            column = "status"
            status = row[at_status]
            if status not in words:
                words.add(one_line(status))
            if more:
                column = "user"
                user = row[at_user] if at_user >= 0 else ""
                if user not in words:
                    words.add(one_line(user))
                column = "model"
                model = row[at_model] if at_model >= 0 else ""
                if model not in words:
                    words.add(one_line(model))
                column = "priority"
                text = row[at_priority] if at_priority >= 0 else ""
                if text not in priorities:
                    priorities[text] = priority_of(text)
                priority = priorities[text]
                column = "mode"
                mode = mode_of(row[at_mode]) if at_mode >= 0 else ""
                column = "soft"
                soft = at_soft >= 0 and truth_of(row[at_soft])
                column = "elastic"
                elastic = at_elastic >= 0 and truth_of(row[at_elastic])
        except FieldError as error:
            parsed.refuse(error, Location(file, line), column)
            continue
        first = seen.setdefault(job_id, line)
        if first != line:
            twice = FieldError(f"{shown(job_id)} is already in row {first}: give every job its own", TWICE)
            parsed.refuse(twice, Location(file, line), "job_id")
            continue
        jobs.append(
            TraceJob(
                job_id, tenant, submit_ms, duration_ms, gpus, status, user, model, priority, mode, soft, elastic
            )
        )  # fmt: skip
