"""Text that is no spec at all: broken, hostile or ambiguous YAML, unreadable files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.errors import SpecError
from hived.spec import load_spec, parse_spec

from .helpers import error_in, spec_text


def test_a_key_twice_names_both_lines() -> None:
    text = error_in("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3 #!\n")
    assert text == "key `c` is given twice (first at line 3)"


def test_broken_yaml_names_the_line() -> None:
    assert "not valid YAML" in error_in("physicalCluster:\n  a: b: c #!\n")


def test_a_tab_is_named_as_such() -> None:
    assert "indent with spaces, not with tabs" in error_in("physicalCluster:\n\ta: b #!\n")


def test_the_error_for_an_unquoted_range_in_braces_asks_for_quotes() -> None:
    text = spec_text("- cellType: RACK\n  cellChildren: [{cellAddress: r0-n[0-1]}] #!")
    assert "a range inside { } or [ ] needs quotes" in error_in(text)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_text_says_what_it_needs(text: str) -> None:
    with pytest.raises(SpecError, match=r"^spec\.yaml:1: the spec is empty: it needs"):
        parse_spec(text, "spec.yaml")


def test_two_documents_are_one_too_many() -> None:
    assert "single document" in error_in("a: 1\n--- #!\nb: 2\n")


@pytest.mark.parametrize("text", ["- a\n", "just words\n", "3\n"])
def test_something_else_than_a_mapping(text: str) -> None:
    with pytest.raises(SpecError, match=r"^spec\.yaml:1: expected a mapping, not "):
        parse_spec(text, "spec.yaml")


@pytest.mark.parametrize("value", ["!!python/object/apply:os.getcwd []", "!mine x", "!!set {a}", "!!binary aGk="])
def test_no_tag_is_ever_acted_upon(value: str) -> None:
    assert "plain values only, not the tag" in error_in(f"a: {value} #!\n")


def test_a_key_must_be_one_word() -> None:
    assert "a key must be one word" in error_in("? [a, b] #!\n: 1\n")


def test_a_merge_key_takes_mappings() -> None:
    assert "`<<` takes a mapping" in error_in("a:\n  <<: 3 #!\n")


def test_a_bomb_of_aliases_is_defused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(SpecError, match="aliases stand for more than 100,000 values"):
        parse_spec("\n".join(levels), "spec.yaml")


def test_a_bomb_of_merge_keys_is_defused() -> None:
    levels = ["a0: &a0 {k: x}"]
    levels += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 40)]
    with pytest.raises(SpecError, match="unknown key `a0`"):
        parse_spec("\n".join(levels), "spec.yaml")


def test_an_anchor_that_contains_itself() -> None:
    assert "contains its own alias" in error_in("a: &a [*a] #!\n")


def test_a_mapping_merged_into_itself_is_just_itself() -> None:
    with pytest.raises(SpecError, match="unknown key `a`"):
        parse_spec("a: &a\n  <<: *a\n  b: 1\n", "spec.yaml")


@pytest.mark.parametrize("depth", [150, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(SpecError, match=r"^spec\.yaml:1: not valid YAML: nested deeper than 100 mappings and lists"):
        parse_spec("a: " + "[" * depth + "]" * depth, "spec.yaml")


@pytest.mark.parametrize("text", ["a: 1\nb: \0\n", "a: 1\nb: \x07\n", "a: \ud800"])
def test_characters_that_yaml_does_not_allow(text: str) -> None:
    with pytest.raises(SpecError, match="not valid YAML"):
        parse_spec(text, "spec.yaml")


def test_an_endless_number_is_just_text() -> None:
    digits = "9" * 5000
    text = error_in(spec_text(vcs=f"a:\n  virtualCells:\n  - {{cellType: RACK, cellNumber: {digits}}} #!"))
    assert "expected a whole number, not the text `999" in text
    assert len(text) < 200


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value) == f"{path}: cannot read the spec: No such file or directory; give the path of a YAML file"


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the spec"):
        load_spec(str(tmp_path))


def test_a_file_in_another_encoding_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value) == f"{path}:2: not a UTF-8 text; save the spec as UTF-8"


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.touch()
    with pytest.raises(SpecError, match=r"empty\.yaml:1: the spec is empty"):
        load_spec(path)
