"""The renderer that stands in for Helm does what Go's templates do, and refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from .go_templates import TemplateError, merged, render

ROOT: dict[str, Any] = {
    "Values": {
        "name": "x",
        "number": 3,
        "half": 0.5,
        "large": 1_000_000,
        "empty": "",
        "none": None,
        "yes": True,
        "list": ["a", "b"],
        "map": {"z": 1, "a": 2},
        "inner": {"deep": {"word": "found"}},
    },
    "Release": {"Name": "r"},
    "Files": {"files/one.txt": "a\nb"},
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("no action", "no action"),
        ("{{ .Values.name }}", "x"),
        ("{{.Values.name}}", "x"),
        ("{{ .Values.number }} {{ .Values.yes }}", "3 true"),
        ("{{ .Values.inner.deep.word }}", "found"),
        ("a {{/* a remark */}}b", "a b"),
        ("a\n{{- /* a remark */ -}}\nb", "ab"),
        ("a \n {{- .Values.name }} b", "ax b"),
        ("a {{ .Values.name -}} \n b", "a xb"),
        ("a {{-3}}", "a -3"),
        ("{{ if .Values.yes }}1{{ else }}2{{ end }}", "1"),
        ("{{ if .Values.empty }}1{{ else }}2{{ end }}", "2"),
        ("{{ if .Values.none }}1{{ end }}", ""),
        ("{{ if .Values.missing }}1{{ else if .Values.yes }}2{{ else }}3{{ end }}", "2"),
        ("{{ if not .Values.empty }}1{{ end }}", "1"),
        ("{{ range .Values.list }}<{{ . }}{{ $.Release.Name }}>{{ end }}", "<ar><br>"),
        ("{{ range .Values.map }}{{ . }}{{ end }}", "21"),
        ("{{ range .Values.missing }}x{{ else }}none{{ end }}", "none"),
        ("{{ with .Values.inner }}{{ .deep.word }}{{ end }}", "found"),
        ("{{ with .Values.empty }}x{{ else }}{{ .Values.name }}{{ end }}", "x"),
        ('{{ define "n" }}[{{ .word }}]{{ end }}{{ include "n" .Values.inner.deep }}', "[found]"),
        ('{{ default "d" .Values.empty }}{{ .Values.name | default "d" }}', "dx"),
        ('{{ .Values.name | quote }} {{ "a\\"b" | quote }} {{ .Values.number | quote }}', '"x" "a\\"b" "3"'),
        ("{{ .Values.map | toYaml }}", "a: 2\nz: 1"),
        ("k:{{ toYaml .Values.map | nindent 2 }}", "k:\n  a: 2\n  z: 1"),
        ("{{ if eq (int .Values.number) 3 }}three{{ end }}", "three"),
        ('{{ if eq .Values.name "y" }}y{{ end }}', ""),
        ('{{ and .Values.name .Values.list | toYaml }}|{{ and .Values.empty "x" }}', "- a\n- b|"),
        ('{{ or .Values.empty "x" }}{{ or .Values.name "y" }}', "xx"),
        ('{{ printf "%s:%d %q %%" .Values.name (int .Values.number) "z" }}', 'x:3 "z" %'),
        ('{{ required "say it" .Values.name }}', "x"),
        ('{{ .Files.Get "files/one.txt" | nindent 1 }}', "\n a\n b"),
    ],
)
def test_a_template_comes_to_what_go_makes_of_it(template: str, text: str) -> None:
    assert render(template, ROOT) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Values.missing }}",
        "{{ .Values.none }}",
        "{{ .Values.list }}",
        "{{ .Values.missing.deeper }}",
        "{{ .Values.name.deeper }}",
        "{{ $x := 1 }}",
        "{{ range $i, $v := .Values.list }}{{ end }}",
        "{{ upper .Values.name }}",
        "{{ .Values.name | trunc 63 }}",
        '{{ tpl .Values.name . }}{{ lookup "v1" }}',
        '{{ template "n" . }}',
        '{{ block "n" . }}{{ end }}',
        "{{ `raw` }}",
        "{{ 1.5 }}",
        "{{ if .Values.yes }}",
        "{{ end }}",
        "{{ else }}",
        "{{ with .Values.inner }}{{ else if .Values.yes }}{{ end }}",
        "{{ .Values.name",
        "{{ (.Values.name }}",
        "{{ .Values.name ) }}",
        "{{ .Values.name .Values.name }}",
        "{{ .Values.name | }}",
        "{{ 3 | .Values.name }}",
        "{{ eq .Values.name 3 }}",
        "{{ eq .Values.number 3 }}",
        '{{ printf "%d" .Values.number }}',
        "{{ .Values.large }}",
        "{{ int .Values.half }}",
        "{{ eq .Values.list .Values.list }}",
        "{{ int .Values.name }}",
        '{{ include "nobody" . }}',
        '{{ define "n" }}1{{ end }}{{ define "n" }}2{{ end }}',
        '{{ if .Values.yes }}{{ define "n" }}1{{ end }}{{ end }}',
        '{{ printf "%v" .Values.name }}',
        '{{ printf "%s" }}',
        '{{ printf "%d" .Values.name }}',
        '{{ printf "x" 1 }}',
        '{{ required "say it" .Values.empty }}',
        '{{ .Files.Get "files/two.txt" }}',
        "{{ range .Values.number }}{{ end }}",
        "{{ quote }}",
        "{{ default }}",
        "{{ and }}",
    ],
)
def test_what_is_not_known_is_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, ROOT)


def test_values_go_over_the_charts_own_one_by_one() -> None:
    own = {"a": {"b": 1, "c": [1, 2]}, "d": 1, "e": 2}
    assert merged(own, {"a": {"c": [3]}, "d": None, "f": {"g": None, "h": 1}}) == {
        "a": {"b": 1, "c": [3]},
        "e": 2,
        "f": {"h": 1},
    }
