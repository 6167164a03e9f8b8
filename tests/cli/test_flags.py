"""Flags: one name has one meaning in every verb."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from hived.cli.app import VERBS, Verb


def options(verb: Verb, before: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a verb, or of the verbs of a noun, each with the verb's name."""
    for below in verb.verbs:
        yield from options(below, f"{verb.name} ")
    command = verb.loaded()
    commands = [command] if verb.verbs or not hasattr(command, "commands") else [command, *command.commands.values()]
    for one in commands:
        for option in one.params:
            if option.opts[0].startswith("-"):
                yield before + verb.name, option


ALL = [found for verb in VERBS if not verb.hidden for found in options(verb)]


def test_one_flag_takes_one_kind_of_value() -> None:
    """A path, a number, one of some words; a list by commas is of any."""
    kinds: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for verb, option in ALL:
        if not (option.metavar or "").endswith(",..."):
            kinds[max(option.opts, key=len)][verb] = (
                "path" if "Path" in str(option.type_descriptor.annotation) else "other"
            )
    assert {flag for flag, of in kinds.items() if len(set(of.values())) > 1} == {
        "--from",  # where a job comes from, and when cells do: English has one word
        "--quotas",  # a file everywhere; where the paper's are known, "table1" too
    }


def test_jobs_are_jobs_and_processes_processes() -> None:
    """``--jobs`` is the size of a trace, wherever it is."""
    of = {flag: {verb for verb, option in ALL if flag in option.opts} for flag in ("--jobs", "--days", "--processes")}
    assert of == {
        "--jobs": {"sim run", "sim sweep", "trace generate"},
        "--days": {"sim run", "sim sweep", "trace generate"},
        "--processes": {"sim sweep"},
    }
