"""A client of the Kubernetes REST API: raw JSON, lists in pages, watches line by line, renewed credentials.

The models of the generated client cost milliseconds per pod and refuse some answers of real servers, so only its
configuration, its TLS and its session are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject

from hived.errors import InputError, UnavailableError

T = TypeVar("T")
Params = Mapping[str, str]
#: verb as RBAC names it, resource, HTTP status (0: no answer)
OnError = Callable[[str, str, int], None]
Listed: TypeAlias = tuple[list[T], str]

TIMEOUT_S = 15.0
PAGE = 500
_JSON = "application/json"
_PATCHES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
#: remedies, by HTTP status
_WAYS_OUT = {
    0: "is it up, and is its address right? `kubectl version` asks the same",
    401: "it does not know who this is: check the token or certificate of the kubeconfig, or the pod's account",
    403: "grant it by RBAC, as deploy/ has it",
    429: "it has too much to do, or a disruption budget forbids it: try again later",
}
_RENEW_S = 10.0  #: between two reloads of refused credentials
_CLOSING_S = 0.1  #: for closed TLS connections to end before the loop does


class ApiError(UnavailableError):
    """The API server does not answer, or refuses a request."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status  #: of HTTP; 0: no answer
        self.reason = reason  #: of Kubernetes: ``NotFound``, ``Conflict``, ``AlreadyExists``


class GoneError(ApiError):
    """410 Gone: the resourceVersion has expired, and a new list is needed."""


class Status(msgspec.Struct):
    """The Status object of a failure."""

    status: Any = None  #: ``Failure``; a gateway in between may send anything
    message: str | None = None
    reason: str | None = None
    code: int | None = None


class _ListMeta(msgspec.Struct, rename={"version": "resourceVersion", "more": "continue"}):
    version: str = ""
    more: str | None = None


class _Page(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct):
    major: str
    minor: str


async def connect(
    kubeconfig: Path | None, context: str | None = None, on_error: OnError | None = None, timeout_s: float = TIMEOUT_S
) -> KubeApi:
    """A client by a kubeconfig; without one: ``KUBECONFIG``'s, else the pod's own account, else ``~/.kube/config``.

    Sends no request yet. Raises :class:`~hived.errors.InputError`.
    """
    load = partial(load_configuration, kubeconfig, context)
    return KubeApi(load, await load(), on_error, timeout_s)


class KubeApi:
    """A client of one API server. Every failure is an :class:`ApiError`. Retries only with renewed credentials."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Configuration]],
        configuration: Configuration,
        on_error: OnError | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``load`` reads a newer ``configuration``. ``timeout_s``: for a whole request, and for a watch to begin."""
        self.server = str(configuration.host).rstrip("/")
        self._load = load
        self._on_error = on_error
        self._timeout_s = timeout_s
        self._configuration = configuration
        self._http = RESTClientObject(configuration)
        #: sessions with former client certificates, which requests may still be using
        self._former: list[RESTClientObject] = []
        self._renewing = asyncio.Lock()
        self._renewed_at = float("-inf")

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        for http in (*self._former, self._http):
            await http.close()
        await asyncio.sleep(_CLOSING_S)

    # --- one request, one answer

    async def get(self, path: str, params: Params | None = None) -> bytes:
        """Read an object or any other path."""
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: object) -> bytes:
        """Create an object."""
        return await self._request("POST", path, body=body)

    async def put(self, path: str, body: object) -> bytes:
        """Replace an object: 409 unless ``resourceVersion`` is current."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: object, kind: Literal["merge", "strategic"] = "merge") -> bytes:
        """Change the fields in ``body``."""
        return await self._request("PATCH", path, body=body, content_type=_PATCHES[kind])

    async def delete(self, path: str, body: object = None) -> bytes:
        """Delete an object; ``body``: DeleteOptions."""
        return await self._request("DELETE", path, body=body)

    async def version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        path = "/version"
        said = self._decode(await self.get(path), _Version, "get", path)
        major, minor = ("".join(filter(str.isdigit, part)) or "0" for part in (said.major, said.minor))
        return int(major), int(minor)

    # --- collections

    async def list(self, path: str, of: type[T], params: Params | None = None) -> Listed[T]:
        """All objects as of one moment, and that moment's resourceVersion. O(objects), in pages of 500."""
        try:
            return await self._pages(path, of, {**(params or {}), "limit": str(PAGE)})
        except GoneError:  # the version of the first page has expired: list again without pages
            return await self._pages(path, of, dict(params or {}))

    async def _pages(self, path: str, of: type[T], params: dict[str, str]) -> Listed[T]:
        items: list[T] = []
        while True:
            answer = await self._request("GET", path, params=params, verb="list")
            page: _Page[T] = self._decode(answer, _Page[of], "list", path)  # type: ignore[valid-type]  # made at run time
            items += page.items or ()
            if not page.metadata.more:
                return items, page.metadata.version
            params["continue"] = page.metadata.more

    async def watch(
        self, path: str, of: type[T], resource_version: str, params: Params | None = None, timeout_s: int = 300
    ) -> AsyncGenerator[tuple[str, T], None]:
        """Events after ``resource_version``, until ``timeout_s`` is over: ADDED, MODIFIED, DELETED or BOOKMARK, and the
        object. Has to be closed (``contextlib.aclosing``) unless it is read to its end.

        Raises :class:`GoneError`, and :class:`ApiError` of status 0 where the connection breaks.
        """
        query = {
            **(params or {}),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        patience = aiohttp.ClientTimeout(total=timeout_s + self._timeout_s, sock_connect=self._timeout_s)
        with self._failures("watch", path):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout_s):
                    answer = await stack.enter_async_context(self._answer("GET", path, "watch", patience, query))
                _keep_alive(answer)
                async for line in _lines(answer.content):
                    event = self._decode(line, _Event, "watch", path)
                    if event.type == "ERROR":
                        raise self._refusal("watch", path, 0, bytes(event.object))
                    yield event.type, self._decode(bytes(event.object), of, "watch", path)

    # --- transport

    async def _request(self, method: str, path: str, verb: str = "", **more: Any) -> bytes:
        """``more``: of :meth:`_answer`."""
        verb = verb or _VERBS.get(method, "get")
        patience = aiohttp.ClientTimeout(total=self._timeout_s)
        with self._failures(verb, path):
            async with self._answer(method, path, verb, patience, **more) as answer:
                return await answer.read()

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        verb: str,
        patience: aiohttp.ClientTimeout,
        params: Params | None = None,
        body: object = None,
        content_type: str = _JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer; retried once with new credentials if the old ones are refused."""
        if self._http.pool_manager.closed:
            raise self._failure(verb, path, 0, "Closed", "this client is closed")
        data = None if body is None else msgspec.json.encode(body)
        for renewed in (False, True):
            token = await self._token()
            # uncompressed: the network is fast, and the server busy
            headers = {"Content-Type": content_type, "Accept": _JSON, "Accept-Encoding": "identity"}
            if token:
                headers["Authorization"] = token
            async with self._http.pool_manager.request(
                method,
                self.server + path,
                params=params,
                data=data,
                headers=headers,
                timeout=patience,
                allow_redirects=False,
                proxy=self._http.proxy,
                server_hostname=self._http.server_hostname,
            ) as answer:
                if answer.ok:
                    yield answer
                    return
                said = await answer.read()
                if answer.status != 401 or renewed or not await self._renew(token):
                    raise self._refusal(verb, path, answer.status, said)

    async def _token(self) -> str | None:
        """The bearer token; the token of a pod is read again once a minute."""
        token: str | None = await self._configuration.get_api_key_with_prefix("BearerToken")
        return token.strip() if token else None

    async def _renew(self, refused: str | None) -> bool:
        """Reload the credentials from their files or programs; whether they have changed."""
        async with self._renewing:
            if await self._token() != refused:
                return True  # another request has done it
            now = asyncio.get_running_loop().time()
            if now - self._renewed_at < _RENEW_S:
                return False
            self._renewed_at = now
            async with asyncio.timeout(self._timeout_s):
                fresh, old = await self._load(), self._configuration
            self._configuration = fresh
            if (fresh.cert_file, fresh.key_file) != (old.cert_file, old.key_file):
                self._former.append(self._http)
                self._http = RESTClientObject(fresh)
                return True
            return await self._token() != refused

    # --- failures

    @contextlib.contextmanager
    def _failures(self, verb: str, path: str) -> Iterator[None]:
        """Turn every failure into an :class:`ApiError`, and count it."""
        try:
            yield
        except ApiError as error:
            failure = error
        except InputError as error:  # from reloading the credentials
            failure = self._failure(verb, path, 401, "Unauthorized", str(error))
        except TimeoutError:
            failure = self._failure(verb, path, 0, "Timeout", "no answer in time")
        except (aiohttp.ClientError, OSError) as error:
            failure = self._failure(verb, path, 0, "NoAnswer", str(error) or type(error).__name__)
        else:
            return
        if self._on_error is not None:
            self._on_error(verb, resource_of(path), failure.status)
        raise failure from None

    def _refusal(self, verb: str, path: str, status: int, said: bytes) -> ApiError:
        """The error of an answer. Another server at that address may answer without JSON."""
        try:
            words = msgspec.json.decode(said, type=Status)
        except msgspec.DecodeError:
            words = Status(message=" ".join(said[:200].decode(errors="replace").split()))
        return self._failure(verb, path, status or words.code or 500, words.reason or "", words.message or "")

    def _failure(self, verb: str, path: str, status: int, reason: str, said: str) -> ApiError:
        what = f"{status} {reason}".strip() if status else reason
        message = f"{verb} {path} at {self.server}: {what}: {said}".rstrip(": ")
        if way_out := _WAYS_OUT.get(status):
            message += f": {way_out}"
        return (GoneError if status == 410 else ApiError)(message, status, reason)

    def _decode(self, data: bytes, of: type[T], verb: str, path: str) -> T:
        try:
            found: T = _decoder(cast(Any, of)).decode(data)
        except msgspec.DecodeError as error:
            what = f"an answer that is not of Kubernetes ({error}): is this the address of an API server?"
            raise ApiError(f"{verb} {path} at {self.server}: {what}", 0, "Unreadable") from None
        return found


@lru_cache(maxsize=64)
def _decoder(of: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(of)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, of any length. An unfinished line of a broken connection is dropped. O(bytes)."""
    parts: list[bytes] = []
    async for chunk in stream.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*parts, end))
            parts.clear()
            if line.strip():
                yield line
        if rest:
            parts.append(rest)


def _keep_alive(answer: aiohttp.ClientResponse) -> None:
    """Set TCP keepalive: a watch is silent for minutes, so the kernel has to detect a dead peer, in 30 s."""
    transport = answer.connection.transport if answer.connection is not None else None
    at = transport.get_extra_info("socket") if transport is not None else None
    if at is not None:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):  # not everywhere
                at.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def resource_of(path: str) -> str:
    """The resource of a path, for metrics: ``pods`` of ``/api/v1/namespaces/a/pods/b``, ``pods/binding`` below it."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else parts
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])


def api_path(
    resource: str, namespace: str | None = None, name: str | None = None, part: str | None = None, of: str = "v1"
) -> str:
    """The path of a resource in all namespaces or one, of one object, or of its subresource (``pods``' ``binding``).

    ``of``: group and version of their API, ``batch/v1``.
    """
    home = ("namespaces", namespace) if namespace is not None else ()
    words = (word for word in (*home, resource, name, part) if word is not None)
    return "/".join(("/api" if of == "v1" else "/apis", quote(of), *(quote(word, safe="") for word in words)))


def pod_path(key: str, part: str | None = None) -> str:
    """The path of the pod with this ``namespace/name``, or of its subresource."""
    namespace, _, name = key.partition("/")
    return api_path("pods", namespace, name, part)


def lease_path(namespace: str, name: str | None = None) -> str:
    """The path of all leases of a namespace, or of one."""
    return api_path("leases", namespace, name, of="coordination.k8s.io/v1")


async def load_configuration(kubeconfig: Path | None, context: str | None = None) -> Configuration:
    """Read the configuration from its files. Raises :class:`~hived.errors.InputError`.

    Without arguments: ``KUBECONFIG``'s, else the pod's own account, else ``~/.kube/config``.
    """
    # not Configuration(): that may be a copy of a process-wide default
    found: Configuration = type.__call__(Configuration)
    # Python 3.13 checks certificates more strictly than Go's tools, and those of many clusters fail it
    found.disable_strict_ssl_verification = True
    files = os.environ.get("KUBECONFIG") if kubeconfig is None else str(kubeconfig)
    if files or context is not None or "KUBERNETES_SERVICE_HOST" not in os.environ:
        await _load_files(files or str(Path.home() / ".kube" / "config"), context, found)
    else:
        try:
            config.load_incluster_config(found)  # type: ignore[no-untyped-call]  # they have no types there
        except (config.ConfigException, OSError) as error:
            raise InputError(
                f"this pod's account: {error}: mount its token (automountServiceAccountToken), or give --kubeconfig"
            ) from None
    return found


async def _load_files(files: str, context: str | None, into: Configuration) -> None:
    # several files are merged, as kubectl does
    if not any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name):
        raise InputError(
            f"kubeconfig {files}: no such file: name one with --kubeconfig, or run in a pod of the cluster"
        )
    try:
        await config.load_kube_config(files, context, into, persist_config=False)
    # the library raises many types for a bad file, or for a failure of the program that it names
    except Exception as error:
        raise InputError(f"kubeconfig {files}: {_words(error)}: try `kubectl version` with it") from None


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())
    # errors about an unexpected shape are of little use by themselves
    known = isinstance(error, config.ConfigException | OSError)
    return said if known else f"cannot be read ({said or type(error).__name__})"
