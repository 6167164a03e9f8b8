"""What the tests of the simulator share: specs and traces as text, and a whole experiment audited from outside."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from hived.scheduling import Scheduler
from hived.simulator import Results, Scenario, run_experiment
from hived.simulator.output import write_cluster, write_table
from hived.simulator.tables import jobs_table, runs_table
from hived.simulator.traces import Trace, TraceJob, compress_clock, read_trace
from hived.spec import load_spec

from .reader import Asked, Outcome, audit

HEADER = "job_id,tenant,submit_s,duration_s,gpus,status"
SHARED = Path(__file__).parents[3] / "shared"

#: (id, tenant, submit_s, duration_s, gpus)
Row = tuple[object, str, object, object, int]


def trace_text(rows: Iterable[Row]) -> str:
    """A trace in our CSV."""
    return "\n".join([HEADER, *(",".join(map(str, (*row, "pass"))) for row in rows)]) + "\n"


def trace_of(text: str) -> Trace:
    """The trace that a text in our CSV holds."""
    jobs = [
        TraceJob(
            row["job_id"], row["tenant"], round(float(row["submit_s"]) * 1000), round(float(row["duration_s"]) * 1000),
            int(row["gpus"]), "pass",
        )
        for row in csv.DictReader(StringIO(text))
    ]  # fmt: skip
    return Trace("any", tuple(sorted(jobs, key=lambda job: job.submit_ms)))


def spec_text(
    types: dict[str, tuple[str, int]], cells: Sequence[dict[str, Any]], vcs: dict[str, dict[str, int]],
    nodes: Sequence[str] = ("NODE",),
) -> str:  # fmt: skip
    """A spec: cell types as child and number, physical cells as they are, and what each tenant reserved."""
    return json.dumps(
        {
            "physicalCluster": {
                "cellTypes": {
                    name: {"childCellType": child, "childCellNumber": number, "isNodeLevel": name in nodes}
                    for name, (child, number) in types.items()
                },
                "physicalCells": list(cells),
            },
            "virtualClusters": {
                tenant: {"virtualCells": [{"cellType": kind, "cellNumber": n} for kind, n in reserved.items()]}
                for tenant, reserved in vcs.items()
            },
        }
    )


NODE_OF_8 = {"PAIR": ("GPU", 2), "SOCKET": ("PAIR", 2), "NODE": ("SOCKET", 2)}


def nodes_of_8(nodes: int, vcs: dict[str, int]) -> str:
    """Equal nodes of 8 GPUs, reserved whole."""
    cells = [{"cellType": "NODE", "cellAddress": f"n[0-{nodes - 1}]"}]
    return spec_text(NODE_OF_8, cells, {tenant: {"NODE": number} for tenant, number in vcs.items()})


@dataclass(frozen=True)
class Experiment:
    """Results, the files they were written to, and what the independent reader made of those."""

    results: Results
    folder: Path
    outcomes: dict[tuple[str, str], Outcome]

    def __getitem__(self, scheme: str) -> Outcome:
        return self.outcomes[scheme, "yarn-cs"]


def simulated(
    folder: Path, spec: str | Path, trace: str | Path, *, schemes: Sequence[str] = ("private", "quota", "hived"),
    opportunistic: bool = True, preempted: str = "resume", until_s: float | None = None, compression: float = 1.0,
    after_event: Callable[[Scheduler], None] | None = None,
) -> Experiment:  # fmt: skip
    """Run an experiment, write its files to ``folder``, and have the reader check them."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, trace = _file(spec, folder / "spec.yaml"), _file(trace, folder / "trace.csv")
    scenario = Scenario(
        schemes=schemes,
        opportunistic=opportunistic,
        preempted=preempted,
        until=None if until_s is None else until_s / 86_400,
        clock_compression=compression,
    )
    jobs = compress_clock(read_trace(trace), compression)
    results = run_experiment(load_spec(spec), jobs, scenario, after_event=after_event)
    write_table(jobs_table(results), folder / "jobs.csv")
    write_table(runs_table(results), folder / "runs.csv")
    write_cluster(results, folder / "cluster.json")
    asked = Asked(opportunistic, preempted, scenario.until_ms, compression)
    outcomes = audit(folder, spec, trace, asked)
    assert sorted(outcomes) == sorted((scheme, "yarn-cs") for scheme in schemes)
    return Experiment(results, folder, outcomes)


def _file(content: str | Path, path: Path) -> Path:
    if isinstance(content, Path):
        return content
    path.write_text(content, encoding="utf-8")
    return path
