"""Talking to a running engine, over the socket in its folder or over HTTP with a token, and staying with it."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from hived import __version__
from hived.errors import (
    ConflictError,
    ForbiddenError,
    HivedError,
    InputError,
    InvariantError,
    NeverFitsError,
    NotFoundError,
    RequestError,
    StorageError,
    UnavailableError,
)
from hived.server.schema import EngineKind, Health

from .addresses import state_folder, text_of
from .console import note, patience
from .formats import clean

_TIMEOUT_S = 60.0
_STREAM_TIMEOUT_S = 60.0  #: the engine sends something every 15 s, if only to say that it is there
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_REF = 1_024
_KINDS: tuple[type[HivedError], ...] = (
    InputError, NeverFitsError, NotFoundError, ConflictError, UnavailableError, StorageError, ForbiddenError,
    InvariantError,
)  # fmt: skip
_ERRORS = {kind.code: kind for kind in _KINDS} | {"unauthorized": ForbiddenError}
_LATER = (429, 503)  #: statuses of what will do in a while
#: a field of a request, as the option that gave it
_OPTIONS = {name: f"--{name}" for name in ("vc", "gpus", "priority", "name", "cwd", "retries", "device")} | {
    "command": "COMMAND",
    "tasks": "--nodes",
    "environment": "--env",
    "time_limit_s": "--time-limit",
    "grace_s": "--grace",
    "node": "NODE",
}
#: what follows the address of each kind of engine in messages
_KIND_WORDS: dict[EngineKind, str] = {
    "local": "is the engine of one machine",
    "kubernetes": "decides for a Kubernetes cluster",
    "results": "shows the results of a simulation",
}
_HEALTH = "/healthz"
_UP = "start one with: hived up"
_Model = TypeVar("_Model", bound=BaseModel)


class EngineGoneError(UnavailableError):
    """Nobody answers any more, or not at the moment: worth another try by whoever has time."""


def connect(
    url: str | None,
    state: Path | None,
    token_file: Path | None,
    timeout_s: float = _TIMEOUT_S,
    *,
    default: str | None = None,
    instead: Mapping[EngineKind, str] | None = None,
    start: str = _UP,
) -> closing[Engine]:
    """The engine at ``url``, or of the folder ``state``, or of the environment, or ``default``, or of this user.

    Asks nothing yet. ``instead``: kinds of engine that do not have what is asked for, and the command that does;
    ``start``: what helps where nobody answers. Raises :class:`~hived.errors.InputError` for a URL or a token file that
    cannot be used.
    """
    if url is not None and state is not None:
        raise InputError("--engine and --state both say where the engine is; give one of them")
    url = url or ((os.environ.get("HIVED_ENGINE") or default) if state is None else None)
    if url:
        engine = Engine(_url(url), _token(token_file), None, timeout_s)
    else:
        engine = Engine("http://localhost", None, state_folder(state) / "hived.sock", timeout_s)
    engine.instead, engine.start = instead or {}, start
    return closing(engine)


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.path not in ("", "/") or "@" in parts.netloc:
        raise InputError(f"--engine {url}: no address of an engine; write http://host:port (the token goes elsewhere)")
    return f"{parts.scheme}://{parts.netloc}"


def _token(file: Path | None) -> str | None:
    if file is None:
        token, source = os.environ.get("HIVED_TOKEN", "").strip(), "HIVED_TOKEN"
    else:
        source = f"--token-file {file}"
        token = text_of(file, source, "utf-8", "is not text")
        if not token:
            raise InputError(f"{source}: is empty; it must hold the token that hived up printed")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{source}: is no token: one word of letters, digits and signs")
    return token or None


class Engine:
    """A running engine, as the verbs see it. JSON in, JSON out; failures are those of :mod:`hived.errors`."""

    def __init__(self, url: str, token: str | None, socket_path: Path | None, timeout_s: float) -> None:
        self.address = str(socket_path) if socket_path is not None else url  #: in messages
        self.local = socket_path is not None  #: whether it sees the same files and variables as we do
        self.instead: Mapping[EngineKind, str] = {}  #: see :func:`connect`
        self.start = _UP  #: likewise
        self._kind: EngineKind | None = "local" if self.local else None
        self._socket = socket_path
        self._answered = False
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=url,
            transport=httpx.HTTPTransport(uds=str(socket_path)) if socket_path is not None else None,
            headers={"User-Agent": f"hived/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            trust_env=False,  # a proxy of the environment has no business between us and the engine
        )

    def close(self) -> None:
        """Its connections."""
        self._http.close()

    @property
    def kind(self) -> EngineKind:
        """What answers there. It is asked once; on a socket it can only be the engine of this machine."""
        if self._kind is None:
            self._kind = self.understood(Health, self.get(_HEALTH)).engine
        return self._kind

    def wrong(self, way_out: str) -> InputError:
        """It is of a kind that cannot do what was asked."""
        return InputError(f"{self.address} {_KIND_WORDS[self.kind]}; {way_out}")

    def get(self, path: str, **query: Any) -> Any:
        """What the engine answers; a parameter that is None is left out."""
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: object = None) -> Any:
        """Ask for something to be done."""
        return self._ask("POST", path, {}, body)

    def stream(self, path: str, **query: Any) -> Generator[tuple[str, Any], None, None]:
        """Server-sent events, name and value, as they come; the first, ``open``, says that it listens.

        One that is an error is raised. They never just end: that the engine ends them is an :class:`EngineGoneError`.
        """
        with self._open(path, query) as answer:
            yield "open", None
            for name, data in server_events(answer.iter_raw()):
                value = self._loads(data, "an event that is no JSON")
                if name == "failure":
                    raise self._error(503 if _told(value).get("code") == "unavailable" else 500, value)
                yield name, value
        raise EngineGoneError(f"{self.address}: the engine ended the stream")

    def raw(self, path: str) -> Iterator[bytes]:
        """A long answer, bit by bit."""
        with self._open(path, {}) as answer:
            yield from answer.iter_bytes()

    def understood(self, model: type[_Model], value: object) -> _Model:
        """``value`` as what it should be."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (model.__name__, *first["loc"])))
            raise UnavailableError(self._stranger(f"{place}: {first['msg']}")) from None

    def each(self, model: type[_Model], values: object) -> list[_Model]:
        """The same for a list."""
        if not isinstance(values, list):
            raise UnavailableError(self._stranger(f"no list of {model.__name__}"))
        return [self.understood(model, value) for value in values]

    def _ask(self, method: str, path: str, query: dict[str, Any], body: object) -> Any:
        with self._failures(), patience(f"waiting for the engine on {clean(self.address)}"):
            try:
                answer = self._http.request(method, path, params=_given(query), **_json(body))
            except (httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout) as error:
                if method == "GET":
                    raise
                shows = "kubectl get nodes" if self._kind == "kubernetes" else "hived ps"
                raise EngineGoneError(
                    f"{self.address}: the engine went away before it answered ({_words(error)}); "
                    f"whether it has done what was asked, {shows} shows"
                ) from None
        value = self._json(answer)
        if not answer.is_success:
            raise self._error(answer.status_code, value, path)
        return value

    @contextmanager
    def _open(self, path: str, query: dict[str, Any]) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(self._timeout_s, read=_STREAM_TIMEOUT_S)
        with self._failures(), self._http.stream("GET", path, params=_given(query), timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise self._error(answer.status_code, self._json(answer), path)
            yield answer

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """What the connection may do, in our words."""
        self._knock()
        try:
            yield
            self._answered = True
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise self._nobody() from None
        except httpx.TimeoutException:
            raise EngineGoneError(f"{self.address}: the engine does not answer; is it stopped or overloaded?") from None
        except httpx.RemoteProtocolError as error:
            if "disconnected" in str(error) or "closed" in str(error):
                raise EngineGoneError(f"{self.address}: the engine went away while it answered") from None
            raise UnavailableError(self._stranger(_words(error))) from None
        except httpx.TransportError as error:
            raise EngineGoneError(f"{self.address}: the connection to the engine broke ({_words(error)})") from None
        except httpx.DecodingError as error:
            raise UnavailableError(self._stranger(_words(error))) from None
        except UnicodeEncodeError as error:
            raise InputError(f"{error.object!r} is not UTF-8 text, so no engine has anything of that name") from None

    def _knock(self) -> None:
        """See that somebody listens on the socket; httpx would not say why nobody does, and leave a socket open."""
        if self._socket is None or self._answered:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
                door.settimeout(min(10.0, self._timeout_s))
                door.connect(str(self._socket))
        except PermissionError:
            raise ForbiddenError(
                f"{self.address}: the engine is another user's; ask them to listen with a token, and use --engine"
            ) from None
        except OSError:
            raise self._nobody() from None

    def _nobody(self) -> EngineGoneError:
        self._answered = False
        return EngineGoneError(f"no engine answers on {self.address}; {self.start}")

    def _json(self, answer: httpx.Response) -> Any:
        kind = answer.headers.get("content-type", "nothing")
        return self._loads(answer.content, f"status {answer.status_code}, {kind}")

    def _loads(self, text: str | bytes, else_it_is: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise UnavailableError(self._stranger(else_it_is)) from None

    def _error(self, status: int, value: object, path: str = "") -> HivedError:
        """The error that the engine had, as if we had had it."""
        if status == 404 and path != _HEALTH and (wrong := self._wrong_kind()) is not None:
            return wrong
        told = _told(value)
        if not isinstance(message := told.get("message"), str):
            return UnavailableError(self._stranger(f"status {status} without a reason"))
        kind = _ERRORS.get(str(told.get("code")), InputError if status < 500 else UnavailableError)
        field = told.get("field")
        if isinstance(field, str) and field:
            option = _OPTIONS.get(field.partition(".")[0], field)
            if kind is InputError:
                return RequestError(option, message)
            message = f"{option}: {message}"
        return EngineGoneError(message) if status in _LATER else kind(message)

    def _wrong_kind(self) -> InputError | None:
        """Why it has no such path, if that is because of its kind."""
        with suppress(HivedError):
            if self.kind == "results":
                return self.wrong("name an engine with --engine")
            if self.kind in self.instead:
                return self.wrong(f"there use: {self.instead[self.kind]}")
        return None

    def _stranger(self, what: str) -> str:
        return (
            f"what answers on {self.address} is no engine of this version ({clean(what)}); "
            f"this is hived {__version__}, see which one runs there"
        )


def job_path(ref: str, rest: str = "") -> str:
    """The path of a job; raises :class:`~hived.errors.NotFoundError` for what can be no job's name."""
    if not _NAME.fullmatch(ref):
        raise NotFoundError(f"no job {ref!r}: a job is its id (12) or its name (train-12); hived ps --all lists them")
    return f"/v1/jobs/{quote(ref, safe='')}{rest}"


def group_path(what: str, ref: str) -> str:
    """The path that says ``what`` (explain, vcs) of what is called ``ref`` on Kubernetes, whatever signs that has."""
    if not 0 < len(ref) <= _LONGEST_REF:
        raise NotFoundError(f"no name has {len(ref):,} characters; hived groups lists the groups")
    try:
        return f"/v1/{what}/{quote(ref, safe='') if ref.strip('.') else ref.replace('.', '%2E')}"
    except UnicodeEncodeError:
        raise NotFoundError(f"no name is {ref!r}, which is not UTF-8 text; hived groups lists the groups") from None


def _told(value: object) -> dict[str, Any]:
    """The error in an answer; empty where there is none."""
    told = value.get("error") if isinstance(value, dict) else None
    return told if isinstance(told, dict) else {}


def _json(body: object) -> dict[str, Any]:
    """The content of a request. Bytes of an argument that are no text go as they are; the engine names the field."""
    if body is None:
        return {}
    return {"content": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


def _given(query: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in query.items() if value is not None}


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def server_events(chunks: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    r"""Names and data of server-sent events (WHATWG HTML, 9.2.6), in order.

    Comments (keep-alives) are left out, and so is an event that was cut off.

    >>> list(server_events([b"event: log\r\nda", b"ta: 1\r\n\r\n: ping\n\ndata: 2\n"]))
    [('log', '1')]
    """
    name, data = "message", list[str]()
    for line in _lines(chunks):
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines; only CR LF and LF end one, since JSON may hold whatever else some call a line end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


_FIRST_S, _LONGEST_S = 0.2, 5.0
_PATIENCE_S = 600.0  #: after which it is given up, so that no script hangs for ever on an engine that was shut down
_Answer = TypeVar("_Answer")


class Retrying:
    """Tries again with growing pauses while no engine answers; says so once, and once when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = _FIRST_S

    def __call__(self, ask: Callable[[], _Answer]) -> _Answer:
        """What ``ask`` answers, as soon as it does. Raises :class:`EngineGoneError` when patience is at its end."""
        while True:
            try:
                answer = ask()
            except EngineGoneError as error:
                self.failed(error)
            else:
                self.well()
                return answer

    def stream(self, begin: Callable[[], Iterator[_Answer]]) -> Iterator[_Answer]:
        """What streams bring, begun one after the other where they break off, for whoever reads them to go on."""
        while True:
            try:
                for one in begin():
                    self.well()
                    yield one
            except EngineGoneError as error:
                self.failed(error)

    def failed(self, error: EngineGoneError) -> None:
        """The engine was not there: pause, or give up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            note(f"hived: {clean(str(error))}; trying again")
        elif now - self._since > _PATIENCE_S:
            raise error
        time.sleep(self._pause * random.uniform(0.8, 1.2))  # not all who follow come back at the same moment
        self._pause = min(2 * self._pause, _LONGEST_S)

    def well(self) -> None:
        """The engine answered."""
        if self._since is not None:
            note("hived: the engine is back")
        self._since, self._pause = None, _FIRST_S
