"""``hived up`` as a new user has it: the demo, the errors, the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from hived import Bind, Cluster, Member, Request
from hived.cli.up import scattered, up
from hived.engines.local.devices import spec_for
from hived.errors import InputError
from hived.spec import parse_spec
from hived.words import counted


def hived(*arguments: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    """The command, with nothing of the environment that could lead it elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIVED_", "XDG_"))}
    environment = {**kept, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "hived", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    )


def refused(*arguments: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command that ends by itself."""
    process = hived(*arguments, folder=folder)
    text, _ = process.communicate(timeout=180)
    return process.returncode, text


def test_the_demo_shows_a_preemption_and_an_explained_wait_and_leaves_nothing(tmp_path: Path) -> None:
    process = hived("up", "--demo", folder=tmp_path)
    assert process.stdout is not None
    told = ""
    deadline = time.monotonic() + 120
    try:
        for line in process.stdout:
            told += line
            seen = ["runs on demo GPUs" in told, "preempted by resnet" in told, "waits: VC vision has" in told]
            if all(seen) or time.monotonic() > deadline:
                break
        assert all(seen), told
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", told)
        assert link is not None, told
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(link.group())
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
            assert "token" not in str(page.url)
            layout = browser.get(str(page.url) + "v1/dashboard/layout").json()
        assert [vc["name"] for vc in layout["vcs"]] == ["vision", "speech", "research"]
        assert layout["synthetic"]
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=180)
    assert process.returncode == 0, told + rest
    assert "hived is down" in rest
    assert not list(tmp_path.glob("hived-demo-*"))
    assert not [pid for pid in _with_in_environment(f"TMPDIR={tmp_path}") if pid != os.getpid()]


def test_the_garbage_collector_leaves_what_is_there_at_the_start_alone(tmp_path: Path) -> None:
    at_the_end = (
        "import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count(), gc.get_threshold()))"
    )
    (tmp_path / "sitecustomize.py").write_text(at_the_end, encoding="utf-8")
    process = hived(
        "up", "--devices", "2", "--state", str(tmp_path / "state"), folder=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert process.stdout is not None
    told = ""
    while "Ctrl-C" not in told:
        told += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=180)
    frozen = re.search(r"frozen (\d+) \((\d+),", rest)
    assert frozen is not None, rest
    assert int(frozen.group(1)) > 10_000, "objects that are never looked through again"
    assert int(frozen.group(2)) > 700, "Python's own threshold looks far too often"


def test_jobs_outlive_the_engine_and_the_next_one_has_them(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state"))
    first = hived("up", "--devices", "2", "-q", *state, folder=tmp_path)
    _wait_for(tmp_path / "state" / "hived.sock", first)
    code, text = refused("submit", *state, "--vc", "default", "--gpus", "2", "--", "sleep", "300", folder=tmp_path)
    assert code == 0, text
    first.send_signal(signal.SIGTERM)
    text, _ = first.communicate(timeout=180)
    assert first.returncode == 143
    assert "1 running job" in text
    second = hived("up", "--devices", "2", "-q", *state, folder=tmp_path)
    try:
        _wait_for(tmp_path / "state" / "hived.sock", second)
        code, text = refused("ps", *state, folder=tmp_path)
        assert code == 0
        assert "sleep-1" in text
        assert "running" in text
        code, text = refused("cancel", *state, "sleep", folder=tmp_path)
        assert code == 0, text
        code, text = refused("wait", *state, "--timeout", "30s", "1", folder=tmp_path)
        assert "cancelled" in text
    finally:
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=180)
    assert second.returncode == 0


def test_a_restart_goes_on_as_the_last_start_was_and_asks_before_it_takes_cells(tmp_path: Path) -> None:
    # without --vc all of it was one VC, and who had been guaranteed was stopped for whoever came
    state = ("--state", str(tmp_path / "state"))
    shares = ("--vc", "a=2", "--vc", "b=2")

    def life(*arguments: str, of: str, kind: str) -> str:
        """Start it so, look whether the job is of this kind, and stop it again. What it said."""
        engine = hived("up", *arguments, *state, folder=tmp_path)
        _wait_for(tmp_path / "state" / "hived.sock", engine)
        if not (tmp_path / "begun").exists():
            code, text = refused("submit", *state, "--vc", "a", "--gpus", "2", "--", "sleep", "300", folder=tmp_path)
            assert code == 0, text
            (tmp_path / "begun").touch()
        code, text = refused("ps", *state, "-o", "json", folder=tmp_path)
        (job,) = json.loads(text)["jobs"]
        assert (job["vc"], job["kind"], job["placement"][0]["devices"]) == ("a", kind, [0, 1])
        engine.send_signal(signal.SIGINT)
        said, _ = engine.communicate(timeout=180)
        assert engine.returncode == 0
        (tmp_path / "state" / "hived.sock").unlink(missing_ok=True)
        assert of in said, said
        return said

    try:
        life("--devices", "4", *shares, of="a 2, b 2", kind="guaranteed")
        for others in (("--devices", "4", "--vc", "c=4"), ("--devices", "1", "--vc", "a=1")):
            code, text = refused("up", *others, *state, folder=tmp_path)
            assert code == 2
            assert "takes the cells of 1 running job" in text
            assert "sleep-1 (2 GPUs of a)" in text
            assert "--yes" in text
        code, text = refused("up", "--devices", "3", *state, folder=tmp_path)
        assert code == 2
        assert "4 GPUs are shared out as at the last start (--vc a=2 --vc b=2), and there are 3" in text
        life(of="4 simulated devices; a 2, b 2 (as at the last start)", kind="guaranteed")
        life("--devices", "8", of="8 simulated devices; a 2, b 2", kind="guaranteed")
        life("--devices", "4", "--vc", "c=4", "--yes", of="c 4", kind="opportunistic")
        life(of="c 4 (as at the last start)", kind="opportunistic")
        life("--devices", "4", *shares, of="sleep-1 is guaranteed again", kind="guaranteed")
    finally:
        engine = hived("up", *state, folder=tmp_path)
        _wait_for(tmp_path / "state" / "hived.sock", engine)
        refused("cancel", *state, "1", folder=tmp_path)
        refused("wait", *state, "--timeout", "30", "1", folder=tmp_path)
        engine.send_signal(signal.SIGINT)
        engine.communicate(timeout=180)


@pytest.mark.parametrize(
    ("devices", "shares", "said"),
    [
        (6, {"a": 4}, {"a": ("4 cells of 1 GPU", 1, "1 or 6 GPUs, as 6 is no power of two")}),
        (5, {"a": 5}, {}),
        (7, {"a": 3, "b": 1}, {"a": ("3 cells of 1 GPU", 1, "1 or 7 GPUs, as 7 is no power of two")}),
        (
            12,
            {"a": 8, "b": 4},
            {
                "a": ("8 cells of 1 GPU", 1, "1 or 12 GPUs, as 12 is no power of two"),
                "b": ("4 cells of 1 GPU", 1, "1 or 12 GPUs, as 12 is no power of two"),
            },
        ),
        (8, {"a": 4, "b": 3}, {"b": ("1 cell of 2 GPUs and 1 cell of 1 GPU", 2, "1, 2, 4 or 8 GPUs")}),
        (64, {"a": 32}, {"a": ("2 cells of 16 GPUs", 16, "1, 2, 4, 8, 16 or 64 GPUs")}),
        (1, {"a": 1}, {}),
    ],
)
def test_a_share_that_is_no_cell_is_told_with_the_most_that_a_task_can_have(
    devices: int, shares: dict[str, int], said: dict[str, tuple[str, int, str]]
) -> None:
    # of 6 GPUs a=4 was four single ones, and no job of two could ever start, without a word at the start
    spec = spec_for("here", devices, "GPU", list(shares.items()))
    assert scattered(spec) == [
        f"{vc} has {cells}, so no guaranteed task of it can have more than {counted(most, 'GPU')}: cells here have "
        f"{sizes}; give it one of those numbers, or give cells of your own in a spec: hived up spec.yaml"
        for vc, (cells, most, sizes) in said.items()
    ]
    for vc, share in shares.items():
        most = said[vc][1] if vc in said else share
        for gpus in range(1, share + 1):
            decision = Cluster(spec).schedule(Request("job", vc=vc, members=(Member(pods=1, leaf_cells=gpus),)))
            assert isinstance(decision, Bind) is (gpus <= most)


def test_the_guides_spec_for_six_gpus_gives_pairs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "one-machine.md").read_text(encoding="utf-8")
    text = re.search(r"^    physicalCluster:\n(    .*\n)+", guide, re.MULTILINE)
    assert text is not None
    cluster = Cluster(parse_spec(textwrap.dedent(text[0]), "the guide"))
    for number in range(2):
        job = Request(f"job-{number}", vc="vision", members=(Member(pods=1, leaf_cells=2),))
        decision = cluster.schedule(job)
        assert isinstance(decision, Bind)
        cluster.commit(decision)


def test_a_start_says_which_shares_are_no_cells(tmp_path: Path) -> None:
    engine = hived("up", "--devices", "6", "--vc", "a=4", "--state", str(tmp_path / "state"), folder=tmp_path)
    _wait_for(tmp_path / "state" / "hived.sock", engine)
    engine.send_signal(signal.SIGINT)
    said, _ = engine.communicate(timeout=180)
    (line,) = [line for line in said.splitlines() if line.startswith("hived: ")]
    assert "a has 4 cells of 1 GPU" in line


def test_a_log_does_not_have_the_token(tmp_path: Path) -> None:
    # whoever may read the journal of a service could have run anything as its user
    engine = hived(
        "up", "--devices", "2", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), folder=tmp_path
    )
    _wait_for(tmp_path / "state" / "hived.sock", engine)
    engine.send_signal(signal.SIGINT)
    said, _ = engine.communicate(timeout=180)
    assert re.search(r"dashboard  http://127\.0\.0\.1:\d+/\n", said), said
    assert (tmp_path / "state" / "token").read_text() not in said
    assert f"{tmp_path}/state/token" in said


def test_a_group_is_not_let_in_to_an_engine_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # every member could have run anything as root
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match=r"--group gpu: hived up runs as root.*start it as a user of its own"):
        up(devices=2, group="gpu", state=tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up"], ["no GPUs found", "--devices 8", "--demo"]),
        (["up", "--demo", "--devices", "4"], ["--demo brings its own cluster"]),
        (["up", "spec.yaml", "--devices", "4"], ["not both"]),
        (["up", "spec.yaml", "--vc", "a=1"], ["virtualClusters"]),
        (["up", "none.yaml", "--simulated"], ["none.yaml"]),
        (["up", "--devices", "4", "--vc", "a"], ["--vc a", "vision=4"]),
        (["up", "--devices", "4", "--vc", os.fsdecode(b"\xff=1")], ["--vc", "vision=4"]),
        (["up", "--devices", "4", "--vc", "a=0"], ["a=0", "at least 1"]),
        (["up", "--devices", "4", "--vc", "a=1", "--vc", "a=1"], ["given twice"]),
        (["up", "--devices", "4", "--vc", "a=3", "--vc", "b=2"], ["5 GPUs are shared out", "there are 4"]),
        (["up", "--devices", "4", "--listen", "8080"], ["--listen 8080", "127.0.0.1:8080"]),
        (["up", "--devices", "4", "--listen", "no.such.host.invalid:1"], ["no.such.host.invalid"]),
        (["up", "--devices", "4", "--group", "no-such-group"], ["no-such-group"]),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("physicalCluster: {}\n")
    code, text = refused(*arguments, "--state", str(tmp_path / "state"), folder=tmp_path)
    assert code == 2, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _with_in_environment(text: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if text.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found
