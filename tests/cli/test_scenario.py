"""A simulation's parameters: the same by flags, in a YAML file and in Python; what is wrong names where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml

import hived as library
from hived.cli.app import VERBS
from hived.cli.scenario import flag_of
from hived.errors import HivedError
from hived.policies import FIFO
from hived.simulator.scenario import FIELDS, Scenario
from hived.simulator.sweep import AXES, OPTIONS

from .helpers import Hived, refused

#: a value for every parameter, as on the command line, and as a file and Python have it
EVERY: dict[str, tuple[tuple[object, ...], Any]] = {
    "spec": (("--spec", "spec.yaml"), "spec.yaml"),
    "trace": (("--trace", "trace.csv"), "trace.csv"),
    "skip_bad_rows": (("--skip-bad-rows",), True),
    "still_running": (("--still-running", "leave-out"), "leave-out"),
    "schemes": (("--scheme", "private", "--scheme", "hived"), ["private", "hived"]),
    "policy": (("--policy", "fifo", "--policy", "b=sjf"), ["fifo", {"b": "sjf"}]),
    "opportunistic": (("--no-opportunistic",), False),
    "preempted": (("--preempted", "restart"), "restart"),
    "until": (("--until", 2), 2),
    "filter": (("--filter", "gpus < 8"), "gpus < 8"),
    "window": (("--window", "0:3"), "0:3"),
    "sample": (("--sample", 0.9), 0.9),
    "clock_compression": (("--clock-compression", 1.5), 1.5),
    "binding": (("--binding", "static"), "static"),
    "victims": (("--victims", "least-work"), "least-work"),
    "safety": (("--safety", "work-conserving"), "work-conserving"),
    "exchange": (("--exchange", "auction"), "auction"),
    "soft": (("--soft", 0.5), 0.5),
    "models": (("--models", "models.csv"), "models.csv"),
    "mix": (("--mix", "ResNet-50=1"), "ResNet-50=1"),
    "seed": (("--seed", 3), 3),
    "jobs": (("--jobs", 50), 50),
    "days": (("--days", 1), 1),
    "nodes": (("--nodes", 20), 20),
    "quotas": (("--quotas", "table1"), "table1"),
    "tenants": (("--tenant", "b"), ["b"]),
}
SYNTHETIC = ("jobs", "days", "nodes", "quotas", "schemes", "policy_", "seed", "soft", "until", "opportunistic")
OF_FILES = ("spec", "trace", "skip_bad_rows", "still_running", "schemes", "policy", "preempted", "filter", "window",
            "sample", "clock_compression", "safety", "soft", "seed", "tenants")  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_parameter_has_a_flag() -> None:
    """And is one of a sweep, unless it determines no result."""
    verbs = {verb.name: verb.loaded() for noun in VERBS if noun.name == "sim" for verb in noun.verbs}
    given = {name: {word for option in verb.params for word in option.opts} for name, verb in verbs.items()}
    assert list(EVERY) == list(FIELDS) == list(Scenario.model_fields)
    assert {flag_of(name) for name in FIELDS} <= given["run"]
    assert {"--seeds" if name == "seed" else flag_of(name) for name in AXES} <= given["sweep"]
    assert set(FIELDS) - set(AXES) == {"tenants"}
    assert len(OPTIONS) == len(AXES) - 1, "all schemes are in every run"
    assert all(field.description for field in Scenario.model_fields.values())


@pytest.mark.parametrize("names", [SYNTHETIC, OF_FILES], ids=["synthetic", "files"])
def test_same_bytes_whatever_says_it(hived: Hived, folder: Path, names: tuple[str, ...]) -> None:
    """And by the file that a simulation writes."""
    chosen = {name: EVERY[name] for name in names if name in EVERY}
    flags = [word for words, _ in chosen.values() for word in words]
    assert hived("simulate", *flags, "--no-figures", "--out", "flags").code == 0
    (folder / "scenario.yaml").write_text(yaml.safe_dump({name: value for name, (_, value) in chosen.items()}))
    answer = hived("simulate", "--scenario", "scenario.yaml", "--no-figures", "--out", "file")
    assert answer.code == 0, answer.err
    study = library.simulate(**{name: value for name, (_, value) in chosen.items()})
    study.save(folder / "python", figures=False)
    again = hived("simulate", "--scenario", "flags/scenario.yaml", "--no-figures", "--out", "again")
    assert again.code == 0, again.err
    made = Scenario.load(folder / "scenario.yaml")
    library.simulate(made).save(folder / "loaded", figures=False)
    first = files(folder / "flags")
    for other in ("file", "python", "again"):
        assert {name for name, data in files(folder / other).items() if data != first[name]} <= {"scenario.yaml"}
    assert (folder / "loaded" / "jobs.csv").read_bytes() == first["jobs.csv"]
    written = yaml.safe_load(first["scenario.yaml"])
    assert {name: written[name] for name in ("schemes", "seed")} == {"schemes": ["private", "hived"], "seed": 3}


@pytest.mark.parametrize("name", FIELDS)
def test_same_value_whatever_says_it(hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of every parameter alone."""
    seen: list[Scenario] = []

    def run(scenario: Scenario, **_: object) -> None:
        seen.append(scenario)
        raise HivedError("seen")

    monkeypatch.setattr("hived.cli.simulate.run_study", run)
    words, value = EVERY[name]
    (folder / "one.yaml").write_text(yaml.safe_dump({name: value}))
    hived("simulate", *words)
    hived("simulate", "--scenario", "one.yaml")
    by_flag, by_file = (dict(one.effective()) for one in seen)
    expected = dict(Scenario(**{name: value}).effective())
    if name == "policy":  # a flag says TENANT=NAME
        by_flag["policy"] = ("fifo", {"b": "sjf"})
    plain = [{key: str(one) for key, one in found.items()} for found in (by_flag, by_file, expected)]
    assert plain[0] == plain[1] == plain[2]


def test_flags_override_a_file(hived: Hived, folder: Path) -> None:
    """Whose paths are relative to its folder."""
    (folder / "cases").mkdir()
    text = "spec: ../spec.yaml\ntrace: ../trace.csv\nschemes: [private, hived]\nopportunistic: false\n"
    (folder / "cases" / "a.yaml").write_text(text)
    given = ("simulate", "--scenario", "cases/a.yaml", "--no-figures")
    assert hived(*given, "--out", "out").code == 0
    assert hived(*given, "--out", "own", "--scheme", "hived", "--opportunistic").code == 0
    summaries = [json.loads((folder / out / "summary.json").read_text()) for out in ("out", "own")]
    assert [[run["scheme"] for run in one["runs"]] for one in summaries] == [["private", "hived"], ["hived"]]
    assert [one["options"]["opportunistic"] for one in summaries] == [False, True]
    assert summaries[0]["cluster"]["spec"] == "spec.yaml"
    refusal = refused(hived(*given, "--nodes", 4))
    assert refusal == "--nodes: has no effect beside `spec`: give one of them"


def test_objects_of_python_are_in_no_file(folder: Path) -> None:
    """A scenario with a policy that was made; a spec in the file itself is one that a file can have."""
    given: dict[str, Any] = {"trace": "trace.csv", "schemes": "hived"}
    made = [library.simulate("spec.yaml", policy=FIFO(), **given)]
    made.append(library.simulate("spec.yaml", polars.read_csv("trace.csv"), schemes="hived"))
    for number, study in enumerate(made):
        study.save(folder / f"made-{number}", figures=False)
        assert not (folder / f"made-{number}" / "scenario.yaml").exists()
    text = (folder / "spec.yaml").read_text()
    library.simulate(text, **given).save(folder / "text", figures=False)
    found = Scenario.load(folder / "text" / "scenario.yaml")
    assert found.spec == text
    assert library.simulate(found).jobs.equals(library.simulate("spec.yaml", **given).jobs)
    plain = {**given, "spec": yaml.safe_load(text)}
    library.simulate(**plain).save(folder / "plain", figures=False)
    assert Scenario.load(folder / "plain" / "scenario.yaml").spec == plain["spec"]


def test_a_sweep_is_a_scenario_with_lists(hived: Hived, folder: Path) -> None:
    """The same bytes as by flags; a list of schemes is in every run."""
    (folder / "sweep.yaml").write_text(
        "jobs: 60\ndays: 1\nnodes: [20, 30]\npolicy: [yarn-cs, fifo, {res-f: sjf}]\nschemes: [private, hived]\n"
        "opportunistic: [true, false]\nfilter: ['gpus < 8', 'gpus >= 1']\n"
        "window: [[0, 1]]\n"
    )
    assert hived("sim", "sweep", "--scenario", "sweep.yaml", "--seeds", 2, "-j", 1, "--out", "file").code == 0
    found = polars.read_parquet(folder / "file" / "sweep.parquet").filter(polars.col("tenant").is_null())
    keys = found.select("nodes", "policy", "opportunistic", "filter", "seed")
    assert (len(found), keys.n_unique()) == (64, 32)
    assert found["policy"].unique(maintain_order=True).to_list() == ["yarn-cs res-f=sjf", "fifo res-f=sjf"]
    fewer = ("--filter", "gpus < 8", "--no-opportunistic", "--policy", "fifo")
    flags = ("--jobs", 60, "--days", 1, "--window", "0:1", "--nodes", "20,30", "--scheme", "private,hived")
    assert hived("sim", "sweep", "--scenario", "sweep.yaml", *fewer, "-j", 1, "--out", "narrow").code == 0
    assert hived("sim", "sweep", *flags, *fewer, "-j", 1, "--out", "flags").code == 0
    assert (folder / "narrow" / "sweep.parquet").read_bytes() == (folder / "flags" / "sweep.parquet").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: 5\nnode: 3\n", "a.yaml:2: node: unknown key `node` (did you mean `nodes`?); allowed here: spec, trace"),
        ("nodes: 20\n\nuntil: 0\n", "a.yaml:3: until: must be above 0, not 0"),
        ("soft: 1.5\n", "a.yaml:1: soft: must be at most 1.0, not 1.5"),
        ("nodes: '20'\n", "a.yaml:1: nodes: expected a whole number, not the text `20` (write 20 without quotes)"),
        ("nodes: 2.5\n", "a.yaml:1: nodes: expected a whole number, not the number 2.5"),
        ("seed: true\n", "a.yaml:1: seed: expected a whole number, not the truth value true"),
        ("sample: soon\n", "a.yaml:1: sample: expected a number, not the text `soon`"),
        ("mix: 5\n", "a.yaml:1: mix: expected text, not the number 5 (put it in quotes)"),
        ("opportunistic: 1\n", "a.yaml:1: opportunistic: expected true or false, not the number 1"),
        (
            "preempted: resme\n",
            "a.yaml:1: preempted: expected 'resume' or 'restart', not the text `resme`",
        ),
        ("schemes:\n- private\n- hive\n", "a.yaml:3: schemes[1]: expected 'private', 'quota' or 'hived', not the text"),
        ("schemes: []\n", "a.yaml:1: schemes: is empty"),
        ("window: 3\n", "a.yaml:1: window: expected text, not the number 3"),
        ("window: '3'\n", "a.yaml:1: window: expected two days, DAY:DAY"),
        ("spec: 3\n", "a.yaml:1: spec: expected a path, YAML text, a mapping or a ClusterSpec, not int"),
        ("trace: [a, b]\n", "a.yaml:1: trace: expected a path, a frame, jobs or a Trace, not list"),
        ("policy: 3\n", "a.yaml:1: policy: expected a name, a policy, a mapping of tenants to these, or a list"),
        ("spec: s.yaml\nnodes: 3\n", "a.yaml:2: nodes: has no effect beside `spec`: give one of them"),
        ("jobs: 3\ntrace: t.csv\n", "a.yaml:1: jobs: has no effect beside `trace`: give one of them"),
        ("seed: 1\nseed: 2\n", "a.yaml:2: key `seed` is given twice (first at line 1)"),
        ("- 1\n", "a.yaml: a scenario is one mapping of parameters"),
        ("", "a.yaml: a scenario is one mapping of parameters"),
        ("{", "a.yaml:"),
    ],
)
def test_wrong_file(hived: Hived, folder: Path, text: str, message: str) -> None:
    (folder / "a.yaml").write_text(text)
    assert refused(hived("simulate", "--scenario", "a.yaml", "--out", "out")).startswith(message)
    if "trace: [" not in text:
        found = refused(hived("sim", "sweep", "--scenario", "a.yaml", "--out", "out"))
        assert found.startswith(message), "the same for a sweep"
    assert not (folder / "out").exists()


def test_every_mistake_of_a_file_has_a_line(hived: Hived, folder: Path) -> None:
    (folder / "a.yaml").write_text("seed: -1\nuntil: [1, 0]\nnods: [3, 4]\n")
    answer = hived("sim", "sweep", "--scenario", "a.yaml", "--out", "out")
    first, second, third = answer.err.removeprefix("hived: ").splitlines()
    assert first == "a.yaml:1: seed: must be at least 0, not -1"
    assert second == "a.yaml:2: until[1]: must be above 0, not 0"
    assert third.startswith("a.yaml:3: nods: unknown key `nods` (did you mean `nodes`?)")
    assert "none.yaml: cannot be read" in refused(hived("simulate", "--scenario", "none.yaml"))
    (folder / "a.yaml").write_text("nodes: []\n")
    assert refused(hived("sim", "sweep", "--scenario", "a.yaml", "--out", "out")).startswith(
        "a.yaml:1: nodes: expected a whole number, not a list"
    )
    (folder / "a.yaml").write_text("spec: {physicalCluster: {}}\n")
    line = refused(hived("sim", "sweep", "--scenario", "a.yaml", "--out", "out"))
    assert line == "a.yaml:1: spec: expected a path: the table of a sweep has it"
