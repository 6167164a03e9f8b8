"""What stands between a task and Docker: what becomes of requests, and how they are passed on; without Docker."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, ClassVar

import pytest

from hived.cli.submit import environment
from hived.engines.local import containers, docker_gate
from hived.engines.local.docker_gate import LABEL, RefusedError, Task

GPUS = {"2": "GPU-two", "5": "GPU-five"}
GPU_REQUEST = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}


def task(**more: Any) -> Task:
    return Task("the-mark", gpus=GPUS, **more)


def visible(given: list[str], of: Task | None = None) -> list[str]:
    """The variables of a container that NVIDIA's runtime reads."""
    fitted = (of or task()).fit({"Image": "box", "Env": given})["Env"]
    return [line for line in fitted if line.startswith("NVIDIA_VISIBLE_DEVICES=")]


def requested(**asked: Any) -> list[str]:
    """The GPUs that Docker is asked for in place of those that a task asks for."""
    fitted = task().fit({"Image": "box", "HostConfig": {"DeviceRequests": [GPU_REQUEST | asked]}})
    (request,) = fitted["HostConfig"]["DeviceRequests"]
    assert request["Count"] == 0
    return list(request["DeviceIDs"])


def test_a_container_says_whose_it_is() -> None:
    """In place of what it says itself; and all else is as it was."""
    asked = {"Image": "box", "Cmd": ["x"], "Env": ["A=1", "HIVED_TASK=another"], "Labels": {LABEL: "another", "b": "2"}}
    fitted = task().fit(asked)
    assert fitted["Labels"] == {LABEL: "the-mark", "b": "2"}
    assert fitted["Env"] == ["A=1", "HIVED_TASK=the-mark", "NVIDIA_VISIBLE_DEVICES=GPU-two,GPU-five"]
    assert {name: fitted[name] for name in ("Image", "Cmd")} == {"Image": "box", "Cmd": ["x"]}
    assert task().fit({"Image": "box", "Env": None, "Labels": None, "HostConfig": None})["Labels"] == {
        LABEL: "the-mark"
    }


def test_a_container_is_told_of_its_job() -> None:
    """In its environment, but for what it is given otherwise; and people, by labels."""
    fitted = task(variables={"HIVED_JOB_ID": "12", "HIVED_RANK": "0"}).fit({"Env": ["HIVED_RANK=mine"]})
    assert fitted["Labels"] == {"hived.job.id": "12", "hived.rank": "0", LABEL: "the-mark"}
    assert {line for line in fitted["Env"] if "RANK" in line or "JOB" in line} == {"HIVED_JOB_ID=12", "HIVED_RANK=mine"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], "GPU-two,GPU-five"),
        (["NVIDIA_VISIBLE_DEVICES=all"], "GPU-two,GPU-five"),
        (["NVIDIA_VISIBLE_DEVICES=5"], "GPU-five"),
        (["NVIDIA_VISIBLE_DEVICES=GPU-two,5"], "GPU-two,GPU-five"),
        (["NVIDIA_VISIBLE_DEVICES=none"], "none"),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=2"], "GPU-two"),  # the last one counts
    ],
)
def test_gpus_of_the_runtime(given: list[str], found: str) -> None:
    assert visible(given) == [f"NVIDIA_VISIBLE_DEVICES={found}"]


def test_a_job_without_gpus() -> None:
    none = Task("the-mark")
    assert visible(["NVIDIA_VISIBLE_DEVICES=all"], none) == ["NVIDIA_VISIBLE_DEVICES=void"]
    with pytest.raises(RefusedError, match="this job has none: hived submit --gpus 1"):
        none.fit({"HostConfig": {"DeviceRequests": [GPU_REQUEST | {"Count": -1}]}})


def test_gpus_that_are_asked_for() -> None:
    assert requested(Count=-1) == ["GPU-two", "GPU-five"]
    assert requested(Count=1) == ["GPU-two"]
    assert requested(DeviceIDs=["5"]) == ["GPU-five"]
    assert requested(Driver="nvidia", Capabilities=None, DeviceIDs=["GPU-two"]) == ["GPU-two"]
    asked = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all", "other.com/x=1"]}
    fitted = task().fit({"HostConfig": {"DeviceRequests": [asked]}})
    ids = ["nvidia.com/gpu=GPU-two", "nvidia.com/gpu=GPU-five", "other.com/x=1"]
    assert fitted["HostConfig"]["DeviceRequests"] == [asked | {"DeviceIDs": ids}]


def test_devices_that_are_no_gpus_are_as_they_are() -> None:
    asked = [
        {"Driver": "cdi", "DeviceIDs": ["other.com/x=1"]},
        {"Driver": "other", "Count": -1, "Capabilities": [["tpu"]]},
    ]
    assert task().fit({"HostConfig": {"DeviceRequests": asked}})["HostConfig"]["DeviceRequests"] == asked


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ({"DeviceRequests": [GPU_REQUEST | {"Count": 3}]}, "3 GPUs are asked for, and this job has 2"),
        ({"DeviceRequests": [GPU_REQUEST | {"DeviceIDs": ["0"]}]}, "GPU 0 is not this job's: it has 2, 5"),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]}, "GPU 0 is not this job's"),
        ({"Devices": [{"PathOnHost": "/dev/../dev/nvidia0"}]}, "nvidia0 is not a GPU of this job's"),
        ({"Privileged": True}, "a privileged container opens the GPUs of others"),
        ({"privileged": True}, "a privileged container opens the GPUs of others"),
        ({"devices": [{"pathOnHost": "/dev/nvidia0"}]}, "nvidia0 is not a GPU of this job's"),
        ({"Devices": [{"PathOnHost": "/dev"}]}, "/dev is a folder of devices"),
        ({"DeviceCgroupRules": ["c 195:* rwm"]}, "opens the GPUs of others"),
        ({"DeviceCgroupRules": ["a *:* rwm"]}, "opens the GPUs of others"),
        ({"DeviceRequests": [{"Capabilities": [["compute"]], "DeviceIDs": ["0"]}]}, "GPU 0 is not this job's"),
        ({"Privileged": False, "privileged": True}, "Privileged is given twice"),
    ],
)
def test_gpus_of_others_are_refused(host: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        task(minors=[2, 5]).fit({"HostConfig": host})


def test_who_is_not_kept_from_devices_may_open_them() -> None:
    host = {"Devices": [{"PathOnHost": "/dev/nvidia0"}, {"PathOnHost": "/dev/fuse"}], "Privileged": True}
    assert task().fit({"HostConfig": host})["HostConfig"] == host
    own = {"Devices": [{"PathOnHost": "/dev/nvidia5"}, {"PathOnHost": "/dev/nvidiactl"}]}
    assert task(minors=[2, 5]).fit({"HostConfig": own})["HostConfig"] == own


@pytest.mark.parametrize(("asked", "given"), [(None, 1000), (0, 1000), (10, 10), (2000, 1000), (-1, 1000)])
def test_memory_is_the_share_at_most(asked: int | None, given: int) -> None:
    host = {} if asked is None else {"Memory": asked, "MemorySwap": -1}
    fitted = task(memory=1000).fit({"HostConfig": host})["HostConfig"]
    assert (fitted["Memory"], fitted["MemorySwap"]) == (given, given)
    assert task(memory=10).fit({"HostConfig": {"MemoryReservation": 20}})["HostConfig"]["MemoryReservation"] == 10


# -- whose daemon -----------------------------------------------------------------------------------------------------


def test_the_daemon_is_the_one_that_its_client_would_use(tmp_path: Path) -> None:
    config = tmp_path / ".docker"

    def found(host: str = "", context: str = "") -> str | None:
        return Task("m", host=host, config=str(config), context=context).daemon()

    assert found() == "/var/run/docker.sock"
    assert found("unix:///run/user/1000/docker.sock") == "/run/user/1000/docker.sock"
    assert found("tcp://10.0.0.1:2376") is None
    meta = config / "contexts" / "meta" / hashlib.sha256(b"rootless").hexdigest()
    meta.mkdir(parents=True)
    (config / "config.json").write_text('{"currentContext": "rootless"}')
    assert found() == "/var/run/docker.sock"  # its file is not there
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///run/own.sock"}}}))
    assert found() == "/run/own.sock"
    assert found("unix:///other.sock") == "/other.sock"
    assert found(context="default") == "/var/run/docker.sock"
    (config / "config.json").unlink()
    assert found() == "/var/run/docker.sock"
    assert found(context="rootless") == "/run/own.sock"
    os.mkfifo(config / "config.json")  # nobody writes it
    assert found() == "/var/run/docker.sock"
    (config / "config.json").unlink()
    for wrong in ("[]", "{", '{"currentContext": 3}'):
        (config / "config.json").write_text(wrong)
        assert found() == "/var/run/docker.sock"


def test_a_job_that_is_submitted_in_a_job_has_its_own(tmp_path: Path) -> None:
    """Not that of the first one, which ends with it."""

    def host(sent: str) -> Any:
        variables = {"HIVED_TASK": "m", "DOCKER_HOST": sent}
        found = containers.gate(tmp_path, variables, os.geteuid(), (), (), None, 0)
        assert variables.get("DOCKER_HOST", "") == ("" if own in sent else sent)
        return None if found is None else found["task"]["host"]

    own = "hived-docker"

    assert host("unix:///run/other.sock") == "unix:///run/other.sock"
    assert host("tcp://10.0.0.1:2376") is None
    for one in (f"unix:///state/jobs/1/1/0/{containers.SOCKET}", f"{docker_gate.SHORT}12/docker.sock"):
        assert host(one) == host("")
    sent = {"DOCKER_HOST": f"unix:///state/{containers.SOCKET}", "HIVED_DOCKER_HOST": "unix:///run/other.sock"}
    assert environment(sent, [], False, "/")["DOCKER_HOST"] == "unix:///run/other.sock"
    assert "DOCKER_HOST" not in environment(sent | {"HIVED_DOCKER_HOST": ""}, [], False, "/")
    assert environment(sent | {"DOCKER_HOST": "tcp://a"}, [], False, "/")["DOCKER_HOST"] == "tcp://a"


# -- passing on -------------------------------------------------------------------------------------------------------


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 100


class _Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked, as a daemon that has containers `own` and `others`."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, str, Any]]] = []
    rounds = 0  #: for so many a container of the task runs on

    def do_GET(self) -> None:
        marks = {"own": "the-mark", "others": "another"}
        name = self.path.split("/")[2] if self.path.startswith("/containers/") else ""
        if self.path.startswith("/containers/json"):
            _Handler.rounds -= 1
            self._answer(200, [{"Id": "own", "State": "running" if _Handler.rounds >= 0 else "exited"}])
        elif name in marks:
            self._answer(200, {"Config": {"Labels": {LABEL: marks[name]}}})
        elif name == "nobodys":
            self._answer(200, {"Config": {"Labels": None}})
        else:
            self._answer(404, {"message": f"No such container: {name}"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, json.loads(body) if body else None))
        self._answer(201, {"Id": "1", "close": self.headers.get("Connection")})

    def _answer(self, status: int, what: Any) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def address_string(self) -> str:
        return "unix"


class Connection(http.client.HTTPConnection):
    """A connection to a socket of a file."""

    def __init__(self, path: str) -> None:
        super().__init__("docker")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "d.sock")
    with _Server(path, _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        _Handler.asked.clear()
        _Handler.rounds = 0
        yield path
        server.shutdown()
        thread.join()


class Gate:
    """The program, as a supervisor starts it."""

    def __init__(self, daemon: str, own: Path, **more: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", docker_gate.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        given = {"mark": "the-mark", "host": f"unix://{daemon}", "socket": str(own), "gpus": GPUS} | more
        self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._process.stdin.flush()
        self.address = self._process.stdout.readline().decode().strip().removeprefix("unix://")

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        connection = Connection(self.address)
        connection.request(method, path, body, {"Content-Type": "application/json"}, **more)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def end(self, said: str = "") -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(said.encode())
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


@pytest.fixture
def gate(daemon: str, tmp_path: Path) -> Iterator[Gate]:
    made = Gate(daemon, tmp_path / "own.sock")
    yield made
    made.end()


@pytest.mark.parametrize("path", ["/containers/create", "/v1.47/containers/create?name=x"])
@pytest.mark.parametrize("chunked", [False, True])
def test_what_makes_a_container_is_changed(gate: Gate, path: str, chunked: bool) -> None:
    body = json.dumps({"Image": "box", "Labels": {"a": "1"}}).encode()
    parts = (body[at : at + 7] for at in range(0, len(body), 7))
    assert gate.ask("POST", path, parts if chunked else body, encode_chunked=chunked) == (
        201,
        {"Id": "1", "close": "close"},
    )
    ((_, asked, made),) = _Handler.asked
    assert asked == path
    assert made["Labels"] == {"a": "1", LABEL: "the-mark"}


def test_what_cannot_be_understood_is_refused(gate: Gate) -> None:
    assert gate.ask("POST", "/containers/create", b"[]") == (403, {"message": "hived: the request is no object"})
    odd: dict[str, Any]
    for odd in ({"Env": 3}, {"HostConfig": ["x"]}, {"HostConfig": {"DeviceRequests": ["x"]}}, {"env": [], "Env": []}):
        status, said = gate.ask("POST", "/containers/create", json.dumps(odd).encode())
        assert status == 403, odd
        assert said["message"].startswith("hived: ")
    status, said = gate.ask("POST", "/v1.47/services/create", b"{}")
    assert (status, said["message"].partition(",")[0]) == (
        403,
        "hived: a service of a swarm is no container of this job",
    )
    assert gate.ask("POST", "/containers/create", b"{")[0] == 502
    assert _Handler.asked == []


def test_a_connection_that_is_not_upgraded_takes_no_second_request(gate: Gate) -> None:
    """The daemon took it from there, and nobody had looked at it."""
    connection = Connection(gate.address)
    connection.request("POST", "/exec/none/start", b"{}", {"Connection": "Upgrade", "Upgrade": "tcp"})
    answer = connection.getresponse()
    assert (answer.status, answer.will_close) == (201, True)
    assert json.loads(answer.read())["close"] == "Upgrade"
    assert answer.isclosed()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(gate.address)
        upgrade = b"Connection: Upgrade\r\nUpgrade: tcp\r\n"
        other.sendall(b"POST /exec/none/start HTTP/1.1\r\nHost: a\r\n" + upgrade + b"Content-Length: 0\r\n\r\n")
        other.sendall(b"POST /containers/create HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        answers = b"".join(iter(lambda: other.recv(65536), b""))
    assert answers.count(b"HTTP/1.1") == 1
    assert [path for _, path, _ in _Handler.asked] == ["/exec/none/start"] * 2


@pytest.mark.parametrize("verb", ["start", "restart", "unpause"])
def test_only_own_containers_are_started(gate: Gate, verb: str) -> None:
    for name in ("others", "nobodys"):
        status, said = gate.ask("POST", f"/v1.47/containers/{name}/{verb}")
        assert status == 403
        assert f"hived: {name} was not made by this run of this job" in said["message"]
    assert gate.ask("POST", f"/v1.47/containers/own/{verb}")[0] == 201
    assert gate.ask("POST", f"/containers/none/{verb}")[0] == 201  # the daemon says that there is none
    assert [path for _, path, _ in _Handler.asked] == [f"/v1.47/containers/own/{verb}", f"/containers/none/{verb}"]


@pytest.mark.parametrize(("said", "is_killed"), [("0.0", True), ("1000.0", False), ("", False)])
def test_grace_of_containers_is_what_is_left_of_the_tasks(
    daemon: str, tmp_path: Path, said: str, is_killed: bool
) -> None:
    """A container that ignores SIGTERM had two seconds more than its job."""
    gate = Gate(daemon, tmp_path / "own.sock")
    assert gate.ask("POST", "/containers/create", b"{}")[0] == 201
    _Handler.asked.clear()
    _Handler.rounds = 1
    assert gate.end(said) == 0
    posts = [path for _, path, _ in _Handler.asked]
    assert posts[:2] == ["/containers/own/update", "/containers/own/kill?signal=SIGTERM"]
    assert posts[2:] == ["/containers/own/kill?signal=SIGKILL"] * int(is_killed)


def test_its_socket_is_its_users_alone_and_goes_with_it(daemon: str, tmp_path: Path) -> None:
    """Also where the path of its folder is too long for one; and nothing is there of an earlier one."""
    long = tmp_path / ("x" * 90)
    long.mkdir()
    for own in (tmp_path / "own.sock", long / "own.sock"):
        gate = Gate(daemon, own)
        there = Path(gate.address)
        assert there.stat().st_mode & 0o777 == 0o600
        assert (there == own) is (own.parent == tmp_path)
        again = Gate(daemon, own)
        assert again.ask("GET", "/containers/own/json")[0] == 200
        assert [gate.end(), again.end()] == [0, 0]
        assert not there.exists()
        assert not Path(again.address).exists()


def test_without_docker_there_is_no_address(tmp_path: Path) -> None:
    gate = Gate(str(tmp_path / "nothing"), tmp_path / "own.sock")
    assert gate.address == ""
    assert gate.end() == 0


def test_a_daemon_that_is_away(tmp_path: Path) -> None:
    """It may come back while the job runs."""
    there = str(tmp_path / "d.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(there)
        gate = Gate(there, tmp_path / "own.sock")
        assert gate.ask("GET", "/containers/json") == (502, {"message": f"hived: {there}: Connection refused"})
        Path(there).unlink()
        with _Server(there, _Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            assert gate.ask("GET", "/containers/own/json")[0] == 200
            assert gate.end() == 0
            server.shutdown()
            thread.join()


def test_where_no_container_was_made_no_daemon_is_asked(daemon: str, tmp_path: Path) -> None:
    """One that does not answer had kept the GPUs of jobs that use no Docker."""
    gate = Gate(daemon, tmp_path / "own.sock")
    assert gate.ask("GET", "/containers/own/json")[0] == 200
    _Handler.rounds = 3
    assert gate.end() == 0
    assert _Handler.rounds == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_who_may_not_use_the_daemon_has_none_to_end(daemon: str) -> None:
    """It was tried for a week, of each of their tasks whose supervisor was killed."""
    nobody = {"uid": 65534, "gid": 65534, "groups": [], "folders": [], "mode": 0o700}
    gate = Gate(daemon, Path(), socket="", run_as=nobody)
    assert gate.end() == 0


def test_daemons_that_do_not_answer_keep_no_other_waiting(
    daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another user could be any number, and each is waited for."""
    before, tried = containers._is_ended, list[str]()

    def is_ended(file: Path) -> bool:
        tried.append(file.name)
        if file.name == "good":
            return before(file)
        if tried.count(file.name) == 1 and file.name == "bad-1":
            left.add("good", {"task": {"mark": "the-mark", "host": f"unix://{daemon}"}}, None)
        return False

    monkeypatch.setattr(containers, "_is_ended", is_ended)
    left = containers.Left(tmp_path / "left")
    (tmp_path / "left").mkdir()
    for name in ("bad-1", "bad-2"):
        (tmp_path / "left" / name).write_text("{}")
    left.open()
    while (tmp_path / "left" / "good").exists() or "good" not in tried:
        time.sleep(0.01)
    left.close()
    assert tried.count("bad-1") == 1
    assert sorted(path.name for path in (tmp_path / "left").iterdir()) == ["bad-1", "bad-2"]


def test_to_end_containers_of_a_daemon_that_does_not_answer_fails(tmp_path: Path) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))  # nobody listens
    with silent:
        gate = Gate(str(tmp_path / "silent"), Path(), socket="")
        assert gate.end() == 1
