"""The pages without the generator of the site: links, anchors, images, navigation; and what is generated into them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import yaml
from tools import documentation

from hived.cli.app import VERBS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: pages for readers: those of the site, and those that a repository has at its top
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
_FENCED = re.compile(r"^(```).*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site's generator make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def navigation(entry: object) -> Iterator[str]:
    """The pages of ``nav`` in mkdocs.yml."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from navigation(inner)
    elif isinstance(entry, list):
        for inner in entry:
            yield from navigation(inner)


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in _LINK.findall(prose(page)):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            found = (page.parent / path).resolve() if path else page
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append((page.name, target))
    assert broken == []


def test_files_that_pages_name_exist() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"`((?:benchmarks|deploy|docs|packages|src|tests|tools)/[\w./-]*[\w/])`", text)
        modules = re.findall(r"python3? -m ((?:benchmarks|tests|tools)\b[\w.]*)", text)
        paths += [name.replace(".", "/") for name in modules]
        missing += [(page.name, path) for path in paths if "NAME" not in path and not any(ROOT.glob(path + "*"))]
        tests = re.findall(r"`(?:\w+/)*(test_\w+\.py)`", text)
        missing += [(page.name, name) for name in tests if not any((ROOT / "tests").rglob(name))]
    assert missing == []


def test_every_page_is_in_the_navigation() -> None:
    pages = list(navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_figure_is_shown() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in _LINK.findall(prose(page))
        if target.endswith(".png")
    }
    assert set((DOCS / "figures").iterdir()) == shown


def test_figures_of_commits_are_in_the_history() -> None:
    """A commit beside a figure of speed has it in the history of benchmarks, to the digits that are shown."""
    history: dict[str, list[float]] = {}
    for line in (ROOT / "benchmarks" / "history.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        history.setdefault(record["commit"], []).extend(
            figure["value"] for figure in record["figures"].values() if figure["unit"] == "jobs/s"
        )
    rows = [
        line
        for line in (DOCS / "reference" / "measured.md").read_text(encoding="utf-8").splitlines()
        if "jobs/s" in line
    ]
    cited = [row for row in rows if re.search(r"`[0-9a-f]{7}`", row)]
    assert len(cited) >= 3
    for row in cited:
        if not row.startswith("|"):
            continue
        (commit,) = re.findall(r"`([0-9a-f]{7})`", row)
        shown = [float(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]*", row.split("|")[2])]
        missing = [one for one in shown if not any(abs(one - value) <= 50 + value / 1000 for value in history[commit])]
        assert not missing, row


def test_decisions_are_records() -> None:
    """One number each, without a gap, and the same sections."""
    records = sorted((DOCS / "decisions").glob("0*.md"))
    for number, record in enumerate(records, 1):
        text = record.read_text(encoding="utf-8")
        assert record.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number:04} ")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Source"]
        assert f"({record.name})" in (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")


def test_modules_that_decisions_name_exist() -> None:
    named = re.compile(
        r"`((?:agent|cells|cli|cluster|engines|events|exchange|scheduling|server|simulator|spec)/[\w/.]*)`"
    )
    for record in (DOCS / "decisions").glob("0*.md"):
        for path in named.findall(record.read_text(encoding="utf-8")):
            assert (ROOT / "src" / "hived" / path).exists(), (record.name, path)


def test_generated_reference_of_verbs() -> None:
    text = documentation.command_line()
    for verb in VERBS:
        for below in verb.verbs:
            assert f"### hived {verb.name} {below.name}" in text
        if not verb.verbs:
            assert (f"### hived {verb.name}" in text) is not verb.hidden
    assert "`--opportunistic`" in text
    assert "\b" not in text
    assert text.count("```") % 2 == 0


def test_generated_reference_of_metrics() -> None:
    text = documentation.metrics()
    assert "| `hived_vc_gpus` | gauge | `vc`, `kind` | both |" in text
    assert "| `hived_requests_total` | counter | `verb`, `result` | Kubernetes |" in text
    assert "| `hived_request_duration_seconds` | histogram | `verb` | Kubernetes |" in text
    assert "| `hived_suspensions_total` | counter | `cause` | one machine |" in text
    assert "| `hived_suspension_duration_seconds` | histogram |  | one machine |" in text


def test_link_out_of_the_pages() -> None:
    """It leads to the repository; one within the pages, and one to nowhere, stay for the generator to check."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="howto/index.md"))
    text = "[how](../../CONTRIBUTING.md) [near](jobs.md) [lost](../../no-such-file)\n"
    built = documentation.on_page_markdown(text, page)
    assert "../../CONTRIBUTING.md" not in built
    assert "[near](jobs.md) [lost](../../no-such-file)" in built
