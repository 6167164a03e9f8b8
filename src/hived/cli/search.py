"""``hived train search``: configurations of a training script as jobs, the most promising first (Gandiva, 6.2)."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Annotated

import typer

from hived.errors import ConflictError, HivedError, InputError, Location, UnavailableError
from hived.policies.gandiva.search import Goal, Search
from hived.server.schema import Job, LogPage, Vc

from .client import Engine, LostAnswerError, Retrying, path_of
from .console import note
from .escaping import clean
from .logs import attempt_of, log_pages
from .options import Asking, GpusOption, VcOption, asks_engine, duration_option, own_vc, resources
from .submit import environment, folder

_LOOK_S = 1.0  #: between two looks at the jobs
_NONE_FOUND, _HUNG_UP = 1, 129  #: exit codes; as of SIGTERM, what was begun is ended then
_EXAMPLE = '{"lr": 0.1, "width": 64}'


@asks_engine
def search(
    ask: Asking,
    configurations: Annotated[
        Path,
        typer.Option("--configurations", "-c", metavar="FILE", help="CSV with a header, or an object of JSON a line."),
    ],
    metric: Annotated[
        str,
        typer.Option("--metric", metavar="REGEX", help="Finds the accuracy in a line of output, as its only group."),
    ],
    target: Annotated[float, typer.Option("--target", metavar="X", help="The accuracy that ends the search.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="After --; {name} is a configuration's.")],
    vc: VcOption = None,
    gpus: GpusOption = 1,
    top: Annotated[int, typer.Option(metavar="N", help="So many of the best have GPUs for themselves.", min=0)] = 2,
    first: Annotated[int, typer.Option(metavar="N", help="Configurations to begin with.", min=1)] = 2,
    more: Annotated[int, typer.Option(metavar="N", help="Further ones every --every.", min=1)] = 2,
    every: Annotated[
        float | None, duration_option(help="Time until further configurations begin.", show_default="1m")
    ] = None,
    least: Annotated[
        float | None,
        typer.Option(metavar="X", help="End those below, from the --after-th evaluation on.", show_default="none"),
    ] = None,
    after: Annotated[int, typer.Option(metavar="N", help="See --least.", min=1)] = 3,
    lower: Annotated[bool, typer.Option("--lower", help="Lower is better: of a loss.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of its jobs; their ids are added.")] = "search",
) -> None:
    """Try configurations of a training script, a few at a time, until one is good enough.

    Each is a job. Whenever it prints its accuracy it is judged: the best have the highest priority, new ones come next,
    the others take turns on what is left (VCs of the policy gandiva; elsewhere all are equal). The first that reaches
    the target ends the search and all others; so does Ctrl-C.

    Exit code 0: found; 1: all have ended, and none was good enough.

    \bExamples:
      hived train search --vc vision -c lr.csv --metric 'acc: ([0-9.]+)' --target 0.84 -- ./t.py {lr}
      hived train search --vc nlp -c c.jsonl --metric 'loss (.+)' --lower --target 0.2 -- ./t.sh {lr}
    """
    pattern = _pattern(metric)
    chosen = read_configurations(configurations)
    commands = [filled(command, one, configurations) for one in chosen]
    sign = -1.0 if lower else 1.0
    goal = Goal(sign * target, -inf if least is None else sign * least, top, first, more)
    submission = resources(gpus, 1, 0, False) | {"cwd": folder(None), "name": name}
    submission["environment"] = environment(os.environ, [], False, str(submission["cwd"]))
    with ask.connect() as there:
        submission["vc"] = own_vc(there, vc)
        running = _Running(there, Search(len(chosen), goal), submission, commands, chosen)
        judge = _Judge(pattern, sign, after)
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(_HUNG_UP))
        try:
            _run(running, judge, 60.0 if every is None else every)
        finally:
            running.end(list(running.jobs))
    best = running.best(sign)
    if not ask.printed({"best": best, "tried": running.search.submitted}):
        if best is None:
            note("none has printed an accuracy: --metric finds it in what the jobs print")
        else:
            typer.echo(f"best: {best['accuracy']:g} by {clean(str(best['job']))} ({best['words']})")
    raise typer.Exit(0 if running.search.found is not None else _NONE_FOUND)


def _run(running: _Running, judge: _Judge, every: float) -> None:
    search, due = running.search, time.monotonic()
    while not search.is_over:
        if time.monotonic() >= due:
            due += every
            running.submit(search.submit())
        for one in [*running.jobs]:
            if one in running.jobs:  # else ended by the evaluation of another
                ended = running.look(one)
                _evaluate(running, judge, one)
                if ended:  # what it has printed is all there
                    running.leave(one)
        running.prioritize()
        if not search.is_over:
            time.sleep(_LOOK_S)


def _evaluate(running: _Running, judge: _Judge, one: int) -> None:
    for value in judge.accuracies(running, one):
        note(f"{clean(running.jobs[one].name)} ({_words(running.chosen[one])}): {judge.sign * value:g}")
        running.end(running.search.evaluate(one, value, judge.estimate(one, value, running.search.goal.least)))
        if one not in running.jobs:
            return


class _Running:
    """The jobs of a search that run or wait."""

    def __init__(
        self,
        there: Engine,
        search: Search,
        submission: dict[str, object],
        commands: Sequence[list[str]],
        chosen: Sequence[dict[str, str]],
    ) -> None:
        self.there, self.search, self.chosen = there, search, chosen
        rules = there.parsed(Vc, there.get(path_of("vcs", str(submission["vc"])))).rules
        self.takes_turns = rules is not None and rules.policy.partition(":")[0] == "gandiva"
        self.jobs: dict[int, Job] = {}
        self.names: dict[int, str] = {}
        self._submission, self._commands = submission, commands
        self._unsaid: dict[int, int] = {}
        #: over restarts of the engine
        self.retry = Retrying()

    def submit(self, new: Sequence[int]) -> None:
        """Submit configurations."""
        for one in new:
            answer = self.retry(partial(self._post, self._submission | {"command": self._commands[one]}))
            self.jobs[one] = job = self.there.parsed(Job, answer)
            self.names[one] = job.name
            note(f"{clean(job.name)} ({_words(self.chosen[one])}) is submitted")

    def end(self, over: Sequence[int]) -> None:
        """Cancel the jobs of configurations."""
        for one in over:
            job = self.jobs.pop(one, None)
            if job is not None:
                try:
                    self.retry(partial(self.there.post, path_of("jobs", job.id, "/cancel")))
                except ConflictError:  # it has ended by itself
                    continue
                except HivedError as error:
                    note(f"{clean(job.name)} is not cancelled: {clean(str(error))}")

    def _post(self, submission: dict[str, object]) -> object:
        try:
            return self.there.post("/v1/jobs", submission)
        except LostAnswerError as error:  # again, it might be there twice
            raise UnavailableError(str(error)) from None

    def look(self, one: int) -> bool:
        """Whether a configuration has ended by now."""
        path = path_of("jobs", self.jobs[one].id)
        self.jobs[one] = job = self.there.parsed(Job, self.retry(partial(self.there.get, path)))
        return job.state.ended

    def output(self, job: Job, attempt: int, offset: int) -> list[LogPage]:
        """What a job has printed from ``offset`` on."""
        return self.retry(lambda: list(log_pages(self.there, job, 0, attempt, offset)))

    def leave(self, one: int) -> None:
        """A configuration has ended by itself; nothing if the search has ended it."""
        job = self.jobs.pop(one, None)
        if job is not None:
            note(f"{clean(job.name)} has {'ended' if job.state == 'succeeded' else job.state.value}")
            self.search.leave(one)

    def prioritize(self) -> None:
        """Tell priorities, where jobs take turns by them; one that does not do so yet is told again.

        Elsewhere a priority would stop running jobs of the virtual cluster.
        """
        if self.takes_turns:
            self._unsaid |= self.search.priorities()
        for one, priority in list(self._unsaid.items()):
            job = self.jobs.get(one)
            try:
                if job is not None:
                    path = path_of("jobs", job.id, "/priority")
                    self.retry(partial(self.there.post, path, {"priority": priority}))
            except ConflictError:
                continue
            del self._unsaid[one]

    def best(self, sign: float) -> dict[str, object] | None:
        """The best configuration so far, as data."""
        if self.search.best is None:
            return None
        accuracy, one = self.search.best
        words = _words(self.chosen[one])
        return {"job": self.names[one], "accuracy": sign * accuracy, "configuration": self.chosen[one], "words": words}


class _Judge:
    """Reads accuracies in what jobs print."""

    def __init__(self, pattern: re.Pattern[str], sign: float, after: int) -> None:
        self.sign = sign
        self._pattern, self._after = pattern, after
        #: by configuration: its attempt, how far its output was read, and a line that has not ended
        self._read: dict[int, tuple[int, int, str]] = {}
        self._times: dict[int, int] = {}

    def accuracies(self, running: _Running, one: int) -> list[float]:
        """What a job has printed since the last call."""
        job = running.jobs[one]
        attempt = attempt_of(job)
        before, offset, line = self._read.get(one, (0, 0, ""))
        if not attempt:
            return []
        if attempt != before:
            offset, line = 0, ""
        for page in running.output(job, attempt, offset):
            offset, line = page.next, line + page.text
        *lines, line = line.split("\n")
        self._read[one] = attempt, offset, line
        found = [match.group(1) for text in lines if (match := self._pattern.search(text))]
        values = [self.sign * float(text) for text in found if _is_number(text)]
        self._times[one] = self._times.get(one, 0) + len(values)
        return values

    def estimate(self, one: int, value: float, least: float) -> float:
        """What it is expected to reach: what it has. Of one that has just begun, at least what is asked for."""
        return value if self._times[one] >= self._after else max(value, least)


def read_configurations(file: Path) -> list[dict[str, str]]:
    """The configurations of a file, by name. Raises :class:`~hived.errors.InputError` with file and line."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--configurations {file}: it cannot be read ({error})") from None
    found: list[dict[str, str]] = []
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    one = json.loads(line)
                except ValueError:
                    one = None
                if not isinstance(one, dict):
                    raise InputError(f"{Location(str(file), number)}: no object of JSON; give one a line: {_EXAMPLE}")
                values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in one.items()}
                found.append(values)
    else:
        for row in csv.DictReader(io.StringIO(text), skipinitialspace=True):
            if None in row or None in row.values():
                where = Location(str(file), len(found) + 2)
                raise InputError(f"{where}: other columns than in the header; give each row a value for each name")
            found.append(dict(row))
    if not found:
        raise InputError(f"--configurations {file}: there is none in it; give a header and rows, or objects of JSON")
    return found


def filled(command: Sequence[str], one: dict[str, str], file: Path) -> list[str]:
    """The command with the values of a configuration. Raises :class:`~hived.errors.InputError` for a name unused."""
    for name in one:
        if not any(f"{{{name}}}" in word for word in command):
            raise InputError(f"{file} has {name!r}, and the command has no {{{name}}} to put it in")
    words = list(command)
    for name, value in one.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def _pattern(metric: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(metric)
    except re.error as error:
        raise InputError(f"--metric {metric!r}: no regular expression ({error})") from None
    if pattern.groups != 1:
        raise InputError(f"--metric {metric!r}: it needs one group, around the number, as in 'accuracy: ([0-9.]+)'")
    return pattern


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _words(one: dict[str, str]) -> str:
    return clean(", ".join(f"{name}={value}" for name, value in one.items()))
