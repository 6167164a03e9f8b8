"""One table of a job's life: complete, as documented, and the source of whatever shows a state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from hived.cli.formats import STATE_STYLES, status_text
from hived.engine.job import Event
from hived.engine.sentences import event_text
from hived.engine.states import JOB_TABLE, SUBMITTED, Effect, JobEvent, JobState, state_after, transition
from hived.errors import InvariantError
from hived.server import pictures, schema
from hived.server.histories import stays

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def tables(heading: str) -> list[list[list[str]]]:
    """The tables under a heading of the page, as rows of cells."""
    found: list[list[list[str]]] = [[]]
    for line in PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].splitlines():
        if line.startswith("| "):
            found[-1].append([cell.strip(" *") for cell in line.strip("|").split("|")])
        elif not line.startswith("|") and found[-1]:
            found.append([])
    return found


def test_page_has_the_table() -> None:
    transitions, effects, states, events, *_ = tables("Jobs")
    assert transitions[0][1:] == [event.value for event in JobEvent]
    assert [row[0] for row in transitions[1:]] == [state.value for state in JobState]
    shown = {
        (row[0], event): cell
        for row in transitions[1:]
        for event, cell in zip(transitions[0][1:], row[1:], strict=True)
        if cell != "-"
    }
    assert shown == {(state.value, event.value): after.value for (state, event), (after, _) in JOB_TABLE.items()}
    assert dict(effects[1:]) == {event.value: effect.value for (_, event), (_, effect) in JOB_TABLE.items()}
    assert [row[0] for row in states[1:]] == [state.value for state in JobState]
    assert [name for row in events[1:] for name in row[0].split(", ")] == [event.value for event in JobEvent]


def test_every_state_is_reached_and_only_final_ones_are_left_by_nothing() -> None:
    assert {after for after, _ in JOB_TABLE.values()} == set(JobState)
    assert {state for state, _ in JOB_TABLE} == {state for state in JobState if not state.ended}
    assert {event for _, event in JOB_TABLE} == set(JobEvent)
    gone = {state for state, event in JOB_TABLE if event is JobEvent.ENDED}
    assert gone == {state for state in JobState if not state.ended}, "the last pod of a gang may go at any moment"
    with pytest.raises(InvariantError, match="a job that is failed cannot be started"):
        transition(JobState.FAILED, JobEvent.STARTED)


@pytest.mark.parametrize("event", JobEvent)
def test_effect_is_that_of_the_states(event: JobEvent) -> None:
    """An event does the same to the GPUs of a job in whatever state, and what the states before and after say."""
    found = [(before, *after) for (before, of), after in JOB_TABLE.items() if of is event]
    assert len({effect for _, _, effect in found}) == 1
    for before, after, effect in found:
        has = {state: state.holds or state is JobState.RESERVED for state in (before, after)}
        assert has[after] == {Effect.TAKE: True, Effect.REBIND: True, Effect.RELEASE: False}.get(effect, has[before])


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_shown(state: JobState) -> None:
    """Whatever shows a state knows every one of them, and has its own words for it."""
    assert state in STATE_STYLES
    assert state.waits + state.holds + state.ended == 1
    assert state.waits or not state.aside
    job = schema.Job.model_construct(name="train", state=state, why=[], tasks=[], process=None, kind="guaranteed")
    said = {other: status_text(job.model_copy(update={"state": other})) for other in JobState}
    alike = [other for other, text in said.items() if text == said[state]]
    assert alike == [state] or set(alike) == {JobState.QUEUED, JobState.BACKOFF}


def test_every_event_has_a_sentence() -> None:
    """And is not told by its bare name."""
    placement = {"pods": [["n", [0, 1]]], "levels": [1, 1]}
    one_of_each = {
        "victims": ["other"],
        "placement": placement,
        "attempt": 1,
        "rank": 0,
        "code": 1,
        "at": 60.0,
        "memory": 0,
        "share": 0.5,
        "guest": True,
        "beside": ["other"],
        "priority": 3,
        "by_hand": True,
        "changes": {"gpus": [4, 2]},
        "cause": "preempted",
    }
    said = {
        event: event_text(Event(1, 0.0, event.value, data={"why": "so", **one_of_each}), "train") for event in JobEvent
    }
    assert {event for event, text in said.items() if "train" not in text} == set()
    assert len(set(said.values())) == len(JobEvent)


def test_dashboard_knows_every_state_and_stay() -> None:
    """Its words and colours, by the names that they are sent under."""
    static = Path(pictures.__file__).parent / "static"
    style = "".join(file.read_text(encoding="utf-8") for file in (static / "css").glob("*.css"))
    kinds = set(get_args(pictures.Stay.model_fields["kind"].annotation))
    assert set(re.findall(r"\.j-([a-z]+)", style)) == kinds
    script = (static / "js" / "format.js").read_text(encoding="utf-8")
    words = script.partition("const STAYS = {")[2].partition("}")[0]
    assert set(re.findall(r"(\w+): \"", words)) == kinds
    plain = {JobState.CANCELLED, JobState.ENDED}  # neither good nor bad
    assert set(re.findall(r"\.state-([a-z]+)", style)) == {state.value for state in JobState if state not in plain}


def test_history_without_its_older_part_has_the_same_end() -> None:
    for (before, event), (after, _) in JOB_TABLE.items():
        assert state_after(before, event.value) is after
        assert state_after(None, event.value) is not None
    assert state_after(None, SUBMITTED) is JobState.QUEUED
    assert state_after(JobState.RUNNING, "bound") is JobState.RUNNING


@pytest.mark.parametrize("state", [state for state in JobState if not state.ended])
def test_history_of_a_job_shows_its_state(state: JobState) -> None:
    """The dashboard's stay of a job is of the state that its last event led to."""
    into = next(event for (_, event), (after, _) in JOB_TABLE.items() if after is state)
    placement = {"pods": [["n", [0]]], "levels": [1]} if state.holds or state is JobState.RESERVED else None
    first = Event(1, 0.0, SUBMITTED)
    last = Event(2, 1.0, into.value, data={} if placement is None else {"placement": placement})
    kind = {"queued": "waiting", "running": "guaranteed"}.get(state.value, state.value)
    assert stays([first, last])[-1].kind == kind
