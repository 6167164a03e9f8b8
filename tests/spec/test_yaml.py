"""Text that is no spec at all: broken, hostile or ambiguous YAML, unreadable files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.errors import SpecError
from hived.spec import load_spec, parse_spec

from .helpers import error_in, spec_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3 #!\n", "key `c` is given twice (first at line 3)"),
        ("physicalCluster:\n  a: b: c #!\n", "not valid YAML"),
        ("physicalCluster:\n\ta: b #!\n", "indent with spaces, not with tabs"),
        (
            spec_text("- cellType: RACK\n  cellChildren: [{cellAddress: r0-n[0-1]}] #!"),
            "a range inside { } or [ ] needs quotes",
        ),
        ("a: 1\n--- #!\nb: 2\n", "single document"),
        ("a: !!python/object/apply:os.getcwd [] #!\n", "plain values only, not the tag"),
        ("a: !!binary aGk= #!\n", "plain values only, not the tag"),
        ("? [a, b] #!\n: 1\n", "a key must be one word"),
        ("a:\n  <<: 3 #!\n", "`<<` takes a mapping"),
        ("a: &a [*a] #!\n", "contains its own alias"),
    ],
)
def test_a_wrong_text_names_its_line(text: str, message: str) -> None:
    assert message in error_in(text)


TENS = ", ".join(["*a{below}"] * 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^spec\.yaml:1: the spec is empty: it needs"),
        ("\n\n", r"^spec\.yaml:1: the spec is empty: it needs"),
        ("# only a comment\n", r"^spec\.yaml:1: the spec is empty: it needs"),
        ("- a\n", r"^spec\.yaml:1: expected a mapping, not "),
        ("3\n", r"^spec\.yaml:1: expected a mapping, not "),
        ("a: 1\nb: \0\n", "not valid YAML"),
        ("a: 1\nb: \x07\n", "not valid YAML"),
        ("a: \ud800", "not valid YAML"),
        # a mapping merged into itself is just itself
        ("a: &a\n  <<: *a\n  b: 1\n", "unknown key `a`"),
        *[
            ("a: " + "[" * depth + "]" * depth, r"^spec\.yaml:1: not valid YAML: nested deeper than 100 mappings and")
            for depth in (150, 100_000)
        ],
        # bombs
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
            + "\n".join(f"a{n}: &a{n} [{TENS.format(below=n - 1)}]" for n in range(1, 12)),
            "aliases stand for more than 100,000 values",
        ),
        (
            "a0: &a0 {k: x}\n" + "\n".join(f"a{n}: &a{n} {{<<: [{TENS.format(below=n - 1)}]}}" for n in range(1, 40)),
            "unknown key `a0`",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_spec(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(text, "spec.yaml")


def test_an_endless_number_is_just_text() -> None:
    digits = "9" * 5000
    text = error_in(spec_text(vcs=f"a:\n  virtualCells:\n  - {{cellType: RACK, cellNumber: {digits}}} #!"))
    assert "expected a whole number, not the text `999" in text
    assert len(text) < 200


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(SpecError) as caught:
            load_spec(path)
        return str(caught.value).removeprefix(str(path))

    missing = ": cannot read the spec: No such file or directory; give the path of a YAML file"
    assert refusal(tmp_path / "none.yaml") == missing
    assert "cannot read the spec" in refusal(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"a: 1\nb: \xe9\n")
    assert refusal(path) == ":2: not a UTF-8 text; save the spec as UTF-8"
    assert refusal(Path("/dev/zero")) == ": more than 64 MiB are there; give the path of a cluster spec"
    path.write_bytes(b"")
    assert refusal(path).startswith(":1: the spec is empty")
    with pytest.raises(SpecError, match="cannot read the spec"):
        load_spec(str(tmp_path))  # as text
