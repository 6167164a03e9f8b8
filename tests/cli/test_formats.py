"""How times, places and other people's text read."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hived.cli.client import server_events
from hived.cli.escaping import clean, clean_lines
from hived.cli.formats import age, clock, duration, json_text, read_duration, read_length, time_of, timestamp
from hived.cli.yaml_form import yaml_text
from hived.errors import InputError
from hived.words import ranges


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("0.2s", 0.2),
        (" 5M ", 300),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert read_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5:00", 300),
        ("90:30", 5430),
        ("0-1", 3600),
        ("1-12", 129_600),
        ("0-0:30", 1800),
        ("2:30:00", 9000),
        ("90s", 90),
    ],
)
def test_length_is_read_in_forms_of_slurms_limits(text: str, seconds: float) -> None:
    assert read_length(text) == seconds


@pytest.mark.parametrize("text", ["5:60", "5:0", "5", "1-", "2026-11-01", "unlimited"])
def test_no_length(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|has no unit"):
        read_length(text)


def test_moments_are_no_lengths() -> None:
    for text in ("5:00", "2026-11"):
        with pytest.raises(InputError, match="is no time"):
            time_of("--since", text, 1e9)


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "1m1h", "h", "1m30", "1e9", "nan", "٣", "9" * 400])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        read_duration(text)


@pytest.mark.parametrize("text", ["9999999999s", "1d99999999999999999999h"])
def test_long_duration(text: str) -> None:
    with pytest.raises(ValueError, match=f"{text} is too long: a number has nine digits at most"):
        read_duration(text)


@pytest.mark.parametrize("text", ["5", "90", "1.5", " 30 "])
def test_number_without_a_unit(text: str) -> None:
    # schedulers of clusters take it for minutes, timeout(1) for seconds: five seconds ended a job of five minutes
    number = text.strip()
    with pytest.raises(ValueError, match=f"'{number}' has no unit; write {number}s, {number}m, {number}h or {number}d"):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [(-3, "0s", "0s"), (0.9, "0s", "0s"), (59, "59s", "59s"), (60, "1m", "1m"), (3599, "59m", "59m59s"),
     (3600, "1h", "1h"), (5400, "1h", "1h30m"), (86_400 * 12 + 7200, "12d", "12d2h")],
)  # fmt: skip
def test_age_and_duration(seconds: float, short: str, long: str) -> None:
    assert (age(seconds), duration(seconds)) == (short, long)


@given(st.integers(0, 10**8))
def test_written_duration_is_read(seconds: int) -> None:
    read = read_duration(duration(seconds))
    left_out = 3600 if seconds >= 86_400 else 60 if seconds >= 3600 else 1  # what is below the second unit
    assert 0 <= seconds - read < left_out


def test_impossible_times() -> None:
    for at in (float("nan"), float("inf"), 1e300, -1e300):
        assert clock(at) == timestamp(at) == "?"


@given(st.sets(st.integers(0, 40)))
def test_ranges_of_gpus(devices: set[int]) -> None:
    said = set()
    for part in filter(None, ranges(sorted(devices)).split(",")):
        first, _, last = part.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == devices


@given(st.text(st.characters()))
def test_clean_text(text: str) -> None:
    line = clean(text)
    assert "\n" not in line
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 or 0xD800 <= ord(sign) < 0xE000 for sign in line)
    assert clean(line) == line
    assert clean_lines(text).count("\n") == text.count("\n")


@given(
    st.recursive(
        st.none() | st.text(st.characters()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_means_the_same(value: object) -> None:
    for indent in (None, 2):
        text = json_text(value, indent)
        assert json.loads(text) == value
        assert clean_lines(text) == text
    assert "\n" not in json_text(value, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters()) | st.text("a \n\t:#-|'\"\\\x85\u2028é\u202e\x1b"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )
)  # fmt: skip
def test_yaml_means_the_same(value: object) -> None:
    text = yaml_text(value)
    assert yaml.safe_load(text) == value
    assert clean_lines(text) == text


def test_yaml_has_no_anchors() -> None:
    both = ["on", "007"]
    assert yaml_text({"b": both, "a": both}) == "b:\n- 'on'\n- '007'\na:\n- 'on'\n- '007'\n"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"))), st.integers(1, 7), st.booleans())
def test_events_of_any_pieces(texts: list[str], size: int, carriage: bool) -> None:
    end = "\r\n" if carriage else "\n"
    stream = "".join(f": ping{end}{end}event: log{end}id: 1{end}data: {text}{end}{end}" for text in texts).encode()
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert list(server_events(chunks)) == [("log", text) for text in texts]
    cut = list(server_events([stream[:-1]])) if texts else []
    assert len(cut) == max(0, len(texts) - 1), "one that was cut off is none"
