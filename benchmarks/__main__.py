"""``python -m benchmarks [SUITE ...] [--no-history]``: measure, print a table, keep the history.

Suites: core, contract, scaling, simulation, sharing, preemption, runtime, live, turns, beside,
fidelity, dashboard, extender, kube-scheduler; all of them by default.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hived.installed import form

from . import (
    beside,
    contract,
    core,
    dashboard,
    extender,
    fidelity,
    kube_scheduler,
    live,
    preemption,
    runtime,
    scaling,
    sharing,
    simulation,
    turns,
)
from .measuring import Figure

HISTORY = Path(__file__).parent / "history.jsonl"
SUITES = {
    "core": core.measure,
    "contract": contract.measure,
    "scaling": scaling.measure,
    "simulation": simulation.measure,
    "sharing": sharing.measure,
    "preemption": preemption.measure,
    "runtime": runtime.measure,
    "live": live.measure,
    "turns": turns.measure,
    "beside": beside.measure,
    "fidelity": fidelity.measure,
    "dashboard": dashboard.measure,
    "extender": extender.measure,
    "kube-scheduler": kube_scheduler.measure,
}


def main() -> None:
    """Run the suites asked for (all, by default)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all by default")
    parser.add_argument("--no-history", action="store_true", help="do not add to benchmarks/history.jsonl")
    arguments = parser.parse_args()
    before = _last_values()
    figures: list[Figure] = []
    for name in arguments.suites or SUITES:
        figures += SUITES[name]()
    _print(figures, before)
    if not arguments.no_history:
        entry = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": _commit(),
            "python": platform.python_version(),
            "form": form(),
            "processor": _processor(),
            "figures": {figure.name: {"value": figure.value, "unit": figure.unit} for figure in figures},
        }
        with HISTORY.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _last_values() -> dict[str, float]:
    values: dict[str, float] = {}
    if HISTORY.exists():
        for line in HISTORY.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry.get("form", "plain Python") == form():
                values |= {name: figure["value"] for name, figure in entry["figures"].items()}
    return values


def _print(figures: list[Figure], before: dict[str, float]) -> None:
    table = Table("what", box=None)
    for heading in ("measured", "unit", "aim", "over the last entry"):
        table.add_column(heading, justify="right")
    for figure in figures:
        shown = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}"
        old = before.get(figure.name)
        table.add_row(figure.name, shown, figure.unit, figure.aim, f"{figure.value / old:.2f} x" if old else "")
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)


def _commit() -> str:
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
