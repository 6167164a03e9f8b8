"""Address ranges on their own."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.spec.ranges import RangeError, expand, has_range

PLAIN = st.text(st.characters(exclude_characters="[]", exclude_categories=["Cs"]), max_size=8)
BOUNDS = st.tuples(st.integers(0, 10**17), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("plain", ["plain"]),
        ("10.0.1.[0-2]", ["10.0.1.0", "10.0.1.1", "10.0.1.2"]),
        ("n[3]", ["n3"]),
        ("n[0-1,5, 7-8]x", ["n0x", "n1x", "n5x", "n7x", "n8x"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[09-101,007]", [f"n{n:02}" for n in range(9, 102)] + ["n007"]),
        ("n[00]", ["n00"]),
        ("n[0-10]", [f"n{n}" for n in range(11)]),
        ("r[0-1]-n[1-2]", ["r0-n1", "r0-n2", "r1-n1", "r1-n2"]),
        ("[0-1][0-1]", ["00", "01", "10", "11"]),
    ],
)
def test_a_range_expands_to(address: str, expected: list[str]) -> None:
    assert expand(address) == expected


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("n[5-3]", r"5 is above 3; write \[3-5\]"),
        ("n[1-]", "`1-` is not a whole number"),
        ("n[-1-3]", "`-1-3` is not a whole number"),
        ("n[1,,2]", "`` is not a whole number"),
        ("n[x]", "`x` is not a whole number"),
        ("n[١-٣]", "is not a whole number"),
        ("n[]", "`` is not a whole number"),
        ("n[0-3", "a bracket without its pair"),
        ("n0-3]", "a bracket without its pair"),
        ("n[[0-3]]", "a bracket without its pair"),
        ("n[1-015]", r"same number of digits, \[001-015\]"),
        ("n[0-2000000]", "2,000,001 cells or more"),
        ("n[0-1999][0-1999]", "4,000,000 cells or more"),
        ("n[0-1000000,0-1000000]", "2,000,002 cells or more"),
        (f"n[{'9' * 19}]", "more than 18 digits"),
    ],
)
def test_a_bad_range_says_why(address: str, message: str) -> None:
    with pytest.raises(RangeError, match=message):
        expand(address)


@pytest.mark.slow
def test_the_largest_range_expands() -> None:
    assert len(expand("n[1-2000000]")) == 2_000_000


@given(PLAIN)
def test_plain_addresses_stay(address: str) -> None:
    assert not has_range(address)
    assert expand(address) == [address]


@given(PLAIN, st.lists(st.tuples(BOUNDS, PLAIN), min_size=1, max_size=3))
def test_combinations_in_reading_order(start: str, brackets: list[tuple[tuple[int, int], str]]) -> None:
    address = start + "".join(f"[{low}-{high}]{after}" for (low, high), after in brackets)
    combinations = itertools.product(*(range(low, high + 1) for (low, high), _ in brackets))
    assert has_range(address)
    assert expand(address) == [
        start + "".join(f"{number}{after}" for number, (_, after) in zip(numbers, brackets, strict=True))
        for numbers in combinations
    ]


@given(st.integers(0, 9999), st.integers(0, 200), st.integers(2, 8))
def test_zero_padding_keeps_its_width(low: int, more: int, width: int) -> None:
    first, last = str(low).zfill(width), str(low + more).zfill(width)
    numbers = [text.removeprefix("n") for text in expand(f"n[{first}-{last}]")]
    assert list(map(int, numbers)) == list(range(low, low + more + 1))
    if first[0] == "0" and len(last) == width:
        assert {len(number) for number in numbers} == {width}
