"""The event log, line by line: what is written is read again, equal events are equal bytes, and wrong lines say why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings

from hived.cluster.decisions import Bind, Placement, PodPlacement, Record, Wait
from hived.cluster.explain.reasons import BadHardware, VcExhausted
from hived.cluster.requests import Member, Request
from hived.errors import InputError, RequestError
from hived.events.codec import from_line, from_plain, to_line, to_plain
from hived.events.journal import (
    Cancelled,
    Committed,
    DeviceHealth,
    Event,
    Opened,
    Recovered,
    Refused,
    Released,
    Scheduled,
    Sparing,
)
from hived.spec.compiled import AccessSpec

from ..strategies import NODE, cluster_of, racks, vc
from .values import values

HARDWARE = racks(1, 2)
SPEC = cluster_of(HARDWARE, vc("a", (HARDWARE, NODE, 1)), vc("b", pinned=[(HARDWARE, NODE, 1)]))
REQUEST = Request("job-7", "a", members=(Member(2, 8),))
PLACEMENT = Placement("RACK", (PodPlacement("n1", (0, 1)), PodPlacement("n2", (3,))), (4, 4))


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_event_is_read_as_it_was_written(kind: type) -> None:
    @settings(max_examples=15)
    @given(values(kind))
    def there_and_back(event: Any) -> None:
        line = to_line(event)
        assert line.isascii()
        assert line.isprintable()
        again = from_line(line)
        assert again == event
        assert repr(again) == repr(event)  # types too: 1, 1.0 and True are equal
        assert to_line(again) == line

    there_and_back()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Cancelled("jöb"), '{"is":"Cancelled","group":"j\\u00f6b"}'),
        (DeviceHealth("n1", 3, healthy=True), '{"is":"DeviceHealth","node":"n1","device":3,"healthy":true}'),
        (
            Scheduled(REQUEST, None, 0.1, Bind("job-7", PLACEMENT, within="RACK")),
            '{"is":"Scheduled","request":{"group":"job-7","vc":"a","members":[{"pods":2,"leaf_cells":8}]},'
            '"suggested_nodes":null,"now":0.1,"decision":{"is":"Bind","group":"job-7","placement":{"chain":"RACK",'
            '"pods":[["n1",[0,1]],["n2",[3]]],"reserved_levels":[4,4]},"within":"RACK"}}',
        ),
        (
            Committed(Wait("job-7", (BadHardware(2, ("n1",), 0),))),
            '{"is":"Committed","decision":{"is":"Wait","group":"job-7","reasons":'
            '[{"is":"BadHardware","leaf_cells":2,"nodes":["n1"],"more":0}]}}',
        ),
        (
            Recovered((Record("job-7", REQUEST, PLACEMENT),)),
            '{"is":"Recovered","records":[["job-7",{"group":"job-7","vc":"a","members":[{"pods":2,"leaf_cells":8}]},'
            '{"chain":"RACK","pods":[["n1",[0,1]],["n2",[3]]],"reserved_levels":[4,4]}]]}',
        ),
        (
            Recovered((Record("job-7", REQUEST, PLACEMENT, 12.5),)),
            '{"is":"Recovered","records":[["job-7",{"group":"job-7","vc":"a","members":[{"pods":2,"leaf_cells":8}]},'
            '{"chain":"RACK","pods":[["n1",[0,1]],["n2",[3]]],"reserved_levels":[4,4]},12.5]]}',
        ),
        (Sparing(spares=True), '{"is":"Sparing","spares":true}'),
        (
            Refused.of(Released("job-7"), RequestError("group", "no such group")),
            '{"is":"Refused","call":"release","arguments":["job-7"],"error":"RequestError: group: no such group"}',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_line_has_this_form_for_good(event: Event, line: str) -> None:
    assert to_line(event) == line
    assert from_line(line) == event


def test_equal_events_are_equal_bytes() -> None:
    waits = Wait("g", (VcExhausted("a", 1, 0, 1, (), 0),))
    assert to_line(Scheduled(REQUEST, None, 1, waits)) == to_line(Scheduled(REQUEST, None, 1.0, waits))
    assert to_line(Scheduled(REQUEST, None, 0.0, waits)) == to_line(Scheduled(REQUEST, None, -0.0, waits))
    one, other = (
        Opened(replace(SPEC, chains=(replace(HARDWARE, device_indices=indices),)))
        for indices in ({0: (1,), 1: (2,)}, {1: (2,), 0: (1,)})
    )
    assert one == other
    assert to_line(one) == to_line(other)


def test_other_json_of_an_event_is_read_too() -> None:
    """Spaces and key order; that they are not as written is for the replay to say."""
    assert from_line('{"group": "g", "is": "Released"}') == Released("g")


class Odd:
    """Has no form in a log."""

    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize(
    "argument",
    [
        Request("g", 7, priority="high", members=(Member(2.0, True), None, [1], {"a": {1}})),  # type: ignore[arg-type]
        ["n2", "n1"],
        Request("g", Odd(), members=(Odd(),)),  # type: ignore[arg-type]
        {Odd: 1},
        1 + 2j,
        float("inf"),
        float("nan"),
    ],
    ids=repr,
)
def test_refused_argument_looks_the_same(argument: object) -> None:
    event = Refused("schedule", (argument, 3), "RequestError: vc: ...")
    again = from_line(to_line(event))
    assert repr(again) == repr(event)
    assert to_line(again) == to_line(event)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not one line of JSON (EOF while parsing"),
        ('{"is":"Released","gro', "if the log was cut short there, drop that line"),
        ('{"is":"Released","group":"a"} {}', "not one line of JSON (trailing characters"),
        ("[" * 100_000, "not one line of JSON"),
        (
            '{"is":"Scheduled","request":{"group":"g","vc":"a"},"suggested_nodes":null,"now":NaN,"decision":{}}',
            "Scheduled: now: expected a finite number, not nan",
        ),
        ("7", "Refused, not 7"),
        ('{"group":"a"}', "expected one of Opened, Scheduled, Committed, Released,"),
        ('{"is":"Suspended","group":"a"}', "Refused, not {'is': 'Suspended',"),  # of an earlier version
        ('{"is":["Released"]}', "Refused, not {'is': ['Released']}"),
        ('{"is":"Released"}', "Released: group: missing key"),
        ('{"is":"Released","group":7}', "Released: group: expected a valid string, not 7"),
        ('{"is":"Released","group":"a","at":1}', "Released: at: unknown key"),
        ('{"is":"NodeHealth","node":"n","healthy":1}', "healthy: expected a valid boolean, not 1"),
        ('{"is":"DeviceHealth","node":"n","device":true,"healthy":true}', "device: expected a valid integer, not True"),
        ('{"is":"Recovered","records":[["g"]]}', "Recovered: records: 0: 1: missing key"),
        (
            '{"is":"Scheduled","request":{"group":"g","vc":"a","members":[{"pods":"2"}]},"suggested_nodes":null,"now":0,'
            '"decision":{}}',
            "Scheduled: request: members: 0: pods: expected a valid integer, not '2'",
        ),
        (
            '{"is":"Committed","decision":{"is":"Start"}}',
            "decision: expected one of Bind, Preempt, Wait, not {'is': 'Start'}",
        ),
        ('{"is":"Refused","call":"c","arguments":[{"is":"What"}],"error":""}', "arguments: expected any value as the"),
        (
            '{"is":"Refused","call":"c","arguments":[{"is":"Request","group":"g","vc":"v","members":7}],"error":""}',
            "arguments: expected any value as the",
        ),
    ],
)
def test_wrong_line_says_what_and_the_way_out(line: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_line(line, 12)
    text = str(caught.value)
    assert text.startswith("event log, line 12: ")
    assert message in text
    assert text.endswith(("drop that line", "give the log as this version of hived wrote it"))
    assert len(text) < 400


@pytest.mark.parametrize(
    "event",
    [
        Released(7),  # type: ignore[arg-type]
        Scheduled(REQUEST, ("n1", 2), 0.0, Wait("g", ())),  # type: ignore[arg-type]
        Scheduled(REQUEST, "n1", 0.0, Wait("g", ())),  # type: ignore[arg-type]
        Scheduled(REQUEST, None, float("nan"), Wait("g", ())),
        Scheduled(REQUEST, None, 2**53 + 1, Wait("g", ())),
        Scheduled(replace(REQUEST, priority="high"), None, 0.0, Wait("g", ())),  # type: ignore[arg-type]
        Scheduled(replace(REQUEST, lazy_preemption=None), None, 0.0, Wait("g", ())),  # type: ignore[arg-type]
        Committed(REQUEST),  # type: ignore[arg-type]
        Opened({"physicalCluster": {}}),  # type: ignore[arg-type]
        Opened(replace(SPEC, chains=(replace(HARDWARE, device_indices=()),))),  # type: ignore[arg-type]
        Recovered((("g", REQUEST),)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_only_what_can_be_read_again_is_written(event: Event) -> None:
    with pytest.raises(InputError, match=r"^cannot be written to the event log: .* expected "):
        to_line(event)


def test_limits_of_members_of_the_version_before() -> None:
    """They said nothing of a group that may read files."""
    plain: Any = to_plain(AccessSpec(("ann",), max_gpus=4))
    before = {name: value for name, value in plain.items() if name != "file_group"}
    assert from_plain(before) == AccessSpec(("ann",), max_gpus=4)
