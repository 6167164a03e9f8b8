"""A fake service on Kubernetes: groups are kept in a list, and a test scripts the plans."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

from fastapi import FastAPI

from hived.errors import ConflictError, ForbiddenError, NotFoundError, RequestError, UnavailableError
from hived.server.app import new_app
from hived.server.failures import Unexpected, declared
from hived.server.guard import Guard
from hived.server.kubernetes.app import api_routes
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.schema import (
    Drained,
    DrainRequest,
    GroupExplanation,
    GroupInfo,
    GroupPod,
    Groups,
    GroupStateName,
    NodeCounts,
    PlanAnswer,
    PlannedGroup,
    PlanRequest,
    PodPlace,
    SpecStatus,
    Status,
    VcDetail,
    VcSummary,
)
from hived.server.limits import Limits
from hived.server.pictures import Reserved
from hived.server.serving import Server

NODES = ("gpu1", "gpu2")
VCS = ("vision", "speech")
WHY = "needs 8 GPUs of vision's cells; 4 are free"
FAILURES = {
    503: UnavailableError("it lists pods and nodes; come back in a moment"),
    403: ForbiddenError("hived may not patch nodes"),
    409: ConflictError("this replica stands by"),
}


class FakeService(EngineService):
    """A service without an engine. ``fails``: raised by every call from now on."""

    def __init__(self) -> None:
        self.all: list[GroupInfo] = []
        self.drained: set[str] = set()
        self.planned: list[PlanRequest] = []
        self.asked: list[str] = []
        self.outcomes: dict[str, PlannedGroup] = {}  #: by the name of the object
        self.changes: dict[str, object] = {}  #: of the status
        self.doomed: list[str] = []
        self.fails: Exception | None = None

    # -- for tests

    def add(
        self,
        name: str,
        vc: str = "vision",
        state: GroupStateName = "placed",
        gpus: int = 4,
        priority: int = 0,
        why: tuple[str, ...] = (),
        kind: str | None = None,
    ) -> GroupInfo:
        """Add a group of one pod, on gpu1 if it is placed."""
        placed = state in ("placed", "reserved")
        kind = kind or ("opportunistic" if priority < 0 else "guaranteed")
        pod = GroupPod(
            namespace="team", name=f"{name.rpartition('/')[2]}-0", uid=f"uid-{name}",
            state="bound" if state == "placed" else "waiting", node="gpu1" if placed else "",
            devices=list(range(gpus)) if placed else [],
        )  # fmt: skip
        group = GroupInfo.model_validate(
            {
                "name": name, "vc": vc, "priority": priority, "state": state, "kind": kind if placed else None,
                "gpus": gpus, "size": 2, "pods": [pod], "since": time.time() - 200, "victims": [], "why": list(why),
            }
        )  # fmt: skip
        self.all.append(group)
        return group

    def plans(self, name: str, outcome: str, text: str = "", *, victims: tuple[str, ...] = ()) -> None:
        """Script the plan of the object ``name``."""
        self.outcomes[name] = PlannedGroup.model_validate(
            {
                "group": f"default/{name}", "vc": "vision", "gpus": 4, "outcome": outcome, "text": text,
                "placement": [PodPlace(node="gpu1", devices=[0, 1, 2, 3])] if outcome == "now" else [],
                "victims": list(victims), "reasons": [] if outcome == "now" else [{"kind": "vc_exhausted", "need": 4}],
            }
        )  # fmt: skip

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    # -- for the API

    def _of_vc(self, name: str) -> VcSummary:
        def gpus(kind: str) -> int:
            return sum(group.gpus for group in self.all if (group.vc, group.kind) == (name, kind))

        waiting = sum(group.vc == name and group.state == "waiting" for group in self.all)
        return VcSummary(
            name=name, reserved=8, used=gpus("guaranteed"), borrowed=gpus("opportunistic"), waiting=waiting
        )

    def status(self) -> Status:
        self._check()
        states = [group.state for group in self.all]
        status = Status(
            version="9.9.9", started_at=time.time() - 7200, identity="hived-0", leader=True, holder="hived-0",
            ready=True, spec=SpecStatus(source="configmap/hived/spec", loaded_at=time.time() - 60, problem=""),
            nodes=NodeCounts(total=2, healthy=2, bad=0, why=[], missing=[], unmanaged=0), gpus=16,
            guaranteed=sum(group.gpus for group in self.all if group.kind == "guaranteed"),
            opportunistic=sum(group.gpus for group in self.all if group.kind == "opportunistic"), reserved=0, bad=0,
            foreign=0, foreign_pods=[], groups={state: states.count(state) for state in dict.fromkeys(states)},
            vcs=[self._of_vc(name) for name in VCS], doomed=0, unavailable=0,
                safety_margin=1,
        )  # fmt: skip
        return status.model_copy(update=self.changes)

    def vc(self, name: str) -> VcDetail:
        self._check()
        if name not in VCS:
            raise NotFoundError(f"there is no virtual cluster {name!r}; there are {', '.join(VCS)}")
        of = [group for group in self.all if group.vc == name]
        return VcDetail(
            summary=self._of_vc(name),
            cells=[
                Reserved(cell_type="RACK.NODE", gpus=4, number=1, pinned=None),
                Reserved(cell_type="RACK.NODE", gpus=4, number=1, pinned="corner"),
            ],
            doomed=self.doomed,
            running=[group for group in of if group.kind is not None][:100],
            waiting=[group for group in of if group.kind is None][:100],
        )

    def groups(self, vc: str | None, state: str | None, limit: int, offset: int) -> Groups:
        self._check()
        found = sorted(
            (group for group in self.all if vc in (None, group.vc) and state in (None, group.state)),
            key=lambda group: group.name,
        )
        return Groups(groups=found[offset : offset + limit], total=len(found))

    def group(self, ref: str) -> GroupInfo:
        self._check()
        self.asked.append(ref)
        for group in self.all:
            if ref == group.name or any(ref == f"{pod.namespace}/{pod.name}" for pod in group.pods):
                return group
        raise NotFoundError(f"there is no group and no pod {ref!r}")

    def explain(self, ref: str) -> GroupExplanation:
        group = self.group(ref)
        text = "\n".join([f"{group.name} is {group.state}", *(f"- {why}" for why in group.why)])
        pod = "" if ref == group.name else ref
        return GroupExplanation(group=group.name, pod=pod, text=text, reasons=[{"kind": "vc_exhausted", "need": 8}])

    def plan(self, request: PlanRequest) -> PlanAnswer:
        self._check()
        self.planned.append(request)
        groups = []
        for number, thing in enumerate(request.objects):
            metadata = thing.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if name == "wrong":
                raise RequestError(f"objects.{number}", f"{thing['kind']} wrong: it asks for no GPUs")
            if name in self.outcomes:
                groups.append(self.outcomes[name])
        return PlanAnswer(groups=groups)

    async def drain(self, request: DrainRequest) -> Drained:
        self._check()
        if request.node not in NODES:
            raise NotFoundError(f"there is no node {request.node!r}; there are {', '.join(NODES)}")
        self.drained = self.drained - {request.node} if request.undo else self.drained | {request.node}
        there = [group.name for group in self.all if any(pod.node == request.node for pod in group.pods)]
        return Drained(node=request.node, drained=request.node in self.drained, gpus=8, groups=there)


def make_app(service: FakeService, token: str | None = None) -> FastAPI:
    """The API of ``service`` alone, behind the guard that it really has."""
    app = new_app("a fake", "", "kubernetes")
    app.include_router(api_routes(service), responses=declared() if token is None else declared(401))
    app.add_middleware(Limits)
    app.add_middleware(Guard, token=token, hosts=("testserver", "hived"), local=False)
    app.add_middleware(Unexpected)
    return app


class Answering:
    """An application served on a port of this machine, from a thread, until it is closed."""

    def __init__(self, app: FastAPI) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = Server()
        self._wait(self._server.start(app, listen=("127.0.0.1", 0)))
        self.url = f"http://127.0.0.1:{self._server.port}"

    def _wait(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    def close(self) -> None:
        """Nobody answers any more."""
        self._wait(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
