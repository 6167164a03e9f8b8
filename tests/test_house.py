"""The rules of the house that are checked by tools: style, types and layers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import hived

ROOT = Path(__file__).parents[1]
#: the sections that HiveD's paper (OSDI'20) has
SECTIONS = {"1", "2", "3", "3.1", "3.2", "3.3", "4", "5", "5.1", "5.2", "5.3", "6"}


def run(*command: str) -> None:
    """Run a tool of this environment in the repository; its output is the failure's message."""
    tool = Path(sysconfig.get_path("scripts")) / command[0]
    result = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_linter() -> None:
    run("ruff", "check", "--no-cache", ".")


def test_formatter() -> None:
    run("ruff", "format", "--check", "--no-cache", ".")


def test_types() -> None:
    run("mypy")


def test_layers_and_purity() -> None:
    run("lint-imports", "--no-cache")


def imports() -> Iterator[tuple[str, str]]:
    """Every import of a file of the packages by another, those for type checkers alone included."""
    files = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for source in (ROOT / "src", ROOT / "packages" / "hived-runtime" / "src")
        for path in source.rglob("*.py")
    }
    for name, path in files.items():
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                names = [f"{module}.{alias.name}" for alias in node.names]
                found = [each if each in files else module for each in names]
            yield from ((name, each) for each in found if each in files and each != name)


def test_no_circle_of_files() -> None:
    graph: dict[str, set[str]] = {}
    for name, imported in imports():
        graph.setdefault(name, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_scheduler_names_no_extension() -> None:
    for path in (ROOT / "src" / "hived" / "scheduling").rglob("*.py"):
        assert re.findall(r"gandiva|antman|slicer", path.read_text(encoding="utf-8"), re.IGNORECASE) == [], path


def test_plain_install_needs_no_extra() -> None:
    code = (
        "import sys, hived.cli.app; "
        "extras = {'matplotlib', 'hypothesis', 'pytest', 'torch', 'kubernetes_asyncio', 'aiohttp', "
        "'prometheus_client', 'polars', 'hived_control', 'hived_runtime'} & set(sys.modules); "
        "sys.exit(', '.join(extras) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported at start: {result.stderr}"


def test_nothing_imports_the_tests() -> None:
    """Benchmarks and tools stand without them."""
    paths = [
        ROOT / "noxfile.py",
        *(path for name in ("src", "packages", "benchmarks", "tools") for path in (ROOT / name).rglob("*.py")),
    ]
    wrong = [path for path in paths if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)]
    assert wrong == []


def public() -> Iterator[object]:
    """What ``import hived`` has, and what the reference of the Python API documents."""
    yield from (getattr(hived, name) for name in hived.__all__)
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for path in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        within, _, name = path.rpartition(".")
        found = getattr(import_module(within), name)
        inside = vars(found).values() if isinstance(found, ModuleType) else ()
        yield from [one for one in inside if getattr(one, "__module__", "") == path] or [found]


def test_evaluation_imports_what_is_public() -> None:
    """It reproduces the papers as a researcher outside of this project would."""
    known = list(public())
    wrong = []
    for path in (ROOT / "evaluation").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wrong += [(path.name, alias.name) for alias in node.names if alias.name.partition(".")[0] == "hived"]
            elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).partition(".")[0] == "hived":
                names = [alias.name for alias in node.names]
                module = import_module(str(node.module))
                of = [getattr(module, name, None) for name in names]
                wrong += [
                    (path.name, name)
                    for name, one in zip(names, of, strict=True)
                    if not any(one is each for each in known)
                ]
    assert wrong == []


def test_cited_sections_exist() -> None:
    cited = {}
    for folder in ("src", "packages", "tests", "docs", "benchmarks", "tools"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            found = re.findall(r"section ([0-9](?:\.[0-9])*)", path.read_text(encoding="utf-8"))
            cited[str(path.relative_to(ROOT))] = set(found)
    assert any(cited.values())
    assert {path: wrong for path, sections in cited.items() if (wrong := sections - SECTIONS)} == {}
