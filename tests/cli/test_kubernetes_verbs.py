"""The verbs that ask an engine on Kubernetes, over real HTTP; contexts; and what only one kind of engine does."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hived.server.app import make_app

from ..server.fakes import FAILURES, SPEC, TOKEN, WHY, Answering, FakeKubernetes, FakeService, Running, kubernetes_app
from .engine.shell import Terminal
from .engine.test_verbs import assert_understood
from .helpers import Completed, Hived, refused

JOB = """\
# a job of one pod
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  labels: {{hived.io/vc: vision}}
spec:
  template:
    spec:
      containers:
      - name: main
        resources: {{limits: {{nvidia.com/gpu: 4}}}}
"""


Manifest = Callable[..., Path]
Cluster = tuple[FakeKubernetes, Answering]


@pytest.fixture(autouse=True)
def quiet(nobody: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is named but by the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[Cluster]:
    service = FakeKubernetes()
    answering = Answering(kubernetes_app(service))
    yield service, answering
    answering.close()


@pytest.fixture
def service(one_cluster: Cluster) -> FakeKubernetes:
    one_cluster[0].reset()
    return one_cluster[0]


@pytest.fixture
def cluster(service: FakeKubernetes, one_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the engine on Kubernetes, which HIVED_ENGINE names."""
    monkeypatch.setenv("HIVED_ENGINE", one_cluster[1].url)
    return one_cluster[1].url


@pytest.fixture
def machine(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """The engine of one machine, over TCP too."""
    monkeypatch.setenv("HIVED_TOKEN", TOKEN)
    return running


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """``manifest(name, ...)`` writes ``job.yaml`` with jobs of these names."""

    def write(*names: str) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text("---\n".join(JOB.format(name=name) for name in names), encoding="utf-8")
        return path

    return write


def lines(text: str) -> list[list[str]]:
    """Words, line by line."""
    return [line.split() for line in text.splitlines()]


# -- what answers, nodes, virtual clusters ---------------------------------------------------------------------------


def test_context_show(hived: Hived, cluster: str) -> None:
    answer = hived("context", "show")
    assert (answer.code, answer.err) == (0, "")
    assert re.sub(r"loaded \d+m ago", "loaded 1m ago", answer.out).splitlines() == [
        f"engine  ready, decides as hived-0; hived 9.9.9 on {cluster}, up 2h",
        "spec    configmap/hived/spec, loaded 1m ago: 2 nodes, 16 GPUs, 2 virtual clusters",
    ]
    told = json.loads(hived("context", "show", "-o", "json").out)
    assert (told["address"], told["engine"]["replica"]["leader"]) == (cluster, True)
    assert yaml.safe_load(hived("context", "show", "-o", "yaml").out)["spec"]["gpus"] == 16


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        ({"leader": False, "holder": "hived-1"}, "ready, stands by; hived-1 decides;"),
        ({"leader": False, "holder": ""}, "stands by; nobody decides"),
        ({"holder": ""}, "ready, decides as hived-0;"),
    ],
)
def test_who_decides(
    hived: Hived, cluster: str, service: FakeKubernetes, replica: dict[str, object], words: str
) -> None:
    now = service.engine().replica
    assert now is not None
    service.changes = {"replica": now.model_copy(update=replica)}
    assert words in hived("context", "show").out


def test_wrong_spec(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.changes = {"problem": "spec:3: \x1b[2J no such cell type"}
    said = hived("context", "show").out
    assert r"a later one was refused: spec:3: \x1b[2J no such cell type" in said


def test_engine_that_is_not_ready(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.changes = {"ready": False}
    answers = [hived("context", "show", "-o", form) for form in ("table", "json", "yaml")]
    assert [(answer.code, answer.err) for answer in answers] == [(69, "")] * 3
    assert answers[0].out.startswith("engine  not ready, decides")
    told = [json.loads(answers[1].out), yaml.safe_load(answers[2].out)]
    assert [one["engine"]["ready"] for one in told] == [False, False]


def test_facts_fit_a_terminal(cluster: str, service: FakeKubernetes) -> None:
    service.changes = {"problem": "word " * 60}
    with Terminal(["context", "show"], width=80) as terminal:
        assert terminal.code() == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen)
    assert plain.count("word ") + plain.count("word\r") >= 55, "it goes on below itself, and is not cut"
    assert all(len(line.rstrip()) <= 80 for line in plain.splitlines())
    assert "\x1b[32mready" in terminal.seen


def test_devices(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    service.changes = {"unmanaged": 3, "bad": 1, "foreign_pods": ["gpu2: pod team/serve has 3 of its \x1b[2J GPUs"]}
    service.drained = {"gpu2"}
    answer = hived("devices")
    head, *rows = lines(answer.out)
    assert head == ["NODE", "GPUS", "STATE", "JOBS"]
    assert rows == [
        ["gpu1", "0-3", "used", "train"],
        ["gpu1", "4-7", "free", "-"],
        ["gpu2", "0-7", "free,", "drained,", "bad:", "it", "is", "cordoned", "-"],
    ]
    assert answer.err.splitlines() == [
        "2 nodes, 1 of them with GPUs that take no jobs",
        "3 more nodes in Kubernetes that the spec does not have",
        r"gpu2: pod team/serve has 3 of its \x1b[2J GPUs",
    ]
    assert [row[0] for row in lines(hived("devices", "--bad").out)[1:]] == ["gpu2"]
    assert [node["name"] for node in json.loads(hived("devices", "gpu1", "-o", "json").out)["nodes"]] == ["gpu1"]


def test_vc_ls(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train", gpus=6)
    service.add("sweep", vc="speech", gpus=2, priority=-1)
    service.add("next", state="queued", gpus=8)
    answer = hived("vc", "ls")
    assert (answer.code, answer.err) == (0, "")
    table, facts = answer.out.split("\n\n")
    assert lines(table) == [
        ["VC", "RESERVED", "USED", "BORROWED", "WAITING"],
        ["vision", "8", "6", "0", "1"],
        ["speech", "8", "0", "2", "0"],
    ]
    assert facts.splitlines() == [
        "GPUs    16: 6 guaranteed, 2 opportunistic, 8 idle",
        "jobs    2 running, 1 queued",
        "safety  no VC can take what the spec reserves for another, with 1 cell to spare where it is tightest",
        "now     all 16 reserved GPUs can be had",
    ]
    told = json.loads(hived("vc", "ls", "-o", "json").out)
    assert [vc["name"] for vc in told["vcs"]] == ["vision", "speech"]
    assert yaml.safe_load(hived("vc", "ls", "-o", "yaml").out) == told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # with half of the GPUs bad it said that every VC can have what it reserves
        (
            {"bad": 8, "unavailable": 8},
            [
                "safety  no VC can take what the spec reserves for another, with 1 cell to spare",
                "now     8 of 16 reserved GPUs can be had; 8 are bad, drained or kept for others\n",
            ],
        ),
        ({"unavailable": 8, "doomed": 1}, ["kept for others, 1 reserved cell cannot be healthy (hived vc show VC)"]),
        ({"bad": 8, "reserved": 4}, ["0 opportunistic, 4 kept for a job, 8 bad or drained, 4 idle", "jobs    none"]),
        (
            {"reserved": 4, "bad": 2, "foreign": 3},
            ["4 kept for a job, 3 of pods that HiveD did not place, 2 bad or drained, 7 id"],
        ),
        ({"vcs": [], "safety_margin": None}, ["safety  nothing is reserved"]),
        ({"safety_margin": -1}, ["safety  broken: some VC cannot have what it reserved"]),
    ],
)
def test_what_a_spec_promises(
    hived: Hived, cluster: str, service: FakeKubernetes, changes: dict[str, object], words: list[str]
) -> None:
    service.changes = changes
    answer = hived("vc", "ls")
    assert answer.code == 0
    assert "every VC can have" not in answer.out
    for some in words:
        assert some in answer.out


def test_vc_with_cells_and_groups(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train", gpus=4)
    service.add("next", state="queued", gpus=8, priority=5, why=(WHY, "more\nwords"))
    service.doomed = ["NODE of RACK, on n\x1b9"]
    answer = hived("vc", "show", "vision")
    assert (answer.code, answer.err) == (0, "")
    facts, running, waiting = answer.out.split("\n\n")
    assert facts.splitlines() == [
        "VC        vision",
        "in use    4 of 8 reserved GPUs, 0 borrowed",
        "policy    fair",
        "members   ann, group:gpu",
        "a member  at most 1,000 jobs that have not ended, 4 GPUs of guaranteed jobs",
        "cells     1 x RACK.NODE of 4 GPUs",
        "          1 x RACK.NODE of 4 GPUs, pinned: corner",
        r"doomed    NODE of RACK, on n\x1b9",
    ]
    assert lines(running) == [
        ["running:"],
        ["NAME", "GPUS", "PODS", "PRIO", "STATE", "AGE", "RUN", "WHERE/WHY"],
        ["train", "4", "1/2", "0", "running", "3m", "3m20s", "gpu1:0-3"],
    ]
    assert lines(waiting)[0] == ["waiting:"]
    assert waiting.splitlines()[2].split(maxsplit=7) == [
        "next", "8", "1/2", "5", "queued", "3m", "-", rf"{WHY}; more\x0awords",
    ]  # fmt: skip


def test_empty_and_full_vc(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    """There are no tables of nothing; of a long list it is said where the rest is."""
    for number in range(101):
        service.add(f"g{number}")
    answer = hived("vc", "show", "speech")
    assert (answer.code, answer.err) == (0, "no jobs\n")
    assert "WHERE/WHY" not in answer.out
    for form in ("table", "json"):
        err = hived("vc", "show", "vision", "-o", form).err
        assert err == "the first 100; all of them: hived ps --vc vision -n 0\n"
    assert_understood(["ps", "--vc", "vision", "-n", "0"])


def test_unknown_vc(hived: Hived, cluster: str) -> None:
    for name in ("nobody", "..", "a/b", "?vc=vision"):
        line = refused(hived("vc", "show", name), 4)
        assert line == f"there is no virtual cluster {name!r}; there are vision, speech"


# -- groups -----------------------------------------------------------------------------------------------------------


def test_ps(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("b-waits", state="queued", why=(WHY,))
    service.add("a-runs", gpus=2)
    service.add("c-lent", vc="speech", gpus=1, priority=-1)
    service.add("d-lazy", gpus=1, priority=3, kind="opportunistic")
    service.add("e-comes", state="reserved", gpus=4, why=("until c-lent has gone",))
    service.add("f-goes", state="stopping")
    answer = hived("ps")
    assert (answer.code, answer.err) == (0, "")
    head, *rows = answer.out.splitlines()
    assert head.split() == ["NAME", "VC", "GPUS", "PODS", "PRIO", "STATE", "AGE", "RUN", "WHERE/WHY"]
    assert [row.split(maxsplit=8) for row in rows] == [
        ["a-runs", "vision", "2", "1/2", "0", "running", "3m", "3m20s", "gpu1:0-1"],
        ["c-lent", "speech", "1", "1/2", "opp", "running", "3m", "3m20s", "gpu1:0"],
        ["d-lazy", "vision", "1", "1/2", "opp", "running", "3m", "3m20s", "gpu1:0"],
        ["f-goes", "vision", "4", "1/2", "0", "stopping", "3m", "-", "-"],
        ["b-waits", "vision", "4", "1/2", "0", "queued", "3m", "-", WHY],
        ["e-comes", "vision", "4", "1/2", "0", "reserved", "3m", "-", "gpu1:0-3 until c-lent has gone"],
    ]
    assert [row[0] for row in lines(hived("ps", "--vc", "speech").out)[1:]] == ["c-lent"]
    assert [row[0] for row in lines(hived("ps", "--status", "queued").out)[1:]] == ["b-waits"]


def test_number_of_groups(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    answer = hived("ps", "--vc", "vision", "--status", "queued")
    assert (answer.code, answer.out, answer.err) == (0, "", "no jobs of vision\n")
    for number in range(1050):
        service.add(f"g{number:04}")
    answer = hived("ps")
    assert (len(answer.out.splitlines()), answer.err) == (101, "100 of 1,050 jobs; all of them: -n 0\n")
    answer = hived("ps", "-n", 1010)
    assert [row[0] for row in lines(answer.out)[-2:]] == ["g1008", "g1009"]
    every = hived("ps", "-n", 0, "-o", "json")
    told = json.loads(every.out)
    assert (len({job["name"] for job in told["jobs"]}), told["total"], every.err) == (1050, 1050, "")


def test_events_and_wait(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    service.add("old", state="ended")
    assert [line.split()[1:] for line in hived("events").out.splitlines()] == [
        ["train", "running", "train", "is", "running"],
        ["old", "ended", "old", "is", "ended"],
    ]
    assert hived("events", "--job", "train").out.count("\n") == 1
    answer = hived("wait", "old")
    assert (answer.code, answer.out) == (0, "old has ended.\n")
    assert hived("wait", "train", "--timeout", "0.1s").code == 124


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_by_name_or_pod(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("jobs/of/ann/next", state="queued", why=(WHY, "a \x1b[2J name"))
    for ref in ("jobs/of/ann/next", "team/next-0"):
        answer = hived("explain", ref)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.splitlines() == ["jobs/of/ann/next is queued", f"- {WHY}", r"- a \x1b[2J name"]
        assert json.loads(hived("explain", ref, "-o", "json").out)["reasons"] == [{"kind": "vc_exhausted", "need": 8}]


def test_unknown_group(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    """It is asked for by that name, unless no name is like that."""
    unknown = ["nobody", ".", "..", "a/../b", "?", "#", "%2e", "a b", "\x1b[2J"]
    for ref in unknown:
        assert refused(hived("explain", ref), 4).startswith("there is no group and no pod")
    for ref in ("", "x" * 1025):
        line = refused(hived("explain", ref), 4)
        assert line == f"no name has {len(ref):,} characters; hived ps --all lists the jobs"
    assert service.asked == unknown


# -- plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(["now"], 0), (["now", "waits"], 2), (["waits", "never", "now"], 3), ([], 0)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_plan_exits_as_the_worst(
    hived: Hived, cluster: str, service: FakeKubernetes, manifest: Manifest, outcomes: list[str], code: int
) -> None:
    names = [f"job-{number}" for number in range(len(outcomes))]
    for name, outcome in zip(names, outcomes, strict=True):
        service.plans(name, outcome)
    path = manifest(*names, "configuration")
    answer = hived("plan", "-f", path, "-o", "yaml")
    assert answer.code == code
    told = yaml.safe_load(answer.out)
    assert [job["outcome"] for job in told["jobs"]] == outcomes
    sent = service.planned[0].manifests
    assert [thing["metadata"]["name"] for thing in sent] == [*names, "configuration"]  # type: ignore[index]  # JSON
    assert sent == list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_plan_in_words(hived: Hived, cluster: str, service: FakeKubernetes, manifest: Manifest) -> None:
    service.plans("first", "now", "default/first can start on 4 GPUs:\n- pod 1: gpu1, GPUs 0-3")
    service.plans("second", "now", victims=("a", "b"))
    service.plans("third", "waits", f"it would wait:\n- {WHY}")
    service.plans("fourth", "never", "there are \x1b[2J 16 GPUs")
    answer = hived("plan", "-f", manifest("first", "second", "third", "fourth"))
    assert (answer.code, answer.err) == (3, "")
    assert answer.out.splitlines() == [
        "default/first (4 GPUs of vision): now, on gpu1 (GPUs 0-3)",
        "  - pod 1: gpu1, GPUs 0-3",
        "default/second (4 GPUs of vision): now, once a, b have gone, on gpu1 (GPUs 0-3)",
        "default/third (4 GPUs of vision): would wait",
        f"  - {WHY}",
        "default/fourth (4 GPUs of vision): never fits",
        r"  there are \x1b[2J 16 GPUs",
    ]
    answer = hived("plan", "-f", manifest("other"))
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "nothing here is for HiveD: no pod that asks for GPUs names a virtual cluster\n"


def test_plan_of_a_job(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    """By its size alone, as on one machine."""
    service.plans("job", "waits", f"it would wait:\n- {WHY}")
    answer = hived("plan", "--vc", "vision", "--gpus", 4, "--nodes", 2)
    assert (answer.code, answer.out.splitlines()) == (
        2, ["2 tasks of 4 GPUs of vision: would wait", f"  - {WHY}"],
    )  # fmt: skip
    (asked,) = service.planned
    assert asked.job is not None
    assert (asked.job.gpus, asked.job.tasks, asked.manifests) == (4, 2, [])


@pytest.mark.parametrize(
    ("outcome", "code", "words"), [("unknown", 4, "cannot be foreseen"), ("waits", 2, "would wait")]
)
def test_exit_code_of_a_plan(
    hived: Hived, cluster: str, service: FakeKubernetes, manifest: Manifest, outcome: str, code: int, words: str
) -> None:
    service.plans("one", outcome, "")
    answer = hived("plan", "-f", manifest("one"))
    assert (answer.code, words in answer.out) == (code, True)


def test_sources_of_manifests(
    hived: Hived, cluster: str, service: FakeKubernetes, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} for name in ("three", "four")]
    Path("list.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}), encoding="utf-8")
    piped = "\ufeff---\n# nothing\n---\n" + JOB.format(name="five") + "...\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode()), encoding="utf-8"))
    answer = hived("plan", "-f", manifest("one", "two"), "-f", "list.json", "-f", "-", "--namespace", "team")
    assert answer.code == 0
    [request] = service.planned
    names = [thing["metadata"]["name"] for thing in request.manifests]  # type: ignore[index]  # JSON
    assert (names, request.namespace) == (["one", "two", "three", "four", "five"], "team")


WRONG: dict[str, tuple[str | bytes, str]] = {
    "no YAML": ("a: b\nc: d: e\n", "job.yaml:2: not valid YAML: "),
    "no YAML in the second": ("apiVersion: v1\nkind: Pod\n---\na: [\n", "job.yaml:5: not valid YAML: "),
    "a tab": ("kind: Pod\nspec:\n\tcontainers: []\n", "job.yaml:3: not valid YAML: "),
    "a key twice": ("apiVersion: v1\nkind: Pod\nkind: Job\n", "job.yaml:3: key `kind` is given twice"),
    "nothing": ("---\n# nothing\n", "job.yaml: there is no object in it"),
    "a word": ("apiVersion: v1\nkind: Pod\n---\nhello\n", "job.yaml:4: a manifest has keys"),
    "a list": ("- kind: Pod\n", "job.yaml:1: a manifest has keys"),
    "no kind": ("apiVersion: v1\nkind: Pod\n---\n\napiVersion: v1\n", "job.yaml:5: a manifest says its kind"),
    "no version": ("kind: Pod\n", "job.yaml:1: a manifest says its apiVersion"),
    "a list in a list": ("apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  apiVersion: v1\n- 5\n", "job.yaml:6: "),
    "endless": ("apiVersion: v1\nkind: Pod\nspec: 1.0e+999\n", "job.yaml:1: it has a number or a text that JSON"),
    "code": ("apiVersion: v1\nkind: Pod\nspec: !!python/object/apply:os.abort []\n", "job.yaml:3: "),
    "an anchor in itself": ("apiVersion: v1\nkind: Pod\nspec: &a [*a]\n", "job.yaml:3: "),
    "no text": (b"kind: Pod\nspec: \xff\n", "job.yaml:2: not a UTF-8 text"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_manifest_has_its_place(hived: Hived, cluster: str, service: FakeKubernetes, what: str) -> None:
    text, words = WRONG[what]
    Path("job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused(hived("plan", "-f", "job.yaml")).startswith(words)
    assert service.planned == []


def test_manifest_that_is_refused(hived: Hived, cluster: str, manifest: Manifest) -> None:
    manifest("right", "wrong")
    where = JOB.count("\n") + 2 + JOB.splitlines().index("apiVersion: batch/v1")
    assert refused(hived("plan", "-f", "job.yaml")) == f"job.yaml:{where}: Job wrong: it asks for no GPUs"

    assert refused(hived("plan", "-f", "none.yaml")) == "-f none.yaml: cannot be read (No such file or directory)"
    Path("many.yaml").write_text("---\napiVersion: v1\nkind: Pod\n" * 1001, encoding="utf-8")
    assert "1,001 objects, and at most 1,000" in refused(hived("plan", "-f", "many.yaml"))
    assert "-f job.yaml" in refused(hived("plan"))
    assert "one or the other" in refused(hived("plan", "--vc", "vision", "-f", "job.yaml"))


# -- drain ------------------------------------------------------------------------------------------------------------


def test_drain_and_undo(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    answer = hived("drain", "gpu1")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("8 GPUs: no new jobs; 1 job still there: train\n")
    assert hived("drain", "gpu2").out.startswith("8 GPUs: no new jobs\n")
    assert json.loads(hived("drain", "gpu1", "--undo", "-o", "json").out)["undone"] is True
    assert hived("drain", "gpu2", "--undo").out.startswith("8 GPUs: jobs may come again\n")
    assert service.drained == set()
    assert refused(hived("drain", "gpu1", "--undo", "--now")).startswith("--now: sends away who runs there")


# -- the wrong kind of engine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        (["logs", "x"], "kubectl logs POD"),
        (["cancel", "x"], "kubectl delete"),
        (["events", "--export", "-"], "--event-log FILE"),
        (["submit", "--vc", "vision", "--", "x"], "kubectl apply -f FILE"),
    ],
    ids=str,
)
def test_verb_for_a_machine(hived: Hived, cluster: str, service: FakeKubernetes, verb: list[str], instead: str) -> None:
    service.add("x")
    line = refused(hived(*verb))
    assert line.startswith("the engine decides for a Kubernetes cluster; ")
    assert instead in line


def test_spec_of_kubernetes(hived: Hived, cluster: str, tmp_path: Path) -> None:
    """It is shown and compared as everywhere, and changed where it is read from."""
    shown = hived("spec", "show")
    assert (shown.code, shown.err, shown.out) == (0, "", SPEC)
    path = tmp_path / "spec.yaml"
    path.write_text(shown.out, encoding="utf-8")
    assert hived("spec", "diff", path).code == 0
    for options in ([], ["--dry-run"], ["--yes"]):
        line = refused(hived("spec", "apply", path, *options))
        way_out = "its spec is in a ConfigMap: kubectl -n hived edit configmap spec"
        assert line == f"the engine decides for a Kubernetes cluster; {way_out}"


def test_spec_of_kubernetes_in_a_file(hived: Hived, cluster: str, service: FakeKubernetes, tmp_path: Path) -> None:
    service.changes = {"source": "/etc/hived/spec.yaml"}
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    assert "its spec is the file /etc/hived/spec.yaml: edit that, or " in refused(hived("spec", "apply", path))


def test_verb_for_kubernetes(hived: Hived, machine: Running, manifest: Manifest) -> None:
    manifest("train")
    for where in (["--state", machine.folder], ["--engine", machine.url]):
        line = refused(hived("plan", "-f", "job.yaml", *where))
        assert line == "manifests are for Kubernetes, and this is the engine of one machine; plan a job"


def test_verbs_of_both_on_a_machine(hived: Hived, machine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.engine.add(gpus=2)
    monkeypatch.setenv("HIVED_ENGINE", machine.url)
    assert hived("explain", "train").out.startswith("train-1 is running")
    assert hived("plan", "--vc", "vision").code == 0
    assert hived("drain", "node-0").out.startswith("4 GPUs: no new jobs; 1 job still there: 1\n")
    assert lines(hived("vc", "ls").out)[1] == ["vision", "4", "2", "0", "0"]
    assert "train-1" in hived("vc", "show", "vision").out
    assert lines(hived("devices").out)[1] == ["node-0", "0-1", "used,", "drained", "1"]
    assert hived("context", "show").out.startswith("engine  ready, simulated devices; hived 9.9.9 on ")
    assert "no job" in refused(hived("logs", "nobody"), 4), "what the right kind of engine has not is not found"


def test_results_are_no_engine(hived: Hived, manifest: Manifest) -> None:
    manifest("train")
    view = Answering(make_app(None, FakeService(live=False), token=None, hosts=()))
    try:
        for verb in ("ps", "context show", "vc ls", "explain x", "plan --vc a", "plan -f job.yaml", "drain --yes"):
            line = refused(hived(*verb.split(), "--engine", view.url))
            assert line == f"{view.url} shows the results of a simulation; name an engine with --engine"
    finally:
        view.close()


# -- where it is ------------------------------------------------------------------------------------------------------


def test_context_is_the_address(
    hived: Hived, service: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current one, unless an option or a variable says another."""
    monkeypatch.delenv("HIVED_STATE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    service.add("train")
    answering = Answering(kubernetes_app(service, TOKEN))
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    try:
        assert "no contexts" in hived("context", "ls").err
        add = hived("context", "add", "prod", "--engine", answering.url + "/", "--token-file", "token")
        assert (add.code, add.out) == (0, "prod is added, and is the current one\n")
        assert "train" in hived("ps").out
        assert hived("context", "add", "mine", "--state", "folder").out == "mine is added\n"
        assert lines(hived("context", "ls").out) == [
            ["CURRENT", "NAME", "ENGINE", "TOKEN-FILE"],
            ["mine", str(tmp_path / "folder"), "-"],
            ["*", "prod", answering.url, str(tmp_path / "token")],
        ]
        line = refused(hived("ps", "--context", "mine"), 69)
        assert line == (
            f"no engine answers on {tmp_path}/folder/hived.sock; start one with: hived up --state {tmp_path}/folder"
        )
        assert hived("context", "use", "mine").code == 0
        assert refused(hived("ps"), 69) == line
        monkeypatch.setenv("HIVED_CONTEXT", "prod")
        assert "train" in hived("ps").out
        monkeypatch.delenv("HIVED_CONTEXT")
        monkeypatch.setenv("HIVED_ENGINE", "http://127.0.0.1:1")
        assert "http://127.0.0.1:1" in refused(hived("ps"), 69), "a variable goes before the current context"
        assert "train" in hived("ps", "--context", "prod").out
        assert "one of them" in refused(hived("ps", "--context", "prod", "--engine", answering.url))
        monkeypatch.delenv("HIVED_ENGINE")
        assert hived("context", "rm", "mine").out == "mine is removed\n"
        assert f"{tmp_path}/state/hived/hived.sock" in refused(hived("ps"), 69), "without one it is one's own folder"
        for verb in (["use", "mine"], ["rm", "mine"]):
            assert refused(hived("context", *verb), 4) == "no context 'mine'; there are prod"
        assert refused(hived("ps", "--context", "mine"), 4) == "no context 'mine'; there are prod"
    finally:
        answering.close()


def test_wrong_contexts(hived: Hived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for arguments, words in (
        (["a b", "--engine", "http://h:1"], "a context is called by letters"),
        (["a"], "either --engine URL or --state DIR"),
        (["a", "--engine", "h:1"], "http://host:port"),
        (["a", "--state", "s", "--token-file", "t"], "needs no token"),
    ):
        assert words in refused(hived("context", "add", *arguments))
    assert not (tmp_path / "hived").exists()
    (tmp_path / "hived").mkdir()
    for text in ("", "[]", '{"contexts": {"a": {"port": 3}}}'):
        (tmp_path / "hived" / "contexts.json").write_text(text, encoding="utf-8")
        monkeypatch.delenv("HIVED_ENGINE", raising=False)
        monkeypatch.delenv("HIVED_STATE", raising=False)
        for verb in (["ps"], ["context", "ls"]):
            assert "it is not what hived context writes" in refused(hived(*verb))


def test_token_is_sent(hived: Hived, service: FakeKubernetes, tmp_path: Path) -> None:
    answering = Answering(kubernetes_app(service, TOKEN))
    try:
        assert "token" in refused(hived("vc", "ls", "--engine", answering.url), 77)
        (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
        assert hived("vc", "ls", "--engine", answering.url, "--token-file", tmp_path / "token").code == 0
    finally:
        answering.close()


def test_token_of_the_environment_is_not_told_to_a_context(
    hived: Hived, service: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to the engine that HIVED_ENGINE or --engine names."""
    for name in ("HIVED_ENGINE", "HIVED_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HIVED_TOKEN", TOKEN)
    answering = Answering(kubernetes_app(service, TOKEN))
    try:
        assert hived("vc", "ls", "--engine", answering.url).code == 0
        assert hived("context", "add", "prod", "--engine", answering.url).code == 0
        for verb in (["vc", "ls"], ["vc", "ls", "--context", "prod"]):
            assert "needs the token" in refused(hived(*verb), 77)
        (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
        assert hived("vc", "ls", "--token-file", tmp_path / "token").code == 0
    finally:
        answering.close()


def test_contexts_in_a_place_of_another_kind(
    hived: Hived, completed: Completed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HIVED_ENGINE", raising=False)
    monkeypatch.delenv("HIVED_STATE", raising=False)
    file = tmp_path / "config" / "hived" / "contexts.json"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    for verb in (["ps"], ["context", "add", "a", "--state", "s"]):
        assert f"{file}: is not a file" in refused(hived(*verb)), "a pipe that nobody writes to would never end"
    assert completed("hived context use ") == []
    file.unlink()
    (tmp_path / "kept.json").write_text("{}", encoding="utf-8")
    file.symlink_to(tmp_path / "kept.json")
    assert hived("context", "add", "a", "--state", "s").code == 0
    assert file.is_symlink(), "who keeps their settings elsewhere goes on to do so"
    assert "current" in (tmp_path / "kept.json").read_text(encoding="utf-8")
    assert completed("hived context use ") == ["a"]


def test_failure_of_the_engine(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.fails = FAILURES[503]
    for verb in (["context", "show"], ["vc", "ls"], ["ps"], ["explain", "x"], ["drain", "gpu1"]):
        assert refused(hived(*verb), 69) == str(FAILURES[503])


def test_completion(completed: Completed, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    service.add("next", state="queued")
    assert completed("hived explain ") == ["next", "train"]
    assert completed("hived vc show v") == ["vision"]
    assert completed("hived ps --vc ") == ["vision", "speech"]
    assert completed("hived ps --status q") == ["queued"]


# -- YAML -------------------------------------------------------------------------------------------------------------


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_yaml_says_what_json_says(hived: Hived, machine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.engine.add()
    monkeypatch.setattr("time.time", lambda: 1.0e9)
    for verb in ("ps", "top", "explain train", "plan --vc vision", "drain --yes", "events"):
        told = json.loads(hived(*verb.split(), "-o", "json").out)
        answer = hived(*verb.split(), "-o", "yaml")
        assert (documents(answer.out), answer.code, answer.err) == ([told], 0, "")


def test_a_document_for_each_job(hived: Hived, machine: Running) -> None:
    for job in [machine.engine.add() for _ in range(2)]:
        machine.engine.print(job, "a \x1b[1mline\nand \u202e another\n")
        machine.engine.end(job)
    answer = hived("wait", 1, 2, "-o", "yaml")
    assert [told["id"] for told in documents(answer.out)] == ["1", "2"]
    shown = hived("logs", 1, "-o", "yaml").out
    assert [told["text"] for told in documents(shown)] == ["a \x1b[1mline\nand \u202e another\n"]
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    waiting = machine.engine.add()
    assert [told["state"] for told in documents(hived("cancel", waiting.id, "-o", "yaml").out)] == ["stopping"]
    assert documents(hived("submit", "--vc", "vision", "-o", "yaml", "--", "x").out)[0]["id"] == "4"


def test_lines_stay_lines(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("next", state="queued", why=(WHY,))
    said = hived("explain", "next", "-o", "yaml").out
    assert said.splitlines()[2:5] == ["text: |-", "  next is queued", f"  - {WHY}"]
