"""The client of a running engine, over the socket in its folder or over HTTP with a token, with retries."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError
from rich.console import Console

from hived import __version__
from hived.errors import (
    ConflictError,
    ForbiddenError,
    HivedError,
    InputError,
    InvariantError,
    NeverFitsError,
    NotFoundError,
    NotYetError,
    RequestError,
    StorageError,
    UnavailableError,
    UnsupportedError,
)
from hived.server.schema import EngineKind, Error, Health

from .addresses import OF_THE_MACHINE, engine_folder, has_socket, text_of
from .console import note, patience
from .contexts import chosen_context
from .escaping import clean

_TIMEOUT_S = 60.0
_STREAM_TIMEOUT_S = 60.0  #: the engine sends something every 15 s, at least a keep-alive
_LATE_S = 5.0  #: for so long an engine may be silent before it is said that it is
#: for so long a socket that refuses connections is tried again, since its engine may be on its way back
RESTART_S = 10.0
_PAUSE_S = 0.2
_LONGEST_REF = 1_024
_KINDS: tuple[type[HivedError], ...] = (
    InputError, NeverFitsError, NotFoundError, ConflictError, UnavailableError, StorageError, ForbiddenError,
    InvariantError, UnsupportedError, NotYetError,
)  # fmt: skip
_ERRORS = {kind.code: kind for kind in _KINDS} | {"unauthorized": ForbiddenError}
_LATER = (429, 503)  #: statuses of errors that a retry can resolve
#: from fields of a request to command line options
_OPTIONS = {
    name: f"--{name}"
    for name in ("vc", "gpus", "priority", "name", "cwd", "retries", "early", "device", "now", "reason")
} | {
    "command": "COMMAND",
    "tasks": "--nodes",
    "environment": "--env",
    "time_limit_s": "--time-limit",
    "grace_s": "--grace",
    "checkpoint_signal": "--checkpoint-signal",
    "limit_signal": "--signal",
    "limit_signal_s": "--signal",
    "after": "--after",
    "array": "--array",
    "at_a_time": "--array",
    "yaml": "FILE",
    "node": "NODE",
    "cells": "CELLS",
    "wants": "--wants",
    "gives": "--gives",
    "start": "--from",
    "duration_s": "--for",
    "price": "--price",
    "bid": "--bid",
}
_HEALTH = "/healthz"
_UP = "start one with: hived up"
_Model = TypeVar("_Model", bound=BaseModel)


class NoAnswerError(UnavailableError):
    """No engine answers any more, or not at the moment: a retry may succeed."""


class LostAnswerError(NoAnswerError):
    """The engine may have done what was asked: a retry may do it twice."""


def connect(
    url: str | None,
    state: Path | None,
    token_file: Path | None,
    timeout_s: float = _TIMEOUT_S,
    *,
    context: str | None = None,
    restart_s: float = 0.0,
) -> closing[Engine]:
    """The engine at ``url``, or of the folder ``state``, or of a context, or of the environment, or of this user.

    Sends nothing yet. ``restart_s``: for so long its socket may refuse the first connection. Raises
    :class:`~hived.errors.InputError` for an invalid URL or token file, :class:`~hived.errors.NotFoundError` for an
    unknown context.
    """
    given = {"--engine": url, "--state": state, "--context": context}
    if len(said := [option for option, value in given.items() if value is not None]) > 1:
        raise InputError(f"{' and '.join(said)} both say where the engine is; give one of them")
    if not said:
        url = os.environ.get("HIVED_ENGINE") or None
    known = None
    if url is None and state is None and (context is not None or not os.environ.get("HIVED_STATE")):
        known = chosen_context(context)
    variable: str | None = "HIVED_TOKEN"
    if known is not None:
        url, state = known.engine, None if known.state is None else Path(known.state)
        token_file = token_file or (None if known.token_file is None else Path(known.token_file))
        variable = None  # it is of another engine, which must not be told to this one
    if url is not None:
        engine = Engine(url_of(url), _token(token_file, variable), None, timeout_s)
        engine.start = "see that it runs there: hived up --listen, or hived serve kubernetes"
    else:
        folder = engine_folder(state)
        engine = Engine("http://localhost", None, folder / "hived.sock", timeout_s, restart_s)
        engine.start = _remedy(folder, state)
    return closing(engine)


def _remedy(folder: Path, said: Path | None) -> str:
    """What helps where no engine answers in a folder; ``said``: the folder that was asked for, None: none was."""
    if said is not None:
        return f"{_UP} --state {shlex.quote(str(said))}"
    if os.environ.get("HIVED_STATE"):
        return _UP
    if not os.path.isdir(OF_THE_MACHINE):  # noqa: PTH112  # pathlib raises where a folder may not be passed
        return f"{_UP}, or say where one is: --state DIR, or HIVED_STATE={OF_THE_MACHINE}"
    if folder != OF_THE_MACHINE and has_socket(OF_THE_MACHINE):
        return f"the machine has one: --state {OF_THE_MACHINE}; your own starts with: hived up"
    own = "it is the machine's" if folder == OF_THE_MACHINE else f"the machine's, {OF_THE_MACHINE}, is down too"
    if os.geteuid() == 0:
        return f"{own}: hived up --state {OF_THE_MACHINE}"
    return f"{own}, whose jobs run on meanwhile: ask who runs it, and start no other"


def url_of(url: str) -> str:
    """The address of an engine, in its one form. Raises :class:`~hived.errors.InputError` for any other text."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.path not in ("", "/") or "@" in parts.netloc:
        raise InputError(f"--engine {url}: no address of an engine; write http://host:port (the token goes elsewhere)")
    return f"{parts.scheme}://{parts.netloc}"


def _token(file: Path | None, variable: str | None) -> str | None:
    """The token in ``file``; without one, that in a ``variable`` of the environment, or none."""
    if file is not None:
        source = f"--token-file {file}"
        token = text_of(file, source, "utf-8", "is not text")
        if not token:
            raise InputError(f"{source}: is empty; it must hold the token that hived up printed")
    else:
        source, token = variable or "", os.environ.get(variable or "", "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{source}: is no token: one word of letters, digits and signs")
    return token or None


class Engine:
    """A client of one running engine. JSON in, JSON out; failures are those of :mod:`hived.errors`."""

    def __init__(
        self, url: str, token: str | None, socket_path: Path | None, timeout_s: float, restart_s: float = 0.0
    ) -> None:
        self.address = str(socket_path) if socket_path is not None else url  #: in messages
        self.local = socket_path is not None  #: whether the engine shares our file system and environment
        self.start = _UP  #: the remedy in the message that no engine answers
        self._kind: EngineKind | None = "local" if self.local else None
        self._socket = socket_path
        self._answered = False
        self._late_s = _LATE_S  #: after so long that is said
        self._late = False  #: whether it was said that it is silent
        self._timeout_s = timeout_s
        self._restart_s = restart_s
        self._http = httpx.Client(
            base_url=url,
            transport=httpx.HTTPTransport(uds=str(socket_path)) if socket_path is not None else None,
            headers={"User-Agent": f"hived/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            trust_env=False,  # never connect through a proxy of the environment
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def kind(self) -> EngineKind:
        """The kind of the engine, requested once; on a socket it can only be the engine of this machine."""
        if self._kind is None:
            self._kind = self.parsed(Health, self.get(_HEALTH)).engine
        return self._kind

    def get(self, path: str, **query: Any) -> Any:
        """The engine's answer; parameters that are None are left out."""
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: object = None, longer_s: float = 0.0, **query: Any) -> Any:
        """The answer to a request that changes something, which may take ``longer_s`` more than others."""
        return self._ask("POST", path, query, body, longer_s)

    def put(self, path: str, body: object, **query: Any) -> Any:
        """The answer to a request that replaces something."""
        return self._ask("PUT", path, query, body)

    def stream(self, path: str, **query: Any) -> Generator[tuple[str, Any], None, None]:
        """Server-sent events, name and value, as they arrive; the first, ``open``, confirms the connection.

        An error event is raised. The stream never just ends: its end by the engine is a :class:`NoAnswerError`.
        """
        with self._open(path, query) as answer:
            yield "open", None
            for name, data in server_events(answer.iter_raw()):
                value = self._loads(data, "an event that is no JSON")
                if name == "failure":
                    raise self._error(503 if _error_body(value).get("code") == "unavailable" else 500, value)
                yield name, value
        raise NoAnswerError(f"{self.address}: the engine ended the stream")

    def raw(self, path: str) -> Iterator[bytes]:
        """A long answer in chunks."""
        with self._open(path, {}) as answer:
            yield from answer.iter_bytes()

    def parsed(self, model: type[_Model], value: object) -> _Model:
        """``value``, validated as a ``model``."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (model.__name__, *first["loc"])))
            raise UnavailableError(self._unexpected(f"{place}: {first['msg']}")) from None

    def each(self, model: type[_Model], values: object) -> list[_Model]:
        """The same for a list."""
        if not isinstance(values, list):
            raise UnavailableError(self._unexpected(f"no list of {model.__name__}"))
        return [self.parsed(model, value) for value in values]

    def _ask(self, method: str, path: str, query: dict[str, Any], body: object, longer_s: float = 0.0) -> Any:
        timeout = httpx.Timeout(self._timeout_s + longer_s, connect=min(10.0, self._timeout_s))
        with self._failures(), self._patience(longer_s):
            try:
                answer = self._http.request(method, path, params=_given(query), timeout=timeout, **_json(body))
            except (httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout) as error:
                if method == "GET":
                    raise
                shows = "kubectl get nodes" if self._kind == "kubernetes" else "hived ps"
                shows = "hived trade ls" if path.startswith("/v1/trades") else shows
                shows = "hived spec diff" if path == "/v1/spec" else shows
                raise LostAnswerError(
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
        with self._failures(), ExitStack() as stack:
            with self._patience():
                streamed = self._http.stream("GET", path, params=_given(query), timeout=timeout)
                answer = stack.enter_context(streamed)
            if not answer.is_success:
                answer.read()
                raise self._error(answer.status_code, self._json(answer), path)
            yield answer

    def _patience(self, longer_s: float = 0.0) -> AbstractContextManager[None]:
        """Say that an answer is awaited: on a terminal, and once anywhere of an engine that is silent."""
        late = None if self._late else self._say_late
        self._late_s = _LATE_S + longer_s
        return patience(f"waiting for the engine on {clean(self.address)}", late=late, late_s=self._late_s)

    def _say_late(self, console: Console) -> None:
        self._late = True
        note(f"hived: {clean(self.address)}: the engine has not answered for {self._late_s:g} s; waiting", console)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn errors of the connection into ours."""
        self._check_socket()
        try:
            yield
            self._answered, self._restart_s = True, 0.0  # what waits through a later restart is a Retrying
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise self._no_engine() from None
        except httpx.TimeoutException:
            raise NoAnswerError(self._silent()) from None
        except httpx.RemoteProtocolError as error:
            if "disconnected" in str(error) or "closed" in str(error):
                raise NoAnswerError(f"{self.address}: the engine went away while it answered") from None
            raise UnavailableError(self._unexpected(_words(error))) from None
        except httpx.TransportError as error:
            raise NoAnswerError(f"{self.address}: the connection to the engine broke ({_words(error)})") from None
        except httpx.DecodingError as error:
            raise UnavailableError(self._unexpected(_words(error))) from None
        except UnicodeEncodeError as error:
            raise InputError(f"{error.object!r} is not UTF-8 text, so no engine has anything of that name") from None

    def _check_socket(self) -> None:
        """Check that an engine listens on the socket; httpx would hide the reason if not, and leave a socket open."""
        if self._socket is None or self._answered:
            return
        end = None
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.settimeout(min(10.0, self._timeout_s))
                    probe.connect(str(self._socket))
            except (ConnectionRefusedError, FileNotFoundError) as error:  # nothing was sent; it may be on its way back
                now = time.monotonic()
                if end is None:
                    left = self._restart_s
                    if isinstance(error, FileNotFoundError):  # it was stopped, or there has never been one
                        left -= _since_change(self._socket.parent)
                    if left > 0:
                        note(f"hived: no engine answers on {clean(self.address)}; trying for {round(left, 1):g} s")
                    end = now + left
                if now >= end:
                    raise self._no_engine() from None
                time.sleep(_PAUSE_S)
            except BlockingIOError:  # too many wait for it already
                raise NoAnswerError(self._silent()) from None
            except PermissionError:
                raise ForbiddenError(
                    f"{self.address}: the engine is another user's, and serves no group of yours "
                    "(hived up --group GROUP); or use --engine with the address and the token of hived up --listen"
                ) from None
            except OSError:
                raise self._no_engine() from None
            else:
                return

    def _silent(self) -> str:
        return f"{self.address}: the engine does not answer; is it stopped or overloaded?"

    def _no_engine(self) -> NoAnswerError:
        self._answered = False
        return NoAnswerError(f"no engine answers on {self.address}; {self.start}")

    def _json(self, answer: httpx.Response) -> Any:
        kind = answer.headers.get("content-type", "nothing")
        return self._loads(answer.content, f"status {answer.status_code}, {kind}")

    def _loads(self, text: str | bytes, else_it_is: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise UnavailableError(self._unexpected(else_it_is)) from None

    def _error(self, status: int, value: object, path: str = "") -> HivedError:
        """The engine's error as one of ours."""
        if status == 404 and path != _HEALTH and (wrong := self._wrong_kind()) is not None:
            return wrong
        error = _error_body(value)
        if not isinstance(message := error.get("message"), str):
            return UnavailableError(self._unexpected(f"status {status} without a reason"))
        kind = _ERRORS.get(str(error.get("code")), InputError if status < 500 else UnavailableError)
        field = error.get("field")
        if isinstance(field, str) and field:
            option = _OPTIONS.get(field.removeprefix("job.").partition(".")[0], field)
            if kind is InputError:
                return RequestError(option, message)
            message = f"{option}: {message}"
        return NoAnswerError(message) if status in _LATER else kind(message)

    def refusal(self, error: Error) -> HivedError:
        """The error of one of several things that were asked for."""
        return self._error(409, {"error": error.model_dump()})

    def _wrong_kind(self) -> InputError | None:
        """The reason of a missing path, if nothing but results is served there."""
        with suppress(HivedError):
            if self.kind == "results":
                return InputError(f"{self.address} shows the results of a simulation; name an engine with --engine")
        return None

    def _unexpected(self, what: str) -> str:
        return (
            f"what answers on {self.address} is no engine of this version ({clean(what)}); "
            f"this is hived {__version__}, see which one runs there"
        )


def path_of(what: str, ref: str, rest: str = "") -> str:
    """The path of ``what`` (jobs, explain, logs, vcs) by the name ``ref``, with any characters escaped.

    Raises :class:`~hived.errors.NotFoundError` for what can be no name.
    """
    if not 0 < len(ref) <= _LONGEST_REF:
        raise NotFoundError(f"no name has {len(ref):,} characters; hived ps --all lists the jobs")
    try:
        return f"/v1/{what}/{quote(ref, safe='') if ref.strip('.') else ref.replace('.', '%2E')}{rest}"
    except UnicodeEncodeError:
        raise NotFoundError(f"no name is {ref!r}, which is not UTF-8 text; hived ps --all lists the jobs") from None


def _error_body(value: object) -> dict[str, Any]:
    """The error in an answer; empty without one."""
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {}


def _json(body: object) -> dict[str, Any]:
    """The content of a request. Arguments that are not UTF-8 are sent unchanged; the engine names the field."""
    if body is None:
        return {}
    return {"content": json.dumps(body).encode(), "headers": {"Content-Type": "application/json"}}


def _given(query: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in query.items() if value is not None}


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def server_events(chunks: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    r"""Names and data of server-sent events (WHATWG HTML, 9.2.6), in order.

    Comments (keep-alives) and a truncated last event are left out.

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
    """Whole lines; only CR LF and LF end one, since JSON may contain other line separators."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


_FIRST_S, _LONGEST_S = 0.2, 5.0
_PATIENCE_S = 600.0  #: the longest time of retries, so that no script hangs for ever on an engine that was shut down
_Answer = TypeVar("_Answer")


class Retrying:
    """Retries with growing pauses while no engine answers; notes the outage once, and its end once."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = _FIRST_S

    def __call__(self, ask: Callable[[], _Answer]) -> _Answer:
        """The result of ``ask``, retried until it succeeds. Raises :class:`NoAnswerError` after ``_PATIENCE_S``."""
        while True:
            try:
                answer = ask()
            except NoAnswerError as error:
                self.failed(error)
            else:
                self.answered()
                return answer

    def stream(self, begin: Callable[[], Iterator[_Answer]]) -> Iterator[_Answer]:
        """The items of a stream that is begun again whenever it breaks off."""
        while True:
            try:
                for one in begin():
                    self.answered()
                    yield one
            except NoAnswerError as error:
                self.failed(error)

    def failed(self, error: NoAnswerError) -> None:
        """No engine answered: pause, or give up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            note(f"hived: {clean(str(error))}; trying again")
        elif now - self._since > _PATIENCE_S:
            raise error
        time.sleep(self._pause * random.uniform(0.8, 1.2))  # clients do not return all at the same moment
        self._pause = min(2 * self._pause, _LONGEST_S)

    def answered(self) -> None:
        """The engine answered."""
        if self._since is not None:
            note("hived: the engine is back")
        self._since, self._pause = None, _FIRST_S


def _since_change(folder: Path) -> float:
    """Seconds since something in the folder of an engine was made or removed, as its socket is; inf: of none."""
    try:
        (folder / "engine.lock").stat()
        return max(0.0, time.time() - folder.stat().st_mtime)
    except OSError:
        return math.inf
