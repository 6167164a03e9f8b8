"""``hived up`` as a new user has it: the demo, the errors, the end."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import re
import signal
import socket
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from hived import Bind, Cluster, Member, Request
from hived.cli.up import JobsRunAs, _Up, _with_guests, hides_the_machines, open_jobs, scattered, up
from hived.engines.local.devices import spec_for
from hived.engines.local.environment import environments
from hived.engines.local.job_users import unknown_accounts
from hived.engines.local.store import LastStart, Store, last_start
from hived.errors import InputError
from hived.spec import parse_spec
from hived.spec.compiled import AccessSpec, GuestsOf
from hived.words import counted

from .helpers import Engine, Hived, refused

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "one-machine.md"


def test_demo(tmp_path: Path) -> None:
    """It shows a preemption and a wait with its reason, serves the dashboard, and leaves nothing."""
    told = ""
    faster = (
        "from hived.engines.local import demo; demo._SCRIPT = tuple((at / 10, *job) for at, *job in demo._SCRIPT); "
    )
    with Engine(tmp_path, "--demo", state=False, first=faster) as engine:
        for words in ("runs on demo GPUs", "preempted by resnet", "waits: VC vision has", "/token\n"):
            while words not in told:
                told += engine.line()
        link = re.search(r"dashboard  (http://127\.0\.0\.1:\d+/)\n", told)
        kept = re.search(r"with \?token=\.\.\. as it is in (\S+/token)\n", told)
        assert link is not None, told
        assert kept is not None, told
        token = Path(kept[1]).read_text(encoding="ascii")
        assert token not in told, "it would stay in whatever reads the output"
        with httpx.Client(follow_redirects=True, timeout=120) as browser:
            page = browser.get(f"{link[1]}?token={token}")
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
            assert "token" not in str(page.url)
            layout = browser.get(str(page.url) + "v1/dashboard/layout").json()
        assert [vc["name"] for vc in layout["vcs"]] == ["vision", "speech", "research"]
        assert layout["synthetic"]
        code, rest = engine.stop(signal.SIGINT)
    assert code == 0, told + rest
    assert "hived is down" in rest
    assert not list(tmp_path.glob("hived-demo-*"))
    assert not [pid for pid, variables in environments() if f"TMPDIR={tmp_path}".encode() in variables]


def test_a_start_that_takes_virtual_clusters_from_their_members(
    hived: Hived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --vc and spec the teams of the last start were gone, and nobody was asked."""
    before = spec_for("node", 8, "GPU", (("a", 4), ("b", 2), ("c", 2)))
    a, b, c = before.virtual_clusters
    access = AccessSpec(members=("ann", "group:lab"), admins=("ann",))
    before = replace(before, virtual_clusters=(replace(a, access=access), b, replace(c, access=access)))
    monkeypatch.setattr("hived.cli.up.last_start", lambda _: LastStart(before, True, None))
    answer = hived("up", "--devices", 8, "--vc", "c=8", "--state", tmp_path / "state")
    assert answer.code == 2
    assert "takes away virtual clusters:\n  a, with 2 members\n" in answer.err
    assert "  b" not in answer.err


def test_lives_of_an_engine(hived: Hived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start goes on as the last one did, asks before it takes the cells of a job, and has the jobs that run on."""
    state = ("--state", tmp_path / "state")
    shares = ("--devices", "8", "--vc", "a=2", "--vc", "b=3")

    def kind() -> str:
        """Of the job, which is where it was."""
        (job,) = json.loads(hived("ps", *state, "-o", "json").out)["jobs"]
        assert (job["vc"], job["tasks"][0]["devices"]) == ("a", [0, 1])
        return str(job["kind"])

    frozen = "import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count(), gc.get_threshold())); "
    with Engine(tmp_path, *shares, "--listen", "127.0.0.1:0", first=frozen) as engine:
        assert hived("submit", *state, "--vc", "a", "--gpus", 2, "--", "sleep", "300").code == 0
        assert kind() == "guaranteed"
        code, said = engine.stop(signal.SIGTERM)
    assert code == 143
    assert "1 running job" in said
    assert "b has 1 cell of 2 GPUs and 1 cell of 1 GPU" in said
    # whoever may read the journal of a service could have run anything as its user
    assert re.search(r"dashboard  http://127\.0\.0\.1:\d+/\n", said), said
    assert (tmp_path / "state" / "token").read_text() not in said
    assert f"{tmp_path}/state/token" in said
    counts = re.search(r"frozen (\d+) \((\d+),", said)
    assert counts is not None, said
    assert int(counts[1]) > 10_000, "the garbage collector leaves what is there at the start alone"
    assert int(counts[2]) > 700, "Python's own threshold looks far too often"

    for others in (("--devices", "8", "--vc", "c=8"), ("--devices", "1", "--vc", "a=1")):
        answer = hived("up", *others, *state)
        assert answer.code == 2
        for words in ("takes the cells of 1 running job", "sleep-1 (2 GPUs of a)", "--yes"):
            assert words in answer.err
        assert ("a, with 1 job not ended" in answer.err) is ("c=8" in others)
    line = refused(hived("up", "--devices", "3", *state))
    assert "5 GPUs are shared out as at the last start (--vc a=2 --vc b=3), and there are 3" in line
    chosen = []

    async def run(start: _Up) -> int:
        chosen.append(start.chosen)
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(_Up, "run", run)
        assert hived("up", "--devices", "16", *state).code == 0
    assert chosen[0].devices.what == "16 simulated devices"
    assert chosen[0].shares == (("a", 2), ("b", 3))

    # without --vc all of it was one VC, and who had been guaranteed was stopped for whoever came
    with Engine(tmp_path, "-q") as engine:
        assert kind() == "guaranteed"
        code, said = engine.stop(signal.SIGINT)
    assert code == 0
    assert "8 simulated devices; a 2, b 3 (as at the last start)" in said
    with Engine(tmp_path, "--devices", "8", "--vc", "c=8", "--yes"):
        assert kind() == "opportunistic"
    with Engine(tmp_path, *shares) as engine:
        assert kind() == "guaranteed"
        assert hived("cancel", *state, "sleep").code == 0
        assert "cancelled" in hived("wait", *state, "1").out
        assert "sleep-1 is guaranteed from now on: its turn in a has come" in engine.stop(signal.SIGINT)[1]


def test_stopped_from_elsewhere(hived: Hived, tmp_path: Path) -> None:
    """It ends as by Ctrl-C, with 0; what there is none to be stopped, and what it must not be given, is said."""
    state = ("--state", tmp_path / "state")
    line = refused(hived("up", "--stop", *state), 4)
    assert line == f"no engine has {tmp_path}/state: nothing was stopped; of another folder: --state"
    lock = tmp_path / "state" / "engine.lock"
    with subprocess.Popen(["sleep", "60"]) as stranger:  # nobody's word is taken for whose it is
        lock.parent.mkdir()
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for pid in (str(stranger.pid), "1", "", "0", "-3", "x", "9" * 19):
                lock.write_text(pid)
                assert "an engine has " in refused(hived("up", "--stop", *state), 69)
        lock.write_text(str(stranger.pid))
        refused(hived("up", "--stop", *state), 4)
        assert stranger.poll() is None
        stranger.kill()
    with Engine(tmp_path, "--devices", "2") as engine:
        assert hived("submit", *state, "--vc", "default", "--", "sleep", "300").code == 0
        assert "--stop ends an engine, and starts none" in refused(hived("up", "--stop", "--devices", 2, *state))
        assert "stop it (hived up --stop), or give another --state" in refused(hived("up", *state))
        answer = hived("up", "--stop", *state)
        assert answer.code == 0, answer.err
        assert re.fullmatch(r"the engine \(pid \d+\) has ended; its jobs run on, .* takes them over\n", answer.out)
        code, said = engine.stop(signal.SIGTERM)
    assert code == 0
    assert "1 running job" in said
    refused(hived("up", "--stop", *state), 4)  # its lock is left, which nobody has
    with Engine(tmp_path):
        assert hived("cancel", *state, "sleep").code == 0


@pytest.mark.parametrize(
    ("devices", "shares", "said"),
    [
        # of 6 GPUs a=4 was four single ones, and no job of two could ever start, without a word at the start
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
def test_share_that_is_no_cell(devices: int, shares: dict[str, int], said: dict[str, tuple[str, int, str]]) -> None:
    """It is told with the most that a task can have, which is true."""
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


def test_spec_of_the_guide_gives_pairs() -> None:
    text = re.search(r"^    physicalCluster:\n(    .*\n)+", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert text is not None
    cluster = Cluster(parse_spec(textwrap.dedent(text[0]), "the guide"))
    for number in range(2):
        job = Request(f"job-{number}", vc="vision", members=(Member(pods=1, leaf_cells=2),))
        decision = cluster.schedule(job)
        assert isinstance(decision, Bind)
        cluster.commit(decision)


def test_an_engine_of_root_runs_nobody_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # every member of its group could have run anything as root
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match=r"--jobs-run-as engine: hived up runs as root.*User= in a unit"):
        up(devices=2, group="gpu", jobs_run_as=JobsRunAs.ENGINE, state=tmp_path / "state")


def test_root_takes_no_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # its files were root's from then on, and its jobs ran as root
    state = tmp_path / "state"
    Store(state).close()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stat = Path.stat

    def of_another(path: Path, **rest: bool) -> os.stat_result:
        found = stat(path, **rest)
        return os.stat_result((*found[:4], 4_000_001, *found[5:])) if path.name == "hived.db" else found

    monkeypatch.setattr(Path, "stat", of_another)
    with pytest.raises(InputError, match=r"state is #4000001's, and hived up runs as root.*sudo -u #4000001 hived up"):
        up(devices=2, state=state)


def test_who_reads_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the engine, unless jobs of a whole group are its; root lets everybody pass to what is theirs."""
    own = grp.getgrgid(os.getegid()).gr_name
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def modes() -> tuple[int, int]:
        return tmp_path.stat().st_mode & 0o7777, (tmp_path / "jobs").stat().st_mode & 0o7777

    open_jobs(tmp_path, own, True)
    assert modes() == (0o710, 0o2750)
    assert (tmp_path / "jobs").group() == own
    open_jobs(tmp_path, own, False)
    assert modes() == (0o710, 0o700)
    open_jobs(tmp_path, None, False)
    assert modes()[1] == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    open_jobs(tmp_path, own, False)
    assert modes() == (0o711, 0o711)


def test_door_is_kept(tmp_path: Path, hived: Hived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it listens, for which group, and its exchange, until another start says otherwise."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    own = grp.getgrgid(os.getegid()).gr_name
    started: list[tuple[object, ...]] = []

    async def run(start: _Up) -> int:
        started.append((start.listen, start.door.group, start.exchange.value))
        start.keep_door()
        return 0

    monkeypatch.setattr(_Up, "run", run)
    for arguments in (
        ("--listen", "127.0.0.1:0", "--group", own, "--exchange", "auction"),
        (),
        ("--vc", "other=2"),  # another cluster behind the same door
        ("--listen", "none"),
        ("--group", "none", "--exchange", "balanced"),
        (),
    ):
        assert hived("up", "--devices", 2, *arguments, "--state", tmp_path / "state").code == 0
    here = ("127.0.0.1", 0)
    assert started == [
        (here, own, "auction"), (here, own, "auction"), (here, own, "auction"), (None, own, "auction"),
        (None, None, "balanced"), (None, None, "balanced"),
    ]  # fmt: skip


def test_door_that_is_kept_and_closed(tmp_path: Path, hived: Hived) -> None:
    """A start says that its address is that of the last one, and how it is given up."""
    with Engine(tmp_path, "--devices", "2", "--listen", "127.0.0.1:0", "-q") as engine:
        told = engine.stop(signal.SIGINT)[1]
    assert "dashboard  http://127.0.0.1:" in told
    with Engine(tmp_path, "-q") as engine:  # both were forgotten, and colleagues had neither
        told = engine.stop(signal.SIGINT)[1]
    assert "dashboard  http://127.0.0.1:" in told
    state = ("--state", tmp_path / "state")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with contextlib.closing(Store(tmp_path / "state")) as store:
            before = store.last_event(), store.value("door"), last_start(store)
        line = refused(hived("up", "--devices", 2, "--vc", "other=2", "--listen", f"127.0.0.1:{port}", *state))
        assert "last start" not in line
        with contextlib.closing(Store(tmp_path / "state")) as store:
            # it had another cluster by then, and would have moved jobs for it
            assert (store.last_event(), store.value("door"), last_start(store)) == before
            store.keep((), (), values={"door": json.dumps({"listen": f"127.0.0.1:{port}"})})
        assert "as at the last start; --listen none" in refused(hived("up", *state))


def test_full_disk_of_its_output(hived: Hived, tmp_path: Path) -> None:
    # its journal was on the disk that a job had filled: the next line of it ended the engine
    state = ("--state", tmp_path / "state")
    with Path("/dev/full").open("wb") as full, Engine(tmp_path, "--devices", "2", stdout=full) as engine:
        assert hived("submit", *state, "--vc", "default", "--", "sleep", "300").code == 0
        assert hived("cancel", *state, "sleep").code == 0
        assert "cancelled" in hived("wait", *state, "1").out
        assert engine.stop(signal.SIGINT)[0] == 0


def test_jobs_of_another_database(hived: Hived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is refused with both ways out, and one of them is an option."""
    state = tmp_path / "state"
    task = state / "jobs" / "7" / "1" / "0"
    task.mkdir(parents=True)
    start = ("up", "--devices", 4, "--state", state)
    line = refused(hived(*start))
    for words in (f"{state}: hived.db has 0 jobs and knows nothing of jobs/7", "back", "hived up --set-aside-jobs"):
        assert words in line

    async def run(_: _Up) -> int:
        return 0

    monkeypatch.setattr(_Up, "run", run)
    answer = hived(*start, "--set-aside-jobs")
    assert (answer.code, task.exists()) == (0, False)
    assert "1 folder of unknown jobs moved to" in answer.err
    assert hived(*start).code == 0


FOUR = ["--devices", "4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no GPUs found", "--devices 8", "--demo"]),
        (["--demo", *FOUR], ["--demo brings its own cluster"]),
        (["spec.yaml", *FOUR], ["not both"]),
        (["spec.yaml", "--vc", "a=1"], ["virtualClusters"]),
        (["none.yaml", "--simulated"], ["none.yaml"]),
        ([*FOUR, "--vc", "a"], ["--vc a", "vision=4"]),
        ([*FOUR, "--vc", os.fsdecode(b"\xff=1")], ["--vc", "vision=4"]),
        ([*FOUR, "--vc", "a=0"], ["a=0", "at least 1"]),
        ([*FOUR, "--vc", "a=1", "--vc", "a=1"], ["given twice"]),
        ([*FOUR, "--vc", "a=3", "--vc", "b=2"], ["5 GPUs are shared out", "there are 4"]),
        ([*FOUR, "--listen", "8080"], ["--listen 8080", "127.0.0.1:8080"]),
        ([*FOUR, "--listen", "no.such.host.invalid:1"], ["no.such.host.invalid"]),
        ([*FOUR, "--group", "no-such-group"], ["no-such-group"]),
    ],
)
def test_wrong_start(
    hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answer = hived("up", *arguments, "--state", folder / "state")
    assert answer.code == 2, answer
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.out + answer.err


@pytest.mark.parametrize(
    ("policy", "given", "made", "after", "said"),
    [
        ("antman", "none", True, ["all", "none"], ""),  # the first VC alone is under it
        ("antman:moves=false", "none", False, ["none", "none"], "no virtual cluster accepts guests"),
        ("antman", "own", False, ["own", "none"], ""),
        ("gandiva", "none", True, ["none", "none"], ""),
        ("", "none", True, ["none", "none"], ""),
    ],
)
def test_whose_guests(
    capsys: pytest.CaptureFixture[str], policy: str, given: GuestsOf, made: bool, after: list[str], said: str
) -> None:
    """Without a spec that says so, VCs under AntMan accept those of all; one that accepts none is told so."""
    spec = spec_for("node", 4, "GPU", [("a", 2), ("b", 2)])
    first, second = spec.virtual_clusters
    spec = replace(spec, virtual_clusters=(replace(first, policy=policy, guests=given), second))
    found = _with_guests(spec, made)
    assert [vc.guests for vc in found.virtual_clusters] == after
    assert said in capsys.readouterr().err


def test_names_that_the_machine_does_not_have() -> None:
    """One that is misspelt passed silently, and refusals sent people there."""
    spec = spec_for("n", 4, "GPU", (("vision", 4),))
    assert unknown_accounts(spec) == []
    access = AccessSpec(("root", "group:root", "group:nosuch", "namespace:ml", "*"), admins=("nosuch",))
    vcs = tuple(replace(vc, access=access) for vc in spec.virtual_clusters)
    assert unknown_accounts(replace(spec, virtual_clusters=vcs, operators=("root", "gone"))) == [
        "this machine has no user gone, whom the spec has among its operators",
        "this machine has no group nosuch, whom vision has among its members",
        "this machine has no user nosuch, whom vision has among its admins",
    ]
    crowd = unknown_accounts(replace(spec, operators=tuple(f"gone{n}" for n in range(14))))
    assert (len(crowd), crowd[-1]) == (11, "and 4 more that this machine does not have")


def test_an_engine_beside_the_machines_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on all verbs of its user asked it, and knew none of their jobs."""
    own, machines = tmp_path / "own", tmp_path / "machines"
    for folder in (own, machines):
        folder.mkdir()
    monkeypatch.setenv("HIVED_STATE", str(own))
    monkeypatch.setattr("hived.cli.up.OF_THE_MACHINE", machines)
    assert hides_the_machines(own) == "", "the machine has none"
    (machines / "hived.sock").touch()
    assert hides_the_machines(own).endswith(f"that: hived ps --state {machines}")
    assert hides_the_machines(machines) == ""
    assert hides_the_machines(tmp_path / "another") == "", "one that is asked for by its folder alone"
