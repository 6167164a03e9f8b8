"""``python -m tools.claims REPORT ...``: the page of the reference that says which claims hold, from full runs.

Each ``REPORT`` is a folder that ``python -m evaluation`` has written. Its date is that of its ``index.md``; its
version, with the commit, is the one that it names.
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = """# Which claims hold

What the papers' evaluations claim, and whether it holds when they are run again whole
([reproduce a paper](../howto/reproduce.md)): by experiment and trace, the claims that hold of all that were judged.
*Not judged* is what only echoes a paper's own numbers; *not seen* is about something that the trace does not show.
Made by `python -m tools.claims` from the reports.
"""


class Verdict(NamedTuple):
    """An experiment on one trace."""

    experiment: str
    trace: str
    claims: tuple[tuple[str, str], ...]  #: what is claimed, and whether it holds


def verdicts(report: str) -> Iterator[Verdict]:
    """Those of the text of a report."""
    for part in re.split(r"^## ", report, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        for run in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
            head, _, body = run.partition("\n")
            claims = re.findall(r"^- (.+): \*\*(.+)\*\*$", body, flags=re.MULTILINE)
            yield Verdict(title, head.partition(": ")[2], tuple(claims))


def section(report: str, date: str) -> str:
    """The part of one paper. Raises :class:`ValueError` for a quick run, which judges nothing, and for no report."""
    if "**Quick.**" in report:
        raise ValueError("the report of a quick run: nothing is judged there; run it without --quick")
    version = re.search(r"version (\S+?)\. ", report)
    if version is None:
        raise ValueError("no report of python -m evaluation")
    lines = [f"## {report.partition(chr(10))[0].removeprefix('# ')}", "", f"{date}, version {version[1]}.", ""]
    lines += ["| experiment | trace | hold | otherwise |", "|---|---|---|---|"]
    for experiment, trace, claims in verdicts(report):
        judged = [shape for _, shape in claims if shape != "not judged"]
        hold = f"{judged.count('holds')} of {len(judged)}" if judged else "not judged"
        others = "; ".join(f"*{shape}*: {claim}" for claim, shape in claims if shape not in ("holds", "not judged"))
        lines.append(f"| {experiment} | {trace} | {hold} | {others} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    sections = []
    for folder in parser.parse_args().reports:
        path = folder / "index.md"
        written = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date().isoformat()
        sections.append(section(path.read_text(encoding="utf-8"), written))
    print("\n".join([_HEAD, *sections]), end="")


if __name__ == "__main__":
    main()
