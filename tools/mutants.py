"""Mutation testing of the code that decides: does a test fail when one operator, constant or condition is changed?

    python -m tools.mutants                          200 mutants of all rooms, drawn with seed 1; two at a time
    python -m tools.mutants --room cells --number 50 --seed 7
    python -m tools.mutants --tree ../before         the same mutants against the tests of another checkout
    python -m tools.mutants --list                   the mutants, without running a test

Each mutant runs in a copy of the checkout against the tests of its own room that run the changed function, quickest
first, until the first failure. A mutant that survives the fast tier meets the ``slow`` tests of its room too. Killed
are: a failed test, an import that fails, and a run that takes three times as long as without a mutant. The same seed
draws the same mutants as long as the rooms' code is the same, so that two checkouts with the same code and other tests
can be compared.

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
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
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
            "engine/dispatcher.py",
            "engine/explaining.py",
            "engine/hardware.py",
            "engine/job.py",
            "engine/trading.py",
        ),
        ("tests/engines", "tests/kubernetes"),
    ),
    "local": (
        ("engines/local/explaining.py", "engines/local/job_scheduler.py", "engines/local/model.py"),
        ("tests/engines",),
    ),
    "kubernetes": (("engines/kubernetes/gangs", "engines/kubernetes/pods"), ("tests/kubernetes",)),
}
#: of these tests, what runs real programs, reads files of others, or is about output alone
LEFT_OUT = (
    "tests/kubernetes/real",
    "tests/simulator/test_figures.py",
    "tests/simulator/test_parallel.py",
    "tests/simulator/test_real_trace.py",
    "tests/simulator/test_research_page.py",
    "tests/simulator/test_study.py",
)
TIERS = {"fast": "not (slow or cluster or browser or torch or release)", "slow": "slow"}
PLAN = "HIVED_MUTANTS_PLAN"  #: what a run of tests is to do, for the plugin below
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


# -- probes: which tests run which function ----------------------------------------------------------------------------


def probed(text: str, lines: list[int]) -> tuple[str, set[int]]:
    """The text with a probe at the head of each function that has one of these lines; the lines that have one.

    Code of a module or class, which runs when it is imported, has none.
    """
    functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    heads: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        around = [each for each in functions if each.body[0].lineno <= line <= (each.end_lineno or 0)]
        if not around:
            continue
        body = max(around, key=lambda each: each.lineno).body
        first = body[1] if len(body) > 1 and isinstance(body[0], ast.Expr) else body[0]  # after a docstring
        above = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
        heads.setdefault((above, first.col_offset), []).append(line)
    changed = text.split("\n")
    for (above, indent), found in sorted(heads.items(), reverse=True):
        if changed[above - 1][:indent].strip():  # on the line of its `def`
            del heads[above, indent]
            continue
        changed.insert(above - 1, f"{' ' * indent}import mutants_plugin; mutants_plugin.met(__file__, {found})")
    return "\n".join(changed), {line for found in heads.values() for line in found}


_met: dict[str, set[str]] = {}  #: in a run with probes: a line, and the tests or modules that run its function
_now = ""  #: the test, or the module whose fixture is set up


def met(file: str, lines: list[int]) -> None:
    """A probe: the function with these lines is run."""
    for line in lines:
        _met.setdefault(f"{file}:{line}", set()).add(_now)


# -- the plugin of pytest that this module is in the runs -------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Whose probes are met from now on."""
    global _now
    _now = item.nodeid
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[None]:
    """What a shared fixture does is of all tests of its module."""
    global _now
    before = _now
    if fixturedef.scope != "function":
        _now = before.partition("::")[0]
    try:
        return (yield)
    finally:
        _now = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only tests that run the mutated function, the quickest first."""
    plan = json.loads(os.environ[PLAN])
    if "durations" not in plan:
        return
    durations = json.loads(Path(plan["durations"]).read_text(encoding="utf-8"))
    items.sort(key=lambda item: durations.get(item.nodeid, 0.0))
    if plan["tests"] is not None:
        tests = set(plan["tests"])
        items[:] = [item for item in items if tests & {item.nodeid, item.nodeid.partition("::")[0]}]


_took: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How long each test takes."""
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Write what a run with probes has found."""
    if target := json.loads(os.environ[PLAN]).get("report"):
        found = {"durations": _took, "met": {line: sorted(tests) for line, tests in _met.items()}}
        Path(target).write_text(json.dumps(found), encoding="utf-8")


# -- the runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """A room's tests without a mutant."""

    durations: Path  #: each test's
    seconds: dict[str, float]  #: of a whole run, by tier
    tests: dict[tuple[str, int], list[str]]  #: file and line of a mutant: the tests (or modules) that run its function


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
        shutil.copy2(__file__, folder / "mutants_plugin.py")
        self._folder = folder
        marked = "slow:" in (self.folder / "pyproject.toml").read_text(encoding="utf-8")
        self.tiers = TIERS if marked else {"fast": ""}  #: an older checkout has all tests in one tier

    def test(self, room: str, tier: str, plan: Mapping[str, object], timeout_s: float | None = None) -> int:
        """Run a room's tests until the first failure; pytest's exit code, or 124 after ``timeout_s``."""
        tests = [name for name in ROOMS[room][1] if (self.folder / name).is_dir()]
        options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "mutants_plugin", "-m", self.tiers[tier]]
        environment = os.environ | {
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self._folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            PLAN: json.dumps(plan),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *(f"--ignore={name}" for name in LEFT_OUT), *tests],
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

    def measure(self, room: str, mutants: list[Mutant], report: Path) -> Room:
        """Run a room's tests with probes and no mutant. Raises :class:`SystemExit` if one fails."""
        durations: dict[str, float] = {}
        seconds: dict[str, float] = {}
        tests: dict[tuple[str, int], set[str]] = {}
        texts = {mutant.file: (self.folder / mutant.file).read_text(encoding="utf-8") for mutant in mutants}
        for file, text in texts.items():
            changed, lines = probed(text, [mutant.line for mutant in mutants if mutant.file == file])
            (self.folder / file).write_text(changed, encoding="utf-8")
            tests |= {(file, line): set() for line in lines}
        for tier in self.tiers:
            started = time.monotonic()
            code = self.test(room, tier, {"report": str(report)})
            seconds[tier] = time.monotonic() - started
            if code not in (0, 5):
                raise SystemExit(f"the tests of {room} ({tier}) fail without a mutant (exit code {code})")
            found = json.loads(report.read_text(encoding="utf-8"))
            durations |= found["durations"]
            for place, names in found["met"].items():
                file, _, line = place.rpartition(":")
                tests[Path(file).relative_to(self.folder).as_posix(), int(line)].update(names)
        for file, text in texts.items():
            (self.folder / file).write_text(text, encoding="utf-8")
        report.write_text(json.dumps(durations), encoding="utf-8")
        return Room(report, seconds, {place: sorted(names) for place, names in tests.items()})

    def judge(self, mutant: Mutant, room: Room) -> str:
        """``fast`` or ``slow``: the tier that kills it; or ``survives``."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutated(text, mutant), encoding="utf-8")
        plan = {"durations": str(room.durations), "tests": room.tests.get((mutant.file, mutant.line))}
        try:
            for tier in self.tiers:
                timeout_s = PATIENCE * room.seconds[tier] + MORE_S
                if self.test(mutant.room, tier, plan, timeout_s) not in (0, 5):
                    return tier
            return "survives"
        finally:
            path.write_text(text, encoding="utf-8")


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
    parser.add_argument(
        "--out", type=Path, help="JSON lines: each mutant and what killed it; those there are not run again"
    )
    arguments = parser.parse_args()
    drawn = draw(arguments.room or list(ROOMS), arguments.number, arguments.seed)
    if arguments.list:
        print("\n".join(map(str, drawn)))
        return
    started = time.monotonic()
    results = {} if arguments.out is None else _known(arguments.out, drawn)
    with tempfile.TemporaryDirectory(prefix="hived-mutants-") as folder:
        for mutant, result in _run(
            [each for each in drawn if each not in results], arguments.tree.resolve(), Path(folder), arguments.jobs
        ):
            results[mutant] = result
            print(f"{result:8}  {mutant}", flush=True)
            if arguments.out is not None:
                with arguments.out.open("a", encoding="utf-8") as file:
                    print(json.dumps({"mutant": str(mutant), "killed": result}), file=file)
    _print(drawn, results, time.monotonic() - started)


def _known(path: Path, drawn: list[Mutant]) -> dict[Mutant, str]:
    """What an earlier run that was stopped has found."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {line["mutant"]: line["killed"] for line in map(json.loads, lines)}
    return {each: found[str(each)] for each in drawn if str(each) in found}


def _run(drawn: list[Mutant], tree: Path, folder: Path, jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Each mutant and its result, as they come."""
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(jobs):
        copies.put(Copy(tree, folder / str(number)))

    def measure(name: str) -> Room:
        copy = copies.get()
        try:
            return copy.measure(name, [each for each in drawn if each.room == name], folder / f"{name}.json")
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        names = sorted({mutant.room for mutant in drawn})
        rooms = dict(zip(names, pool.map(measure, names), strict=True))
        for name, room in rooms.items():
            print(name, ", ".join(f"{tier} {seconds:.0f} s" for tier, seconds in room.seconds.items()), flush=True)

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            copy = copies.get()
            try:
                return mutant, copy.judge(mutant, rooms[mutant.room])
            finally:
                copies.put(copy)

        for future in as_completed([pool.submit(judge, mutant) for mutant in drawn]):
            yield future.result()


def _print(drawn: list[Mutant], results: dict[Mutant, str], seconds: float) -> None:
    print(f"\n{'room':12}{'mutants':>9}{'killed':>9}{'of them by slow tests':>24}{'survive':>9}")
    for room in [*sorted({mutant.room for mutant in drawn}), "all"]:
        told = Counter(results[mutant] for mutant in drawn if room in (mutant.room, "all"))
        print(f"{room:12}{told.total():9}{told['fast'] + told['slow']:9}{told['slow']:24}{told['survives']:9}")
    print(f"in {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    main()
