"""kube-scheduler's extender protocol: filter, bind, preempt. Wire names and error fields are those of Go."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request, Response

from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs import extender_answers as wire
from hived.errors import ForbiddenError, HivedError
from hived.server.failures import answer as failure

from .metrics import KubernetesMetrics

_log = logging.getLogger("hived.kubernetes")
_QUIET_S = 10.0  #: between two log lines about wrong requests
_filter_args = msgspec.json.Decoder(wire.FilterArgs)
_preempt_args = msgspec.json.Decoder(wire.PreemptArgs)
_bind_args = msgspec.json.Decoder(wire.BindArgs)

#: result label and answer of a request
_Answered = tuple[str, wire.Answer | wire.Victims | Response]


class _NodeName(msgspec.Struct, frozen=True):
    name: str


class _NodeItem(msgspec.Struct, frozen=True):
    metadata: _NodeName


class _NodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


def extender_routes(engine: Engine, metrics: KubernetesMetrics, *, needs_certificate: bool) -> APIRouter:
    """``/v1/extender/*``. ``needs_certificate``: refuse clients that have shown none."""
    router = APIRouter(prefix="/v1/extender", include_in_schema=False)
    quiet = {"since": float("-inf")}

    async def answered(
        verb: str,
        request: Request,
        ask: Callable[[bytes], Awaitable[_Answered]],
        wrong: Callable[[str, str], wire.Answer | Response],
    ) -> Response:
        """Time a request, and answer errors in the form that kube-scheduler reads."""
        began = time.perf_counter()
        found: wire.Answer | wire.Victims | Response
        try:
            if needs_certificate and not getattr(request.state, "certificate", False):
                raise ForbiddenError("kube-scheduler has to show a client certificate of the given authority")
            result, found = await ask(await request.body())
        except (msgspec.DecodeError, RecursionError) as error:
            result, found = "malformed", wrong("malformed", f"this is no question of kube-scheduler's: {error}")
        except HivedError as error:
            result, found = error.code, wrong(error.code, str(error))
            if result == "bug":
                _log.error("%s cannot be answered, which is a bug of hived", verb, exc_info=error)
        if result in ("malformed", "forbidden") and began - quiet["since"] > _QUIET_S:
            quiet["since"] = began  # the metric counts them all
            peer = request.client.host if request.client is not None else "?"
            _log.warning("%s was asked by %s in a way that is %s", verb, peer, result)
        metrics.observe(verb, result, time.perf_counter() - began)
        if not isinstance(found, Response):
            found = Response(wire.encoder.encode(found), media_type="application/json")
        if result == "unavailable":
            found.headers["Connection"] = "close"  # the next connection may reach the leader
        return found

    async def ask_filter(body: bytes) -> _Answered:
        args = _filter_args.decode(body)
        if args.NodeNames is not None:
            return await engine.filter(args.Pod, args.NodeNames)
        # nodeCacheCapable: false
        nodes = _whole(args.Nodes)
        result, found = await engine.filter(args.Pod, list(nodes))
        if found.NodeNames is not None:
            items = [nodes[name] for name in found.NodeNames]
            found = msgspec.structs.replace(found, NodeNames=None, Nodes={"items": items})
        return result, found

    async def ask_preempt(body: bytes) -> _Answered:
        args = _preempt_args.decode(body)
        return await engine.preempt(args.Pod, args.NodeNameToMetaVictims or {})

    async def ask_bind(body: bytes) -> _Answered:
        args = _bind_args.decode(body)
        await engine.bind(args.PodUID, args.Node, f"{args.PodNamespace}/{args.PodName}")
        return "ok", wire.Answer()

    @router.post("/filter")
    async def filter_nodes(request: Request) -> Response:
        return await answered("filter", request, ask_filter, lambda _, why: wire.Answer(Error=why))

    @router.post("/preempt")
    async def preempt_pods(request: Request) -> Response:
        # its answer has no place for an error
        return await answered("preempt", request, ask_preempt, failure)

    @router.post("/bind")
    async def bind_pod(request: Request) -> Response:
        return await answered("bind", request, ask_bind, lambda _, why: wire.Answer(Error=why))

    return router


def _whole(sent: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """A list of nodes, by name, each as it came."""
    nodes = msgspec.json.decode(sent, type=_NodeList | None)
    items = (nodes.items if nodes is not None else None) or ()
    return {msgspec.json.decode(item, type=_NodeItem).metadata.name: item for item in items}
