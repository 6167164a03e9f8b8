"""Hooks of the documentation's build (``hooks`` of mkdocs.yml).

They write the references of the command line and of the metrics from the program, and point links to files beside
``docs/`` at the repository.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from hived.cli.app import VERBS

ROOT = Path(__file__).parents[1]
#: the places of what is written from the program
COMMAND_LINE = "<!-- the reference of the command line -->"
METRICS = "<!-- the metrics for Prometheus -->"
#: a Markdown link or image with a relative target
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """The text of a page, as it is built."""
    for place, written in ((COMMAND_LINE, command_line), (METRICS, metrics)):
        if place in markdown:
            markdown = markdown.replace(place, written())
    return "".join(_with_links_to_repository(markdown, page.file.src_uri))


def command_line() -> str:
    """The reference of all verbs, by the panels of ``hived --help``, in Markdown."""
    lines = []
    shown = [verb for verb in VERBS if not verb.hidden]
    for panel in dict.fromkeys(verb.panel for verb in shown if not verb.verbs):
        lines += ["", f"## {panel}"]
        for verb in shown:
            if verb.panel == panel:
                lines += _verb(verb.loaded(), f"hived {verb.name}")
    for noun in (verb for verb in shown if verb.verbs):
        lines += ["", f"## {noun.line}"]
        for verb in noun.verbs:
            lines += _verb(verb.loaded(), f"hived {noun.name} {verb.name}")
    return "\n".join(lines) + "\n"


def _verb(command: Any, name: str) -> Iterator[str]:
    """A verb; or a group of verbs, each of them."""
    if hasattr(command, "commands"):
        for sub in command.commands.values():
            yield from _verb(sub, f"{name} {sub.name}")
        return
    context = command.make_context(name, [], resilient_parsing=True)
    yield from ("", f"### {name}", "")
    help_, examples = (*re.split(r"\x08\s*Examples?:", command.help, maxsplit=1), "")[:2]
    for paragraph in re.split(r"\n\s*\n", help_.strip()):
        text = " ".join(paragraph.split())
        if text.startswith("Example: "):  # a single one, without a heading of its own
            examples += "\n" + text.removeprefix("Example: ")
        else:
            yield from (_prose(text), "")
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield from ("```text", " ".join(usage.split()), "```", "")
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        record = None if getattr(parameter, "hidden", False) else parameter.get_help_record(context)
        if record is not None:
            panels.setdefault(parameter.rich_help_panel or "", []).append(record)
    asks = panels.pop("Where the engine is", None)
    for panel, records in panels.items():
        yield from (f"| {panel.lower() or 'argument or option'} | |", "|---|---|")
        yield from (f"| {_code(names)} | {_prose(text)} |" for names, text in records)
        yield ""
    if asks:
        yield from ("And [where the engine is](command-line.md#where-the-engine-is).", "")
    if examples.strip():
        yield from ("```console", *(line.strip() for line in examples.strip().splitlines()), "```", "")


def metrics() -> str:
    """What ``/metrics`` exports, in Markdown."""
    from hived.engines.kubernetes.counters import Counts
    from hived.errors import UnavailableError
    from hived.server.kubernetes.metrics import KubernetesMetrics
    from hived.server.local_metrics import LocalMetrics

    def scheduler() -> NoReturn:
        raise UnavailableError("it does not decide")

    idle: Any = SimpleNamespace(gang_scheduler=None, leader=False, counts=Counts())
    state = SimpleNamespace(ready=False, problem="")
    service: Any = SimpleNamespace(scheduler=scheduler, engine=lambda: state, spec=lambda: state)
    exported = KubernetesMetrics(idle, service)
    exported.observe("filter", "ok", 0.0)  # its samples have the labels
    of_cluster = {family.name: family for family in exported.registry.collect()}
    of_machine = {family.name: family for family in LocalMetrics(service).registry.collect()}
    lines = ["| name | type | labels | on | what |", "|---|---|---|---|---|"]
    for family in (of_cluster | of_machine).values():
        both = family.name in of_cluster and family.name in of_machine
        on = "both" if both else "Kubernetes" if family.name in of_cluster else "one machine"
        name = family.name + ("_total" if family.type == "counter" else "")
        names = getattr(family, "_labelnames", None) or [
            label for label in dict.fromkeys(chain(*(sample.labels for sample in family.samples))) if label != "le"
        ]
        labels = ", ".join(_code(label) for label in names)
        lines.append(f"| {_code(name)} | {family.type} | {labels} | {on} | {_prose(family.documentation)} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _prose(text: str) -> str:
    """Text of the program in Markdown: nothing in it is markup, but for the names of options and of pages."""
    text = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
    text = re.sub(r"docs/([a-z]+/[a-z-]+\.md)", r"[docs/\1](../\1)", text)
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", text)


def _with_links_to_repository(markdown: str, page: str) -> Iterator[str]:
    """The text with every link out of ``docs/`` to the repository; without one, the words of the link."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    repository = urls.get("Repository") or urls.get("Homepage")

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[3]))
        if path.startswith("docs/"):
            return link[0]
        if not (ROOT / path.partition("#")[0]).exists():
            return link[0]  # the build reports it
        return f"[{link[2]}]({repository}/blob/main/{path})" if repository else link[2]

    fenced = False
    for line in markdown.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        yield line if fenced or line.startswith("    ") else _LINK.sub(outside, line)
