"""``python -m tools.claims REPORT ...``: which claims hold, by the reports of full runs, as the page of the reference.

Each ``REPORT`` is a folder that ``hived reproduce`` has written. Prints the page; the part of each paper is dated and
names the commit that is checked out, so run it where the reports were made.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = """# Which claims hold

What the papers' evaluations claim, and whether it holds when they are run again whole
([reproduce a paper](../howto/reproduce.md)): by experiment, the claims that hold of all that were judged.
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


def section(report: str, date: str, commit: str) -> str:
    """The part of one paper. Raises :class:`ValueError` for a quick run, which judges nothing."""
    if "**Quick.**" in report:
        raise ValueError("the report of a quick run: nothing is judged there; run it without --quick")
    heading = report.partition("\n")[0].removeprefix("# ")
    lines = [
        f"## {heading}",
        "",
        f"{date}, `{commit}`.",
        "",
        "| experiment | trace | hold | otherwise |",
        "|---|---|---|---|",
    ]
    for experiment, trace, claims in verdicts(report):
        judged = [shape for _, shape in claims if shape != "not judged"]
        hold = f"{judged.count('holds')} of {len(judged)}" if judged else "not judged"
        others = "; ".join(f"*{shape}*: {claim}" for claim, shape in claims if shape not in ("holds", "not judged"))
        lines.append(f"| {experiment} | {trace} | {hold} | {others} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.claims", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    texts = [(report / "index.md").read_text(encoding="utf-8") for report in parser.parse_args().reports]
    print("\n".join([_HEAD, *(section(text, date, commit.stdout.strip()) for text in texts)]), end="")


if __name__ == "__main__":
    main()
