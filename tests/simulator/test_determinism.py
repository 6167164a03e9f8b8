"""The same spec, trace and options give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hived.simulator import Options, make_report, run_experiment
from hived.simulator.figures import write_figures
from hived.simulator.output import write_jobs, write_runs, write_summary
from hived.simulator.traces import TABLE1, generate_table1
from hived.spec import parse_spec, spec_from_quotas


def write_all(folder: Path) -> None:
    """Everything that ``hived simulate`` writes, for a small synthetic trace."""
    folder.mkdir()
    spec = parse_spec(spec_from_quotas(15, [(row.tenant, row.quota_percent) for row in TABLE1]), "small")
    report = make_report(run_experiment(spec, generate_table1(250, 2, 9), Options()))
    write_jobs(report.results, folder / "jobs.csv")
    write_runs(report.results, folder / "runs.csv")
    write_summary(report, folder / "summary.json")
    write_figures(report, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_other_hashes_give_the_same_bytes(tmp_path: Path) -> None:
    """In another process, which also has another time zone and locale."""
    write_all(tmp_path / "here")
    reference = contents(tmp_path / "here")
    assert {".png", ".svg", ".csv", ".json"} == {Path(name).suffix for name in reference}
    program = f"from {__name__} import write_all; from pathlib import Path; write_all(Path({str(tmp_path / 'out')!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True, capture_output=True)
    assert contents(tmp_path / "out") == reference
