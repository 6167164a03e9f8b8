"""Stands between a task and Docker, so that the containers of the task are known to be its own, and end with it.

A container is a child of Docker's daemon: nothing of the kernel's says for whom it was started. So a task gets a socket
of its own in place of the daemon's (``DOCKER_HOST``), which every client of Docker's uses: this program passes on what
comes there, as the task's user, with a change to the requests that make a container:

* it gets a label and the variable of the task's mark, by which it is found again;
* of GPUs it gets the task's alone, whatever it asks for by ``--gpus``, ``--device``, the runtime or the image; and what
  is not the task's is refused;
* it has the task's share of memory at most, where that is divided.

A container that another task, or nobody's, has made is not started through it. Whoever may use Docker can do all this
past it, at the daemon's own socket, and is root there: it keeps those who mean no harm.

Executed as a script by the supervisor of the task (:mod:`.supervisor`), with the standard library alone. It reads a
line of JSON (:class:`Task`), and answers with its address, or nothing where there is no Docker. Once its input ends, it
ends the containers and itself: the supervisor has said their grace in seconds and closed it, or was killed. Without
``socket`` it only ends them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import select
import signal
import socket
import stat
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

LABEL = "hived.task"  #: of a container; its value is the mark of the task
_MARK = "HIVED_TASK"  # environment.MARK
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_DAEMON = "/var/run/docker.sock"
_SHORT = "/tmp/hived-docker-"
SHORT = f"unix://{_SHORT}"  #: what the address begins with where the path of ``socket`` is too long for one
_LONGEST_PATH = 100  #: bytes of the path of a socket; Linux takes 107
_MOST_HEAD, _MOST_BODY, _MOST_FILE = 1 << 20, 8 << 20, 1 << 20  #: bytes of what is read to be understood
_MOST_ANSWER = 64 << 20
_MOST_READ = 4  #: bodies at a time
_MOST_CONNECTIONS = 512
_GRACE_S = 2.0  #: of containers whose task has ended, in seconds
_ENDS_S = 10.0  #: for how long they are ended again and again
_OPENS_S, _ANSWERS_S = 1.0, 5.0  #: for how long the daemon is waited for
_MAJOR, _CONTROL = 195, 254  #: of files of GPUs, and the first minor number that is none's (device_fence)
_GPU_FILE = re.compile(r"/dev/nvidia(\d+)")
_STAYS = ("running", "paused", "restarting")
_OF_REQUEST = ("Driver", "Count", "DeviceIDs", "Capabilities")
#: what is read of a request; Docker knows these names in capitals and not
_ASKED = ("Env", "Labels", "HostConfig")
_OF_HOST = (
    "Privileged", "Devices", "DeviceRequests", "DeviceCgroupRules", "Memory", "MemorySwap", "MemoryReservation",
)  # fmt: skip


class RefusedError(Exception):
    """A request that a task may not make; the text is for its user."""


class Task:
    """What the gate has to know of its task."""

    def __init__(
        self,
        mark: str,
        host: str = "",
        config: str = "",
        context: str = "",
        socket: str = "",
        gpus: dict[str, str] | None = None,
        minors: list[int] | None = None,
        memory: int = 0,
        grace_s: float = _GRACE_S,
        run_as: dict[str, Any] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """``host``, ``context``: DOCKER_HOST and DOCKER_CONTEXT of the task; ``config``: folder of its client's.

        ``socket``: where the gate is to be.

        ``gpus``: what Docker is told, by number; ``minors``: of the files that it may open; None: any. ``memory``:
        bytes of its share; 0: any. ``grace_s``: of containers that are there at its end. ``run_as``: its user
        (:class:`~.job_users.RunAs`); None: as this process. ``variables``: that its containers get, and labels of
        their names, ``hived.job.id`` of ``HIVED_JOB_ID``.
        """
        self.mark, self.host, self.socket = mark, host, socket
        self._config, self._context = config, context
        self.gpus, self.minors, self.memory = gpus or {}, minors, memory
        self.grace_s, self._run_as, self._variables = grace_s, run_as, variables or {}

    def become_its_user(self) -> None:
        """Be the user whose task it is for good, and make their folders; ``OSError`` where that cannot be."""
        if self._run_as is None:
            return
        uid, gid = self._run_as["uid"], self._run_as["gid"]
        os.setgroups(self._run_as["groups"])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        for folder in self._run_as["folders"]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, self._run_as["mode"])

    # -- containers as they are asked for -----------------------------------------------------------------------------

    def fit(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What is asked of Docker in place of what a task asks. Raises :class:`RefusedError`. O(size)."""
        try:
            return self._fit(_named(asked, _ASKED))
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            raise RefusedError(f"the request is not understood: {error}") from None

    def _fit(self, asked: dict[str, Any]) -> dict[str, Any]:
        host = _named(asked.get("HostConfig") or {}, _OF_HOST)
        if self.minors is not None:
            self._check_devices(host, self.minors)
        if requests := host.get("DeviceRequests"):
            host["DeviceRequests"] = [self._request(_named(request, _OF_REQUEST)) for request in requests]
        if self.memory:
            wanted = host.get("Memory") or 0
            host["Memory"] = min(wanted, self.memory) if wanted > 0 else self.memory
            host["MemorySwap"] = host["Memory"]  # the sum of both: none to swap
            if (host.get("MemoryReservation") or 0) > host["Memory"]:
                host["MemoryReservation"] = host["Memory"]
        names = {_MARK, _VISIBLE}
        given = list(asked.get("Env") or ())
        visible = next((line.partition("=")[2] for line in reversed(given) if line.startswith(f"{_VISIBLE}=")), None)
        environment = [line for line in given if line.partition("=")[0] not in names]
        environment += [f"{_MARK}={self.mark}", f"{_VISIBLE}={self._visible(visible)}"]
        set_already = {line.partition("=")[0] for line in environment}
        environment += [f"{name}={value}" for name, value in self._variables.items() if name not in set_already]
        about = {name.lower().replace("_", "."): value for name, value in self._variables.items()}
        labels = {**(asked.get("Labels") or {}), **about, LABEL: self.mark}
        return {**asked, "HostConfig": host, "Env": environment, "Labels": labels}

    def _visible(self, asked: str | None) -> str:
        """The GPUs by which NVIDIA's runtime goes; images ask for all by themselves."""
        if asked in ("none", "void", ""):
            return str(asked)
        if asked is None or asked == "all":
            return ",".join(self.gpus.values()) or "void"
        return ",".join(self._own(asked.split(",")))

    def _request(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A request for devices, of the task's own GPUs; of other devices as it is."""
        ids = [str(name) for name in asked.get("DeviceIDs") or ()]
        if asked.get("Driver") == "cdi":
            kind = "nvidia.com/gpu="
            gpus = [name.removeprefix(kind) for name in ids if name.startswith(kind)]
            if not gpus:
                return asked
            own = list(self.gpus.values()) if "all" in gpus else self._own(gpus)
            rest = [name for name in ids if not name.startswith(kind)]
            return {**asked, "DeviceIDs": [kind + name for name in self._some(own)] + rest}
        if asked.get("Driver") not in (None, "", "nvidia"):
            return asked
        own = list(self.gpus.values())
        count = asked.get("Count") or 0
        if ids:
            own = self._own(ids)
        elif count > len(own):
            raise RefusedError(f"{count} GPUs are asked for, and this job has {len(own)}")
        elif count > 0:
            own = own[:count]
        return {**asked, "Count": 0, "DeviceIDs": self._some(own)}

    def _some(self, own: list[str]) -> list[str]:
        if not own:
            raise RefusedError("GPUs are asked for, and this job has none: hived submit --gpus 1")
        return own

    def _own(self, names: Iterable[str]) -> list[str]:
        """GPUs as Docker is told them, of numbers or names."""
        found = []
        for name in names:
            own = self.gpus.get(name) or next((gpu for gpu in self.gpus.values() if gpu == name), None)
            if own is None:
                has = f"it has {', '.join(self.gpus)}, which --gpus all gives" if self.gpus else "it has none"
                raise RefusedError(f"GPU {name} is not this job's: {has}")
            found.append(own)
        return found

    def _check_devices(self, host: dict[str, Any], minors: list[int]) -> None:
        """Raise :class:`RefusedError` for what opens GPUs of others."""
        if host.get("Privileged"):
            raise RefusedError("a privileged container opens the GPUs of others; leave out --privileged")
        for rule in host.get("DeviceCgroupRules") or ():
            kind, _, numbers = rule.strip().partition(" ")
            if kind in ("a", "c") and numbers.partition(":")[0].strip() in ("", "*", str(_MAJOR)):
                raise RefusedError(f"the rule {rule} opens the GPUs of others; --gpus all gives those of this job")
        for device in host.get("Devices") or ():
            path = os.path.normpath(str(_named(device, ("PathOnHost",)).get("PathOnHost", "")))
            found = _GPU_FILE.fullmatch(path)
            minor = int(found[1]) if found else None
            with contextlib.suppress(OSError):  # the daemon says that there is none
                status = os.stat(path)
                if stat.S_ISDIR(status.st_mode):
                    raise RefusedError(f"{path} is a folder of devices; name those that are needed")
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == _MAJOR:
                    minor = os.minor(status.st_rdev)
            if minor is not None and minor < _CONTROL and minor not in minors:
                raise RefusedError(f"{path} is not a GPU of this job's; --gpus all gives those that are")

    # -- the daemon ---------------------------------------------------------------------------------------------------

    def daemon(self) -> str | None:
        """Path of the daemon's socket, as the task's own client would find it; None: it is on another machine."""
        host = self.host or self._of_context()
        if not host:
            return _DAEMON
        return host.removeprefix("unix://") if host.startswith("unix:///") else None

    def _of_context(self) -> str:
        """The address of the context that the user has chosen (``docker context use``); "": the default."""
        try:
            name = self._context or _read_json(os.path.join(self._config, "config.json")).get("currentContext")
            if not name or name == "default":
                return ""
            own = hashlib.sha256(name.encode()).hexdigest()
            meta = _read_json(os.path.join(self._config, "contexts", "meta", own, "meta.json"))
            return str(meta["Endpoints"]["docker"]["Host"])
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return ""


def _read_json(name: str) -> Any:
    """A file of the user's, who may have put anything there that waits for a writer or has no end."""
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{name}: no file")
        return json.loads(os.read(file, _MOST_FILE))
    finally:
        os.close(file)


def _named(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What is given, these names as they are written here: one that is given twice is refused."""
    written = {name.lower(): name for name in names}
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = written.get(name.lower(), name)
        if own in found:
            raise RefusedError(f"{own} is given twice")
        found[own] = value
    return found


class Daemon:
    """Docker's daemon, asked one thing after another."""

    def __init__(self, path: str) -> None:
        self._path = path

    def connect(self, patience_s: float = _ANSWERS_S) -> socket.socket:
        """``OSError`` where there is none, or this user may not use it."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(patience_s)
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            error.filename = self._path
            raise
        return connection

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer; of version 1.0 of HTTP, whose answers end where the connection does. ``OSError``."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: {len(data)}\r\n"
        kind = "Content-Type: application/json\r\n" if data else ""
        last = time.monotonic() + _ANSWERS_S
        answer = b""
        with self.connect() as connection:
            connection.sendall(f"{head}{kind}\r\n".encode() + data)
            while part := connection.recv(65536):
                answer += part
                left = last - time.monotonic()
                if left <= 0 or len(answer) > _MOST_ANSWER:
                    raise TimeoutError(errno.ETIMEDOUT, "no answer in time", self._path)
                connection.settimeout(left)
        first, _, rest = answer.partition(b"\r\n\r\n")
        try:
            return int(first.split(None, 2)[1]), json.loads(rest or b"null")
        except (ValueError, IndexError):
            raise OSError(f"{self._path}: no answer of Docker's") from None

    def end(self, task: Task) -> None:
        """End the containers of a task: SIGTERM, and SIGKILL after the grace. They are there as stopped ones then.

        ``OSError`` where the daemon does not answer.
        """
        wanted = json.dumps({"label": [f"{LABEL}={task.mark}"]})
        query = "".join(f"%{byte:02X}" for byte in wanted.encode())
        told = set()
        now = time.monotonic()
        kill_at, last = now + task.grace_s, now + task.grace_s + _ENDS_S
        while True:
            status, found = self.ask("GET", f"/containers/json?all=1&filters={query}")
            if status != 200 or not isinstance(found, list):
                raise OSError(f"{self._path}: no answer of Docker's")
            now = time.monotonic()
            stays = False
            for one in found:
                own, runs = f"/containers/{one['Id']}", one.get("State") in _STAYS
                stays = stays or runs
                if own not in told:
                    told.add(own)  # one that the daemon starts again, also after its own end, has no end
                    self.ask("POST", f"{own}/update", {"RestartPolicy": {"Name": "no"}})
                    if runs:
                        self.ask("POST", f"{own}/kill?signal=SIGTERM")
                if runs and now >= kill_at and self.ask("POST", f"{own}/kill?signal=SIGKILL")[0] >= 400:
                    self.ask("POST", f"{own}/unpause")  # one that is paused is not killed
            if not stays:
                return
            if now >= last:
                raise OSError(f"{self._path}: Docker does not end the containers")
            time.sleep(0.05)


class Gate:
    """Passes on what comes at the socket of a task, one thread a connection, and two where data goes both ways."""

    def __init__(self, task: Task, daemon: Daemon) -> None:
        self._task, self._daemon = task, daemon
        #: whether the task may have containers
        self.has_made = False
        self._starting = 0  #: requests under way that make or start a container
        self._changed = threading.Condition()
        self._reading = threading.Semaphore(_MOST_READ)

    def serve(self, listener: socket.socket, until: int) -> None:
        """Until there is something to read of the file ``until``, or it has ended."""
        while True:
            ready, _, _ = select.select([listener.fileno(), until], [], [])
            if until in ready:
                return
            try:
                client, _ = listener.accept()
            except OSError:  # no more files
                time.sleep(0.05)
                continue
            if threading.active_count() > _MOST_CONNECTIONS:
                client.close()
                continue
            try:
                threading.Thread(target=self._one, args=(client,), daemon=True).start()
            except RuntimeError:  # its user has no more threads
                client.close()

    def settle(self) -> None:
        """Wait until no container is about to be started, whose client has ended already."""
        with self._changed:
            self._changed.wait_for(lambda: not self._starting, _GRACE_S)

    def _one(self, client: socket.socket) -> None:
        with client:
            try:
                self._pass_on(client)
            except RefusedError as error:
                _answer(client, 403, f"hived: {error}")
            except OSError as error:
                _answer(client, 502, f"hived: {error.filename or 'Docker'}: {error.strerror or error}")
            except ValueError as error:
                _answer(client, 502, f"hived: {error}")

    def _pass_on(self, client: socket.socket) -> None:
        """One request of a connection: the answer says that it ends then, unless it becomes a stream of its own."""
        head, rest = _read_head(client)
        if not head:
            return
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        path = re.sub(r"^/v[0-9.]+(?=/)", "", target.partition("?")[0])
        posts = method == "POST"
        makes = posts and path == "/containers/create"
        starts = re.fullmatch(r"/containers/([^/]+)/(?:start|restart|unpause)", path) if posts else None
        if posts and path == "/services/create":
            raise RefusedError("a service of a swarm is no container of this job, and would not end with it")
        if starts:
            self._check_own(starts[1])
        upgrades = any(_is_header(line, "upgrade") for line in lines)
        if makes or upgrades:
            with self._reading:
                rest = _read_body(client, lines, rest)
            if makes:
                rest = json.dumps(self._task.fit(_object(rest))).encode()
            lines = [line for line in lines if not _is_header(line, "content-length", "transfer-encoding", "expect")]
            lines += [f"Content-Length: {len(rest)}"] if rest or makes else []
        if not upgrades or makes:
            lines = [line for line in lines if not _is_header(line, "connection", "upgrade")] + ["Connection: close"]
        with self._counted(bool(makes or starts)), self._daemon.connect() as server:
            server.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + rest)
            server.settimeout(None)
            client.settimeout(None)
            if upgrades and not makes and not self._is_upgraded(client, server):
                return
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            _copy(server, client)

    @staticmethod
    def _is_upgraded(client: socket.socket, server: socket.socket) -> bool:
        """Pass on the head of the answer, and if the connection has not become a stream by it, all of the answer.

        The daemon would take another request there then, which nobody had looked at.
        """
        head, rest = _read_head(server)
        if not head:  # it has ended
            return False
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split()
        is_stream = any(_is_header(line, "content-type") and "-stream" in line for line in lines)
        if len(words) > 1 and (words[1] == "101" or (words[1] == "200" and is_stream)):
            client.sendall(head + b"\r\n\r\n" + rest)
            return True
        lines = [line for line in lines if not _is_header(line, "connection")] + ["Connection: close"]
        client.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + rest)
        server.shutdown(socket.SHUT_WR)  # it answers to the end, and hears of no more
        _copy(server, client)
        return False

    def _check_own(self, container: str) -> None:
        """Raise :class:`RefusedError` for a container that the task did not make; none is the daemon's to say."""
        status, found = self._daemon.ask("GET", f"/containers/{container}/json")
        if status != 200:
            return
        if ((found.get("Config") or {}).get("Labels") or {}).get(LABEL) != self._task.mark:
            raise RefusedError(
                f"{container} was not made by this run of this job, so it has not its GPUs, and would not end with it; "
                "make one: docker run"
            )

    @contextlib.contextmanager
    def _counted(self, counts: bool) -> Iterator[None]:
        """A request that is under way, and starts a container."""
        self.has_made |= counts
        self._count(counts)
        try:
            yield
        finally:
            self._count(-counts)

    def _count(self, by: int) -> None:
        with self._changed:
            self._starting += by
            self._changed.notify_all()


def _copy(of: socket.socket, to: socket.socket) -> None:
    """Pass on what comes, and that no more comes."""
    try:
        while data := of.recv(65536):
            to.sendall(data)
    except OSError:
        pass
    with contextlib.suppress(OSError):  # it has ended too
        to.shutdown(socket.SHUT_WR)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """The head of a request, and what has come after it; an empty one where the client has gone."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > _MOST_HEAD:
            raise ValueError("the head of the request is too long")
        if not (more := client.recv(65536)):
            return b"", b""
        data += more
    return data[:end], data[end + 4 :]


def _read_body(client: socket.socket, lines: list[str], data: bytes) -> bytes:
    """The body of a request, of which ``data`` has come."""
    if any(_is_header(line, "expect") for line in lines):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    coding = next((line for line in lines if _is_header(line, "transfer-encoding")), None)
    if coding is None:
        length = next((int(line.partition(":")[2]) for line in lines if _is_header(line, "content-length")), 0)
        return _more(client, data, length)[:length]
    body = b""
    while True:
        while b"\r\n" not in data:
            data = _more(client, data, len(data) + 1)
        first, _, data = data.partition(b"\r\n")
        size = int(first.partition(b";")[0], 16)
        data = _more(client, data, size + 2)
        if size == 0:
            return body
        body, data = body + data[:size], data[size + 2 :]
        if len(body) > _MOST_BODY:
            raise ValueError("the request is too long")


def _more(client: socket.socket, data: bytes, length: int) -> bytes:
    """At least so many bytes, of which ``data`` has come."""
    if length > _MOST_BODY:
        raise ValueError("the request is too long")
    while len(data) < length:
        if not (more := client.recv(65536)):
            raise ValueError("the request ends too early")
        data += more
    return data


def _is_header(line: str, *names: str) -> bool:
    return line.partition(":")[0].strip().lower() in names


def _object(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise RefusedError("the request is no object")
    return found


def _answer(client: socket.socket, status: int, message: str) -> None:
    """Say what is wrong, as Docker does."""
    body = json.dumps({"message": message}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with contextlib.suppress(OSError):  # the client has gone
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _listen(path: str) -> socket.socket:
    """A socket for the user alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        if os.path.lexists(path):  # of an earlier supervisor
            os.unlink(path)
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener


def main() -> None:
    """See the module."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its end is that of its input
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    task = Task(**json.loads(line))
    task.become_its_user()  # only now: its user need not be able to read this program, and what it imports
    path = task.daemon()
    daemon = Daemon(path or "")
    if path is None:
        return
    if not task.socket:
        try:
            daemon.end(task)
        except PermissionError:  # then they have made none
            return
        except OSError as error:
            sys.exit(f"{path}: {error}")
        return
    try:
        daemon.connect(_OPENS_S).close()
    except (FileNotFoundError, PermissionError):
        return
    except OSError:  # it may come back while the task runs
        pass
    own, made = task.socket, ""
    if len(os.fsencode(own)) > _LONGEST_PATH:
        made = f"{_SHORT}{os.urandom(8).hex()}"
        os.mkdir(made, 0o700)
        own = f"{made}/docker.sock"
    gate = Gate(task, daemon)
    try:
        with _listen(own) as listener:
            os.write(1, f"unix://{own}\n".encode())
            gate.serve(listener, 0)
            if said := b"".join(iter(lambda: os.read(0, 64), b"")):
                task.grace_s = float(said)
    finally:
        with contextlib.suppress(OSError):  # the task may have deleted it
            os.unlink(own)
            if made:
                os.rmdir(made)
    if not gate.has_made:
        return
    gate.settle()
    try:
        daemon.end(task)
    except OSError as error:
        sys.exit(f"{error.filename or ''} {error.strerror or error}")


if __name__ == "__main__":
    main()
