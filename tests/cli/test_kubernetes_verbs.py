"""The verbs that ask an engine on Kubernetes, over real HTTP; and what is said to who asks the wrong kind of engine."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hived.cli import addresses, options
from hived.server.app import make_app

from ..server.fakes import FAILURES, TOKEN, WHY, Answering, FakeKubernetes, FakeService, Running, kubernetes_app
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


# -- status -----------------------------------------------------------------------------------------------------------


def test_status(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train", gpus=6)
    service.add("sweep", vc="speech", gpus=2, priority=-1)
    service.add("next", state="queued", gpus=8)
    answer = hived("status")
    assert (answer.code, answer.err) == (0, "")
    facts, table = answer.out.split("\n\n")
    assert re.sub(r"loaded \d+m ago", "loaded 1m ago", facts).splitlines() == [
        f"engine  ready, decides as hived-0; hived 9.9.9 on {cluster}, up 2h",
        "spec    configmap/hived/spec, loaded 1m ago",
        "nodes   2: 2 healthy",
        "GPUs    16: 6 guaranteed, 2 opportunistic, 8 idle",
        "groups  2 running, 1 queued",
        "safety  no VC can take what the spec reserves for another, with 1 cell to spare where it is tightest",
        "now     all 16 reserved GPUs can be had",
    ]
    assert lines(table) == [
        ["VC", "RESERVED", "USED", "BORROWED", "WAITING"],
        ["vision", "8", "6", "0", "1"],
        ["speech", "8", "0", "2", "0"],
    ]
    assert hived("vc", "ls").out == table
    told = json.loads(hived("vc", "ls", "-o", "json").out)
    assert [vc["name"] for vc in told] == ["vision", "speech"]
    assert yaml.safe_load(hived("vc", "ls", "-o", "yaml").out) == told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # with half of the GPUs bad it said that every VC can have what it reserves
        (
            {"bad": 8, "unavailable": 8},
            [
                "safety  no VC can take what the spec reserves for another, with 1 cell to spare",
                "now     8 of 16 reserved GPUs can be had; 8 are bad or kept for others\n",
            ],
        ),
        ({"unavailable": 8, "doomed": 1}, ["kept for others, 1 reserved cell cannot be healthy (hived vc show VC)"]),
        ({"leader": False, "holder": "hived-1"}, ["ready, stands by; hived-1 decides;"]),
        ({"leader": False, "holder": ""}, ["stands by; nobody decides"]),
        ({"holder": ""}, ["ready, decides;"]),
        ({"bad": 8, "reserved": 4}, ["0 opportunistic, 4 kept for a group, 8 bad, 4 idle", "groups  none"]),
        (
            {"reserved": 4, "bad": 2, "foreign": 3, "foreign_pods": ["gpu2: pod team/serve has 3 of its GPUs"]},
            [
                "4 kept for a group, 3 of pods that HiveD did not place, 2 bad, 7 idle",
                "gpu2: pod team/serve has 3 of its GPUs",
            ],
        ),
        ({"vcs": [], "safety_margin": None}, ["safety  nothing is reserved"]),
        ({"safety_margin": -1}, ["safety  broken: some VC cannot have what it reserved"]),
    ],
)
def test_status_of_what_is_wrong(
    hived: Hived, cluster: str, service: FakeKubernetes, changes: dict[str, object], words: list[str]
) -> None:
    service.changes = changes
    answer = hived("status")
    assert answer.code == 0
    assert "every VC can have" not in answer.out
    for some in words:
        assert some in answer.out


def test_status_of_a_wrong_spec_and_nodes(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    told = service.status()
    service.changes = {
        "spec": told.spec.model_copy(update={"problem": "spec:3: \x1b[2J no such cell type"}),
        "nodes": told.nodes.model_copy(update={"healthy": 1, "bad": 1, "why": ["gpu2: cordoned"], "unmanaged": 3}),
    }
    said = hived("status").out
    assert r"a later one was refused: spec:3: \x1b[2J no such cell type" in said
    assert "2: 1 healthy, 1 bad; 3 more in Kubernetes that the spec does not have" in said
    assert "gpu2: cordoned" in said


def test_status_of_one_not_ready(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.changes = {"ready": False}
    answers = [hived("status", "-o", form) for form in ("table", "json", "yaml")]
    assert [(answer.code, answer.err) for answer in answers] == [(69, "")] * 3
    assert answers[0].out.startswith("engine  not ready, decides")
    assert json.loads(answers[1].out)["ready"] is yaml.safe_load(answers[2].out)["ready"] is False


def test_status_fits_a_terminal(cluster: str, service: FakeKubernetes) -> None:
    service.changes = {"spec": service.status().spec.model_copy(update={"problem": "word " * 60})}
    with Terminal(["status"], width=80) as terminal:
        assert terminal.code() == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen)
    assert plain.count("word ") + plain.count("word\r") >= 55, "it goes on below itself, and is not cut"
    assert all(len(line.rstrip()) <= 80 for line in plain.splitlines())
    assert "\x1b[32mready" in terminal.seen
    assert "BORROWED" in plain


# -- virtual clusters and groups --------------------------------------------------------------------------------------


def test_vc_with_cells_and_groups(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train", gpus=4)
    service.add("next", state="queued", gpus=8, priority=5, why=(WHY, "more\nwords"))
    service.doomed = ["NODE of RACK, on n\x1b9"]
    answer = hived("vc", "show", "vision")
    assert (answer.code, answer.err) == (0, "")
    facts, running, waiting = answer.out.split("\n\n")
    assert facts.splitlines() == [
        "VC      vision",
        "in use  4 of 8 reserved GPUs, 0 borrowed",
        "cells   1 x RACK.NODE of 4 GPUs",
        "        1 x RACK.NODE of 4 GPUs, pinned: corner",
        r"doomed  NODE of RACK, on n\x1b9",
    ]
    assert lines(running) == [
        ["RUNNING", "GPUS", "PODS", "PRIO", "STATE", "AGE", "WHERE/WHY"],
        ["train", "4", "1/2", "0", "running", "3m", "gpu1:0-3"],
    ]
    assert lines(waiting)[0][0] == "WAITING"
    assert waiting.splitlines()[1].split(maxsplit=6) == [
        "next", "8", "1/2", "5", "queued", "3m", rf"{WHY}; more\x0awords",
    ]  # fmt: skip


def test_empty_and_full_vc(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    """There are no tables of nothing; of a long list it is said where the rest is."""
    for number in range(101):
        service.add(f"g{number}")
    answer = hived("vc", "show", "speech")
    assert (answer.code, answer.err) == (0, "no groups\n")
    assert "WHERE/WHY" not in answer.out
    assert hived("vc", "show", "vision").err == "the first 100; all of them: hived groups --vc vision -n 0\n"
    assert_understood(["groups", "--vc", "vision", "-n", "0"])


def test_unknown_vc(hived: Hived, cluster: str) -> None:
    for name in ("nobody", "..", "a/b", "?vc=vision"):
        line = refused(hived("vc", "show", name), 4)
        assert line == f"there is no virtual cluster {name!r}; there are vision, speech"


def test_groups(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("b-waits", state="queued", why=(WHY,))
    service.add("a-runs", gpus=2)
    service.add("c-lent", vc="speech", gpus=1, priority=-1)
    service.add("d-lazy", gpus=1, priority=3, kind="opportunistic")
    service.add("e-comes", state="reserved", gpus=4, why=("until c-lent has gone",))
    service.add("f-gone", state="stopping")
    answer = hived("groups")
    assert (answer.code, answer.err) == (0, "")
    head, *rows = answer.out.splitlines()
    assert head.split() == ["NAME", "VC", "GPUS", "PODS", "PRIO", "STATE", "AGE", "WHERE/WHY"]
    assert [row.split(maxsplit=7) for row in rows] == [
        ["a-runs", "vision", "2", "1/2", "0", "running", "3m", "gpu1:0-1"],
        ["b-waits", "vision", "4", "1/2", "0", "queued", "3m", WHY],
        ["c-lent", "speech", "1", "1/2", "opp", "running", "3m", "gpu1:0"],
        ["d-lazy", "vision", "1", "1/2", "3", "running", "3m", "gpu1:0 (GPUs that others leave idle)"],
        ["e-comes", "vision", "4", "1/2", "0", "reserved", "3m", "gpu1:0-3 until c-lent has gone"],
        ["f-gone", "vision", "4", "1/2", "0", "stopping", "3m", "-"],
    ]
    assert [row[0] for row in lines(hived("groups", "--vc", "speech").out)[1:]] == ["c-lent"]
    assert [row[0] for row in lines(hived("groups", "--status", "queued").out)[1:]] == ["b-waits"]


def test_number_of_groups(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    answer = hived("groups", "--vc", "vision", "--status", "queued")
    assert (answer.code, answer.out, answer.err) == (0, "", "no groups of vision that are queued\n")
    line = refused(hived("groups", "--status", "lost"))
    assert line == "--status lost: no state of a group; one of queued, reserved, running, stopping, backoff"
    for number in range(1050):
        service.add(f"g{number:04}")
    answer = hived("groups")
    assert (len(answer.out.splitlines()), answer.err) == (101, "100 of 1,050 groups; all of them: -n 0\n")
    answer = hived("groups", "-n", 1010)
    assert [row[0] for row in lines(answer.out)[-2:]] == ["g1008", "g1009"]
    every = hived("groups", "-n", 0, "-o", "json")
    told = json.loads(every.out)
    assert (len({group["name"] for group in told["groups"]}), told["total"], every.err) == (1050, 1050, "")


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
        assert line == f"no name has {len(ref):,} characters; hived groups lists the groups"
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
    assert [group["outcome"] for group in told["groups"]] == outcomes
    sent = service.planned[0].objects
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


def test_plan_without_an_address(
    hived: Hived, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of manifests: the engine is that on Kubernetes, and its error is not about the socket of an engine here."""
    monkeypatch.setenv("HIVED_ENGINE", "")
    monkeypatch.setattr("hived.cli.options.SCHEDULER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answer = hived("plan", "-f", manifest("one"))
    assert answer.code == 69
    assert "no engine answers on http://127.0.0.1:1; reach that of the cluster with kubectl port-forward" in answer.err


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
    names = [thing["metadata"]["name"] for thing in request.objects]  # type: ignore[index]  # JSON
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
    assert "hived plan -f job.yaml" in refused(hived("plan", "--vc", "vision"))
    assert "-f job.yaml" in refused(hived("plan"))
    assert "one or the other" in refused(hived("plan", "--vc", "vision", "-f", "job.yaml"))


# -- drain ------------------------------------------------------------------------------------------------------------


def test_drain_and_undo(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    answer = hived("drain", "gpu1")
    assert (answer.code, answer.out, answer.err) == (0, "gpu1 (8 GPUs): no new pods; 1 group still there: train\n", "")
    assert hived("drain", "gpu2").out == "gpu2 (8 GPUs): no new pods\n"
    assert json.loads(hived("drain", "gpu1", "--undo", "-o", "json").out)["drained"] is False
    assert hived("drain", "gpu2", "--undo").out == "gpu2 (8 GPUs): pods may come again\n"
    assert service.drained == set()


# -- the wrong kind of engine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        (["ps"], "hived groups"),
        (["logs", "x"], "kubectl logs POD"),
        (["cancel", "x"], "kubectl delete"),
        (["wait", "x"], "kubectl wait"),
        (["events"], "kubectl get events"),
        (["events", "--export", "-"], "kubectl"),
        (["submit", "--vc", "vision", "--", "x"], "kubectl apply -f FILE"),
    ],
    ids=str,
)
def test_verb_for_a_machine(hived: Hived, cluster: str, verb: list[str], instead: str) -> None:
    line = refused(hived(*verb))
    assert line.startswith(f"{cluster} decides for a Kubernetes cluster; there use: {instead}")


def test_drain_of_a_machine_alone(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    assert "decides for a Kubernetes cluster; there say which node: hived drain NODE" in refused(hived("drain"))
    line = refused(hived("drain", "gpu1", "--device", 3))
    assert "kubectl annotate node gpu1 hived.io/bad-devices=3" in line
    assert "kubectl drain gpu1" in refused(hived("drain", "gpu1", "--now"))
    assert service.drained == set()


ON_KUBERNETES = [["status"], ["vc", "ls"], ["vc", "show", "vision"], ["groups"]]


def test_verb_for_kubernetes(hived: Hived, machine: Running, manifest: Manifest) -> None:
    for verb in ON_KUBERNETES:
        instead = "hived ps" if verb == ["groups"] else "hived top"
        line = refused(hived(*verb, "--engine", machine.url))
        assert line == f"{machine.url} is the engine of one machine; there use: {instead}"
    manifest("train")
    for where in (["--state", machine.folder], ["--engine", machine.url]):
        line = refused(hived("plan", "-f", "job.yaml", *where))
        assert "is the engine of one machine; manifests (-f) are for Kubernetes" in line
        assert "hived plan --vc VC --gpus N" in line


def test_verbs_of_both_on_a_machine(hived: Hived, machine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.engine.add(gpus=2)
    monkeypatch.setenv("HIVED_ENGINE", machine.url)
    assert hived("explain", "train").out.startswith("train-1 is running")
    assert hived("plan", "--vc", "vision").code == 0
    assert hived("drain", "node-0").out.startswith("4 GPUs: no new jobs; 1 job still there: 1\n")
    assert "no job" in refused(hived("logs", "nobody"), 4), "what the right kind of engine has not is not found"


def test_results_are_no_engine(hived: Hived, manifest: Manifest) -> None:
    manifest("train")
    view = Answering(make_app(None, FakeService(live=False), token=None, hosts=()))
    try:
        for verb in ("ps", "status", "groups", "explain x", "plan --vc a", "plan -f job.yaml", "drain"):
            line = refused(hived(*verb.split(), "--engine", view.url))
            assert line == f"{view.url} shows the results of a simulation; name an engine with --engine"
    finally:
        view.close()


# -- where it is ------------------------------------------------------------------------------------------------------


def test_default_address(hived: Hived, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses.SCHEDULER_URL == "http://127.0.0.1:9096"
    monkeypatch.delenv("HIVED_ENGINE")
    monkeypatch.setattr(options, "SCHEDULER_URL", cluster)
    for verb in ON_KUBERNETES:
        assert hived(*verb).code == 0
        assert "http://127.0.0.1:9096" in "".join(hived(*verb[:2], "--help").out.split())


def test_nobody_answers(hived: Hived) -> None:
    line = refused(hived("status", "--engine", "http://127.0.0.1:1"), 69)
    assert line.startswith("no engine answers on http://127.0.0.1:1; reach that of the cluster with kubectl port-")


def test_token_is_sent(hived: Hived, service: FakeKubernetes, tmp_path: Path) -> None:
    answering = Answering(kubernetes_app(service, TOKEN))
    try:
        assert "token" in refused(hived("status", "--engine", answering.url), 77)
        (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
        assert hived("status", "--engine", answering.url, "--token-file", tmp_path / "token").code == 0
    finally:
        answering.close()


def test_failure_of_the_engine(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.fails = FAILURES[503]
    for verb in (["status"], ["vc", "ls"], ["groups"], ["explain", "x"], ["drain", "gpu1"]):
        assert refused(hived(*verb), 69) == str(FAILURES[503])


def test_completion(completed: Completed, cluster: str, service: FakeKubernetes) -> None:
    service.add("train")
    service.add("next", state="queued")
    assert completed("hived explain ") == ["next", "train"]
    assert completed("hived vc show v") == ["vision"]
    assert completed("hived groups --vc ") == ["vision", "speech"]
    assert completed("hived groups --status q") == ["queued"]


# -- YAML -------------------------------------------------------------------------------------------------------------


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_yaml_says_what_json_says(hived: Hived, machine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.engine.add()
    monkeypatch.setattr("time.time", lambda: 1.0e9)
    for verb in ("ps", "top", "explain train", "plan --vc vision", "drain", "events"):
        told = json.loads(hived(*verb.split(), "-o", "json").out)
        answer = hived(*verb.split(), "-o", "yaml")
        assert (documents(answer.out), answer.code, answer.err) == ([told], 0, "")


def test_a_document_for_each_job(hived: Hived, machine: Running) -> None:
    for job in [machine.engine.add() for _ in range(2)]:
        machine.engine.print(job, "a \x1b[1mline\nand \u202e another\n")
        machine.engine.end(job)
    answer = hived("wait", 1, 2, "-o", "yaml")
    assert [told["id"] for told in documents(answer.out)] == [1, 2]
    shown = hived("logs", 1, "-o", "yaml").out
    assert [told["text"] for told in documents(shown)] == ["a \x1b[1mline\nand \u202e another\n"]
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    waiting = machine.engine.add()
    assert [told["state"] for told in documents(hived("cancel", waiting.id, "-o", "yaml").out)] == ["stopping"]
    assert documents(hived("submit", "--vc", "vision", "-o", "yaml", "--", "x").out)[0]["id"] == 4


def test_lines_stay_lines(hived: Hived, cluster: str, service: FakeKubernetes) -> None:
    service.add("next", state="queued", why=(WHY,))
    said = hived("explain", "next", "-o", "yaml").out
    assert said.splitlines()[2:5] == ["text: |-", "  next is queued", f"  - {WHY}"]
