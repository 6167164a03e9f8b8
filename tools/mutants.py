"""Mutation testing of the code that decides: does a test fail when one operator, constant or condition is changed?

    python -m tools.mutants                          200 mutants of all rooms, drawn with seed 1; two at a time
    python -m tools.mutants --room cells --number 50 --seed 7
    python -m tools.mutants --tree ../before         the same mutants against the tests of another checkout
    python -m tools.mutants --list                   the mutants, without running a test

Each mutant runs in a copy of the checkout against the tests of its own room, quickest test first, and stops at the
first failure. A mutant that survives the fast tier meets the ``slow`` tests of its room too. Killed are: a failed test,
an import that fails, and a run that takes three times as long as without a mutant. The same seed draws the same mutants
as long as the rooms' code is the same, so that two checkouts with the same code and other tests can be compared.

Mutations are those of cosmic-ray (``pip install -e '.[dev-release]'``). A draw chooses places first, and then one of
the mutations of each: else arithmetic, which has ten a place, would be most of them. Annotations are left out: they are
not evaluated.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

ROOT = Path(__file__).parents[1]
#: room: its code below src/hived, and the tests that are its own
ROOMS = {
    "cells": (("cells",), ("tests/cells",)),
    "cluster": (("cluster",), ("tests/cluster", "tests/contract")),
    "scheduling": (("scheduling",), ("tests/scheduling", "tests/simulator")),
    "exchange": (("exchange",), ("tests/exchange",)),
    "engines": (
        (
            "engines/dispatcher.py",
            "engines/explaining.py",
            "engines/hardware.py",
            "engines/job.py",
            "engines/trading.py",
        ),
        ("tests/engines", "tests/kubernetes"),
    ),
    "local": (
        ("engines/local/explaining.py", "engines/local/job_scheduler.py", "engines/local/model.py"),
        ("tests/engines",),
    ),
    "kubernetes": (("engines/kubernetes/gangs", "engines/kubernetes/pods"), ("tests/kubernetes",)),
}
#: folders of these tests that run real programs, and modules that nothing decides in
LEFT_OUT = ("tests/kubernetes/real",)
TIERS = {"fast": "not (slow or cluster or browser or torch or release)", "slow": "slow"}
ORDER = "HIVED_MUTANTS_ORDER"  #: the file with the tests' durations, for the plugin below
#: a run with a mutant may take this many times as long as one without, and so many seconds more
PATIENCE, MORE_S = 3.0, 30.0


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change of one file."""

    room: str
    file: str  #: below the checkout
    line: int
    column: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.operator.removeprefix('core/')}"


# -- the draw ---------------------------------------------------------------------------------------------------------


def draw(rooms: list[str], number: int, seed: int) -> list[Mutant]:
    """So many mutants, of places drawn evenly from the code of all rooms. O(code x operators)."""
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for room in rooms:
        for file in _files(room):
            for mutant in _mutants(room, file):
                places.setdefault((mutant.file, mutant.line, mutant.column), []).append(mutant)
    chance = random.Random(seed)
    drawn = chance.sample(sorted(places), min(number, len(places)))
    return sorted(chance.choice(places[place]) for place in drawn)


def _files(room: str) -> list[Path]:
    source = ROOT / "src" / "hived"
    found = [source / name for name in ROOMS[room][0]]
    return sorted(path for one in found for path in (one.rglob("*.py") if one.is_dir() else [one]))


def _mutants(room: str, path: Path) -> Iterator[Mutant]:
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    names = [name for name in operator_names() if "Variable" not in name and "Decorator" not in name]
    operators = {name: get_operator(name)() for name in names}
    met: Counter[str] = Counter()
    found: list[Mutant] = []
    text = path.read_text(encoding="utf-8")
    typed = _annotations(text)
    file = path.relative_to(ROOT).as_posix()

    class Collect(Visitor):  # type: ignore[misc]  # cosmic-ray has no types
        def visit(self, node: object) -> object:
            for name, operator in operators.items():
                for (line, column), _ in operator.mutation_positions(node):
                    if not any(start <= (line, column) < end for start, end in typed):
                        found.append(Mutant(room, file, line, column, name, met[name]))
                    met[name] += 1
            return node

    Collect().walk(get_ast(text))
    yield from found


def _annotations(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations are: from and to, as line and column."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
    return [
        ((one.lineno, one.col_offset), (one.end_lineno or one.lineno, one.end_col_offset or 0))
        for one in found
        if one is not None
    ]


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    changed: str | None = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
    if changed is None:
        raise ValueError(f"{mutant} is not in this code: the checkouts differ in what is mutated")
    return changed


# -- the runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """A room's tests without a mutant."""

    order: Path  #: each test's duration
    seconds: dict[str, float]  #: of a whole run, by tier


class Copy:
    """A copy of a checkout in which files are changed and tests run."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder / "hived"
        names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (tree / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.folder / name)
        if (tree.parent / "shared").is_dir():
            (folder / "shared").symlink_to((tree.parent / "shared").resolve())
        shutil.copy2(__file__, folder / "mutants_order.py")  # another checkout may not have it
        self._folder = folder
        marked = "slow:" in (self.folder / "pyproject.toml").read_text(encoding="utf-8")
        self.tiers = TIERS if marked else {"fast": ""}  #: an older checkout has all tests in one tier

    def test(
        self, room: str, tier: str, *options: str, timeout_s: float | None = None, order: Path | None = None
    ) -> int:
        """Run a room's tests; pytest's exit code, or 124 after ``timeout_s``."""
        tests = [name for name in ROOMS[room][1] if (self.folder / name).is_dir()]
        left_out = [f"--ignore={name}" for name in LEFT_OUT]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-p",
            "mutants_order",
        ]
        environment = os.environ | {
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self._folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            ORDER: str(order or ""),
        }
        with subprocess.Popen(
            [*command, "-m", self.tiers[tier], *left_out, *options, *tests],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return 124

    def measure(self, room: str, report: Path) -> Room:
        """Run a room's tests without a mutant. Raises :class:`SystemExit` if one fails."""
        durations: dict[str, float] = {}
        seconds: dict[str, float] = {}
        for tier in self.tiers:
            started = time.monotonic()
            code = self.test(room, tier, f"--junitxml={report}")
            seconds[tier] = time.monotonic() - started
            if code not in (0, 5):
                raise SystemExit(f"the tests of {room} ({tier}) fail without a mutant (exit code {code})")
            for case in ET.parse(report).iter("testcase"):
                durations[f"{case.get('classname')}.{case.get('name')}"] = float(case.get("time") or 0)
        order = report.with_suffix(".json")
        order.write_text(json.dumps(durations), encoding="utf-8")
        return Room(order, seconds)

    def judge(self, mutant: Mutant, room: Room) -> str:
        """``fast`` or ``slow``: the tier that kills it; or ``survives``."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutated(text, mutant), encoding="utf-8")
        try:
            for tier in self.tiers:
                timeout_s = PATIENCE * room.seconds[tier] + MORE_S
                if self.test(mutant.room, tier, "-x", timeout_s=timeout_s, order=room.order) not in (0, 5):
                    return tier
            return "survives"
        finally:
            path.write_text(text, encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quickest tests first. (This module is a plugin of the runs above.)"""
    if name := os.environ.get(ORDER):
        durations = json.loads(Path(name).read_text(encoding="utf-8"))
        known = {item: durations.get(_reported(item), 0.0) for item in items}
        items.sort(key=lambda item: known[item])


def _reported(item: pytest.Item) -> str:
    """A test's name in a report."""
    module, *classes = item.nodeid.split("::")[:-1]
    return ".".join([module.removesuffix(".py").replace("/", "."), *classes, item.name])


# -- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--room", action="append", choices=list(ROOMS), help="again for more; all by default")
    parser.add_argument("--number", type=int, default=200, help="of mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose tests are run (this one)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--out", type=Path, help="a file of JSON lines with each mutant and what killed it")
    arguments = parser.parse_args()
    drawn = draw(arguments.room or list(ROOMS), arguments.number, arguments.seed)
    if arguments.list:
        print("\n".join(map(str, drawn)))
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hived-mutants-") as folder:
        results = _run(drawn, arguments.tree.resolve(), Path(folder), arguments.jobs)
    _print(drawn, results, time.monotonic() - started)
    if arguments.out is not None:
        lines = [json.dumps({"room": one.room, "mutant": str(one), "killed": results[one]}) for one in drawn]
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run(drawn: list[Mutant], tree: Path, folder: Path, jobs: int) -> dict[Mutant, str]:
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(jobs):
        copies.put(Copy(tree, folder / str(number)))

    def measure(room: str) -> Room:
        copy = copies.get()
        try:
            return copy.measure(room, folder / f"{room}.xml")
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        names = sorted({mutant.room for mutant in drawn})
        rooms = dict(zip(names, pool.map(measure, names), strict=True))
        for name, room in rooms.items():
            print(name, ", ".join(f"{tier} {seconds:.0f} s" for tier, seconds in room.seconds.items()), flush=True)

        def judge(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                result = copy.judge(mutant, rooms[mutant.room])
            finally:
                copies.put(copy)
            print(f"{result:8}  {mutant}", flush=True)
            return result

        return dict(zip(drawn, pool.map(judge, drawn), strict=True))


def _print(drawn: list[Mutant], results: dict[Mutant, str], seconds: float) -> None:
    print(f"\n{'room':12}{'mutants':>9}{'killed':>9}{'of them by slow tests':>24}{'survive':>9}")
    for room in [*sorted({mutant.room for mutant in drawn}), "all"]:
        told = Counter(results[mutant] for mutant in drawn if room in (mutant.room, "all"))
        print(f"{room:12}{told.total():9}{told['fast'] + told['slow']:9}{told['slow']:24}{told['survives']:9}")
    print(f"in {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
