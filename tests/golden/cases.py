"""The simulations whose results are kept: what they are run on, and the files that come of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hived.simulator import Preempted, Scenario, run_experiment
from hived.simulator.output import write_summary, write_table
from hived.simulator.report import make_report
from hived.simulator.tables import jobs_table, runs_table
from hived.simulator.traces import Trace, compress_clock, read_trace
from hived.spec import read_quotas, spec_from_quotas
from hived.spec.compiled import ClusterSpec
from hived.spec.loading import parse_spec

HERE = Path(__file__).parent
HASHES = HERE / "hashes.json"
SHARED = HERE.parents[2] / "shared" / "traces"
PHILLY = SHARED / "philly-2017-oct-nov.csv.gz"
RESULTS = ("jobs.csv", "runs.csv", "summary.json")


@dataclass(frozen=True)
class Case:
    """One spec and one trace, and how fast its clock goes."""

    name: str
    spec: ClusterSpec
    trace: Path
    compression: float = 1.0
    #: its jobs share GPUs; None: each has its own
    policy: str | None = None

    def scenarios(self) -> Iterator[Scenario]:
        """All schemes, with and without opportunistic jobs, by what a preempted job keeps; one of a sharing policy."""
        if self.policy is not None:
            yield Scenario(schemes=("private", "hived"), policy=self.policy)
            return
        for opportunistic, preempted in product((True, False), Preempted):
            yield Scenario(opportunistic=opportunistic, preempted=preempted, clock_compression=self.compression)

    def write(self, scenario: Scenario, folder: Path) -> dict[str, str]:
        """Simulate, write the files to ``folder``, and return the SHA-256 of each by its path below it."""
        trace: Trace = compress_clock(read_trace(self.trace), self.compression)
        lending = "lending" if scenario.opportunistic else "no-lending"
        name = f"{self.name}/{lending}-{scenario.preempted.value}"
        target = folder / name
        target.mkdir(parents=True)
        results = run_experiment(self.spec, trace, scenario)
        write_table(jobs_table(results), target / "jobs.csv")
        write_table(runs_table(results), target / "runs.csv")
        write_summary(make_report(results), target / "summary.json")
        summary = json.loads((target / "summary.json").read_text())
        del summary["hived_version"]
        (target / "summary.json").write_text(json.dumps(summary, indent=2))
        return {f"{name}/{file}": hashlib.sha256((target / file).read_bytes()).hexdigest() for file in RESULTS}


def generated() -> list[Case]:
    """The ten clusters of this folder."""
    folders = sorted((HERE / "clusters").iterdir())
    # a spec of the same name wherever this folder lies: results show where it came from
    return [
        Case(f.name, parse_spec((f / "spec.yaml").read_text(encoding="utf-8"), f.name), f / "trace.csv")
        for f in folders
    ]


def sharing() -> list[Case]:
    """Jobs that share GPUs: by turns and packed (Gandiva), as guests (AntMan)."""
    return [
        Case(f.name, parse_spec((f / "spec.yaml").read_text(encoding="utf-8"), f.name), f / "trace.csv", 1.0, f.name)
        for f in sorted((HERE / "sharing").iterdir())
    ]


def philly() -> list[Case]:
    """The real trace on the paper's cluster, and crowded on 200 nodes; none where the trace is not at hand."""
    if not PHILLY.exists():
        return []
    quotas = read_quotas(SHARED / "hived_table1.csv")
    return [
        Case("philly-279", parse_spec(spec_from_quotas(279, quotas), "279"), PHILLY),
        Case("philly-200", parse_spec(spec_from_quotas(200, quotas), "200"), PHILLY, 1.5),
    ]


#: a case, and with which scenario
Simulated = tuple[Case, Scenario]


def everything() -> list[Simulated]:
    """All that is at hand, the longest first."""
    return [(case, scenario) for case in [*philly(), *generated(), *sharing()] for scenario in case.scenarios()]


def quick() -> list[Simulated]:
    """One simulation of each case of this folder, of every kind in turn."""
    cases = [(case, list(case.scenarios())) for case in [*generated(), *sharing()]]
    return [(case, scenarios[number % len(scenarios)]) for number, (case, scenarios) in enumerate(cases)]
