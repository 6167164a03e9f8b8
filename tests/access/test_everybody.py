"""Every route, asked by everybody, on a real engine: over the socket as users of the machine, over TCP by tokens."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from hived.access import Person
from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.job_users import JobUsers
from hived.engines.local.store import Store
from hived.errors import ConflictError
from hived.server.app import make_app
from hived.server.local_service import LocalService, local_view
from hived.server.serving import Server
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..contract.specs import flat
from ..engines.living import ended
from ..engines.real import PATIENCE_S

MASTER = "m" * 40
JOB = {"vc": "vision", "command": ["sleep", "600"], "gpus": 1}
CELLS = {"vc": "vision", "cells": {"cell_type": "NODE", "number": 1}, "duration_s": 3600.0}
#: what is asked of each route that is not for everybody, and who may: the owner of the engine may everything
RESTRICTED: dict[tuple[str, str], tuple[Any, set[str]]] = {
    ("POST", "/v1/jobs"): (JOB, {"ann", "bob", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/cancel"): (None, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/hold"): (None, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/release"): (None, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/requeue"): ({"hold": False}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/resubmit"): (None, {"ann"}),
    ("POST", "/v1/jobs/{ref}/suspend"): ({"timeout_s": 0.1}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/resume"): ({"timeout_s": 0.1}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/limit"): ({"share": 0.5}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/scale"): ({"workers": 2, "timeout_s": 0.1}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/priority"): ({"priority": 1}, {"ann", "carol", "olga"}),
    ("POST", "/v1/jobs/{ref}/edit"): ({"gpus": 2}, {"ann", "carol", "olga"}),
    ("GET", "/v1/logs/{ref}"): (None, {"ann", "carol", "olga"}),
    ("GET", "/v1/logs/{ref}/stream"): (None, {"ann", "carol", "olga"}),
    ("POST", "/v1/drain"): ({"node": "n-0", "undo": True}, {"olga"}),
    ("PUT", "/v1/spec"): ({"yaml": "{"}, {"olga"}),
    ("POST", "/v1/trades/offers"): (CELLS, {"carol", "olga"}),
    ("POST", "/v1/trades/requests"): (CELLS | {"vc": "vision"}, {"carol", "olga"}),
    ("POST", "/v1/trades/withdraw"): ({"number": 99, "vc": "vision"}, {"carol", "olga"}),
    ("POST", "/v1/tokens"): ({"user": "mallory"}, {"olga"}),
    ("POST", "/v1/tokens/{number}/revoke"): (None, {"olga"}),
}
#: what is done to several jobs, as to each of them
SEVERAL = {("POST", f"/v1/jobs/{what}") for what in ("cancel", "hold", "release", "requeue")}
#: routes that only look, or look ahead
OPEN = {
    "/v1/jobs", "/v1/jobs/{ref}", "/v1/training/{ref}", "/v1/explain/{ref}", "/v1/plan", "/v1/events",
    "/v1/events/stream", "/v1/decisions", "/v1/engine", "/v1/usage", "/v1/accounts", "/v1/vcs", "/v1/vcs/{name}",
    "/v1/nodes", "/v1/spec", "/v1/trades", "/v1/tokens", "/v1/me",
}  # fmt: skip
#: what everybody may do for themselves alone
OWN = {("POST", "/v1/sign-in-links"), ("POST", "/v1/sign-in"), ("POST", "/v1/sign-out")}
PEOPLE = ("ann", "bob", "carol", "olga", "eve")


def spec() -> ClusterSpec:
    plain: Any = flat({"vision": 2, "speech": 2})
    plain["virtualClusters"]["vision"] |= {"members": ["ann", "bob"], "admins": ["carol"]}
    return spec_from_dict(plain | {"operators": ["olga"]})


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[LocalService, Server]]:
    """A real engine, on its socket and on TCP; its jobs end with it."""
    folder.mkdir(exist_ok=True, mode=0o711)
    engine = Engine(spec(), Store(folder), Simulated(), job_users=JobUsers(1, shared=True))
    await engine.start()
    service, server = LocalService(engine), Server()
    source = local_view(service, "here")
    service.revoked = server.forget
    await server.start(
        make_app(service, source, token=MASTER, hosts=()),
        listen=("127.0.0.1", 0),
        socket_app=make_app(service, source, token=None, hosts=(), local=True),
        socket=folder / "s",
    )
    try:
        yield service, server
    finally:
        for job in list(engine.job_scheduler.jobs.values()):
            with suppress(ConflictError):  # it is being cancelled
                engine.cancel(str(job.id))
            await ended(engine, job)
        await server.stop()
        await engine.stop()


def client(server: Server, token: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=headers, timeout=60)


async def token_of(server: Server, user: str, **more: object) -> str:
    async with client(server, MASTER) as owner:
        answer = await owner.post("/v1/tokens", json={"user": user, **more})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["text"])


def test_every_route_is_restricted_or_open(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (service, _):
            app = make_app(service, local_view(service, "here"), token=MASTER, hosts=())
            paths = app.openapi()["paths"].items()
            found = {(method.upper(), path) for path, methods in paths for method in methods}
            found = {(method, path) for method, path in found if re.match("/v1/(?!dashboard)", path)}
            assert found - set(RESTRICTED) - SEVERAL - OWN == {
                ("POST" if path == "/v1/plan" else "GET", path) for path in OPEN
            }

    asyncio.run(story())


def test_every_route_as_everybody(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            job = await service.submit(service_job(), Person("ann", owns=True))
            tokens = {user: await token_of(server, user) for user in PEOPLE}
            number = next(token.id for token in service.tokens(None) if token.user == "ann")
            for (method, path), (body, who) in RESTRICTED.items():
                of = path.replace("{ref}", job.id).replace("{number}", "0" * 8 if "ann" in who else number)
                for user, token in tokens.items():
                    if path.endswith("cancel") and user in who:
                        continue
                    if path.endswith("revoke") and user in ("olga", "ann"):
                        continue  # her own
                    async with client(server, token) as there, there.stream(method, of, json=body) as answer:
                        forbidden = answer.status_code == 403
                        assert forbidden is (user not in who), (method, path, user, answer.status_code)
            for user, token in tokens.items():  # what would become of jobs is for operators too
                async with client(server, token) as there:
                    answer = await there.put("/v1/spec?dry_run=true", json={"yaml": "{"})
                    assert answer.status_code == (422 if user == "olga" else 403), user
            for path in OPEN - {"/v1/plan", "/v1/events/stream"}:
                of = path.replace("{ref}", job.id).replace("{name}", "vision")
                async with client(server, tokens["eve"]) as there:
                    of += "?start=0&end=1" if path == "/v1/accounts" else ""
                    assert (await there.get(of)).status_code in (200, 409), path

    asyncio.run(story())


def test_several_jobs_as_everybody(tmp_path: Path) -> None:
    """Each is asked about: what somebody may not do to one of them is done to the others."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            hers, his = [(await service.submit(service_job(), Person(user, owns=True))).id for user in ("ann", "bob")]
            may = {"ann": {hers}, "bob": {his}, "eve": set[str](), "carol": {hers, his}, "olga": {hers, his}}
            tokens = {user: await token_of(server, user) for user in may}

            async def codes(user: str, path: str) -> list[str]:
                async with client(server, tokens[user]) as there:
                    answer = await there.post(path, json={"jobs": [hers, his, "99"]})
                assert answer.status_code == 200, answer.text
                return [(one["error"] or {"code": ""})["code"] for one in answer.json()["outcomes"]]

            for _, path in SEVERAL - {("POST", "/v1/jobs/cancel")}:
                for user, own in may.items():
                    *of_jobs, of_none = await codes(user, path)
                    assert of_none == "not_found"
                    assert [code == "forbidden" for code in of_jobs] == [hers not in own, his not in own], (path, user)
            assert await codes("bob", "/v1/jobs/cancel") == ["forbidden", "", "not_found"]
            assert await codes("carol", "/v1/jobs/cancel") == ["", "conflict", "not_found"]

    asyncio.run(story())


def service_job() -> Any:
    from hived.server.schema import Submission

    return Submission.model_validate(JOB)


def test_revoked_token_and_cookie(tmp_path: Path) -> None:
    """A revoked token opens nothing, nor does the dashboard that was opened with it; what it streams ends."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            token = await token_of(server, "ann", vcs=["vision"])
            async with client(server) as browser, client(server, token) as there:
                assert (await browser.get(f"/?token={token}")).status_code == 303
                assert (await browser.get("/v1/usage")).status_code == 200
                (cookie,) = browser.cookies.jar
                assert token.rpartition("_")[2] not in (cookie.value or "")
                (known,) = service.tokens("ann")
                await ends_as_revoked(server, there, known.id)
                assert (await browser.get("/v1/usage")).status_code == 401
            async with client(server, token) as there:
                assert (await there.get("/v1/usage")).status_code == 401
            kinds = [event.text for event in service.events(-1, 100, None).events if event.kind.startswith("token")]
            name = service.owner.name
            assert kinds == [
                f"ann has a new token, {known.id}, limited to vision by {name}",
                f"token {known.id} of ann was revoked by {name}",
            ]

    asyncio.run(story())


def test_forged_cookies(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            token = await token_of(server, "ann")
            async with client(server) as browser:
                await browser.get(f"/?token={token}")
                ((name, value),) = [(cookie.name, cookie.value or "") for cookie in browser.cookies.jar]
            other = await token_of(server, "olga")
            number = next(one.id for one in service.tokens("olga"))
            mac = value.partition(".")[2]
            for forged in (f"{number}.{mac}", f".{mac}", number, f"{number}.", token, other, value[:-1], mac):
                async with client(server) as browser:
                    answer = await browser.get("/v1/usage", headers={"Cookie": f"{name}={forged}"})
                    assert answer.status_code == 401, forged
            async with client(server) as browser:  # the cookie looks, and changes nothing
                changes = await browser.post("/v1/jobs", json=JOB, headers={"Cookie": f"{name}={value}"})
                assert changes.status_code == 403

    asyncio.run(story())


def test_one_makes_tokens_for_oneself_alone(tmp_path: Path) -> None:
    """Over the socket, by the kernel's word; a token makes no other, so none makes itself last longer."""

    async def story() -> None:
        async with running(tmp_path / "state") as (_, server):
            token = await token_of(server, "ann", lasts_s=60.0)
            async with client(server, token) as there:
                answer = await there.post("/v1/tokens", json={"user": "ann"})
                assert answer.status_code == 403
                assert "a token makes no token" in answer.text
                assert [one["user"] for one in (await there.get("/v1/tokens")).json()] == ["ann"]

    asyncio.run(story())


async def ends_as_revoked(server: Server, there: httpx.AsyncClient, number: str) -> None:
    """What is streamed to somebody ends as their token is revoked."""
    async with there.stream("GET", "/v1/events/stream") as stream:
        assert stream.status_code == 200
        async with client(server, MASTER) as owner:
            assert (await owner.post(f"/v1/tokens/{number}/revoke")).status_code == 200
        with pytest.raises(httpx.HTTPError):
            await asyncio.wait_for(stream.aread(), PATIENCE_S)


async def signed_in(server: Server, token: str) -> str:
    """The key of a session that is begun with a token."""
    async with client(server, token) as there, client(server) as browser:
        code = (await there.post("/v1/sign-in-links")).json()["code"]
        return str((await browser.post("/v1/sign-in", json={"code": code})).json()["key"])


def test_a_session_is_who_asked_for_it(tmp_path: Path) -> None:
    """It acts as them, in the virtual clusters of their token alone, and makes neither tokens nor other sessions."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            job = await service.submit(service_job(), Person("ann", owns=True))
            keys = {user: await signed_in(server, await token_of(server, user)) for user in ("ann", "bob", "eve")}
            limited = await signed_in(server, await token_of(server, "ann", vcs=["speech"]))
            for key, may in ((keys["bob"], 403), (keys["eve"], 403), (limited, 403), (keys["ann"], 202)):
                async with client(server, key) as there:
                    assert (await there.post(f"/v1/jobs/{job.id}/cancel")).status_code == may
                    assert (await there.post("/v1/sign-in-links")).status_code == 403
                    assert (await there.post("/v1/tokens", json={"user": "ann"})).status_code == 403
            async with client(server, keys["bob"]) as there:
                me = (await there.get("/v1/me")).json()
                assert (me["user"], me["acts"], me["operator"]) == ("bob", True, False)
                assert me["roles"] == {"vision": "member", "speech": "viewer"}
                again = await there.post(f"/v1/jobs/{job.id}/resubmit")
                assert (again.status_code, "it is ann's" in again.text) == (403, True)
            async with client(server) as nobody:
                assert (await nobody.post("/v1/sign-in-links")).status_code == 401
            texts = [event.text for event in service.events(-1, 100, None).events if event.kind == "signed_in"]
            assert next(text.split(" (")[0] for text in texts) == "ann signed in to the dashboard"

    asyncio.run(story())


def test_a_link_works_once(tmp_path: Path) -> None:
    """And neither a wrong code nor the id of a session opens anything."""

    async def story() -> None:
        async with running(tmp_path / "state") as (_service, server):
            async with client(server, await token_of(server, "ann")) as there, client(server) as browser:
                code = (await there.post("/v1/sign-in-links")).json()["code"]
                assert (await browser.post("/v1/sign-in", json={"code": code[:-1]})).status_code == 404
                begun = await browser.post("/v1/sign-in", json={"code": code})
                assert begun.status_code == 201
                assert (await browser.get("/v1/usage")).status_code == 200  # by the cookie
                looks = (await browser.get("/v1/me")).json()
                assert (looks["user"], looks["acts"]) == ("ann", False)
                refused = await browser.post("/v1/jobs", json=JOB)
                assert (refused.status_code, "only looks" in refused.text) == (403, True)
                second = await browser.post("/v1/sign-in", json={"code": code})
                assert (second.status_code, "was used already" in second.text) == (404, True)
            number = begun.json()["key"].split("_")[1]
            for forged in (number, f"hived_{number}_{'0' * 64}", f"hived_{number}_"):
                async with client(server, forged) as there:
                    assert (await there.get("/v1/usage")).status_code == 401
            # a page of another origin neither asks for a link nor uses one
            async with client(server, await token_of(server, "ann")) as there:
                for path, body in (("/v1/sign-in-links", None), ("/v1/sign-in", {"code": code})):
                    answer = await there.post(path, json=body, headers={"Origin": "http://evil.example"})
                    assert answer.status_code == 403

    asyncio.run(story())


def test_a_session_of_an_operator_makes_no_tokens(tmp_path: Path) -> None:
    """One of twelve hours would be one for ever. Nor does a cookie show what a job prints, since it goes anywhere."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            job = await service.submit(service_job(), Person("ann", owns=True))
            for token in (MASTER, await token_of(server, "olga")):
                async with client(server, await signed_in(server, token)) as there:
                    for user in ("olga", "ann", "mallory"):
                        refused = await there.post("/v1/tokens", json={"user": user})
                        assert (refused.status_code, "signed in makes no tokens" in refused.text) == (403, True)
            async with client(server) as browser:
                await browser.get(f"/?token={MASTER}")
                assert (await browser.get("/v1/usage")).status_code == 200
                for path in (f"/v1/logs/{job.id}", f"/v1/logs/{job.id}/stream"):
                    refused = await browser.get(path)
                    assert (refused.status_code, "shows no output" in refused.text) == (403, True)

    asyncio.run(story())


def test_who_has_shown_nothing_sends_little(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (_, server), client(server) as nobody:
            answer = await nobody.post("/v1/sign-in", content=b'{"code": "' + b"x" * 5000)
            assert (answer.status_code, "over 4,096 bytes" in answer.text) == (413, True)

    asyncio.run(story())


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    """And when the browser signs out, or the engine ends; what is streamed to it ends too."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            token = await token_of(server, "ann")
            key = await signed_in(server, token)
            async with client(server, token) as there:
                code = (await there.post("/v1/sign-in-links")).json()["code"]  # not used yet
            session, known = service.tokens("ann")
            assert (session.by, known.by) == ("hived dashboard", service.owner.name)
            async with client(server, key) as there:
                await ends_as_revoked(server, there, known.id)
            async with client(server, key) as there, client(server) as browser:
                assert (await there.get("/v1/usage")).status_code == 401
                assert (await browser.post("/v1/sign-in", json={"code": code})).status_code == 404
            key = await signed_in(server, await token_of(server, "bob"))
            async with client(server, key) as there:
                assert (await there.post("/v1/sign-out")).status_code == 200
                assert (await there.get("/v1/usage")).status_code == 401
            async with client(server, await signed_in(server, await token_of(server, "eve"))) as there:
                (own,) = [token.id for token in service.tokens("eve") if token.by == "hived dashboard"]
                await ends_as_revoked(server, there, own)  # by somebody else, with the list of tokens
                assert (await there.get("/v1/usage")).status_code == 401
            texts = [event.text for event in service.events(-1, 100, None).events if event.kind == "signed_out"]
            assert [text.partition(" (")[0] for text in texts] == [
                f"{user} was signed out of the dashboard" for user in ("bob", "eve")
            ]
            assert texts[-1].endswith(f" by {service.owner.name}")

    asyncio.run(story())


def test_tokens_after_a_restart(tmp_path: Path) -> None:
    async def first() -> str:
        async with running(tmp_path / "state") as (_, server):
            return await token_of(server, "ann")

    async def second(token: str) -> None:
        async with running(tmp_path / "state") as (_, server), client(server, token) as there:
            assert (await there.post("/v1/jobs", json=JOB)).json()["user"] == "ann"

    asyncio.run(second(asyncio.run(first())))


def test_a_name_is_ones_own_first(tmp_path: Path) -> None:
    """Somebody else submits under the same name: hers is still the one that she means."""

    async def story() -> None:
        async with running(tmp_path / "state") as (_, server):
            ann, bob = [await token_of(server, user) for user in ("ann", "bob")]
            async with client(server, ann) as hers, client(server, bob) as his:
                for there in (hers, his):
                    assert (await there.post("/v1/jobs", json=JOB | {"name": "train"})).status_code == 201
                after = JOB | {"name": "late", "after": [{"job": "train"}]}
                assert (await hers.post("/v1/jobs", json=after)).json()["why"] == ["until train-1 has ended"]
                assert (await hers.get("/v1/explain/train")).json()["job"] == "1"
                assert (await his.get("/v1/explain/late")).json()["job"] == "3"
                assert (await hers.post("/v1/jobs/train/cancel")).json()["name"] == "train-1"
                assert (await his.get("/v1/jobs/train")).json()["state"] == "running"

    asyncio.run(story())


def test_an_operator_is_not_the_owner(tmp_path: Path) -> None:
    """They make tokens for others, and none for whose the engine is, nor for root."""

    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            token = await token_of(server, "olga")
            async with client(server, token) as there:
                assert (await there.post("/v1/tokens", json={"user": "ann"})).status_code == 201
                for user in ("root", service.owner.name):
                    answer = await there.post("/v1/tokens", json={"user": user})
                    assert (answer.status_code, "whose the engine is" in answer.text) == (403, True)

    asyncio.run(story())


def test_a_limited_token_ends_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (service, server):
            await token_of(server, "ann")
            (whole,) = service.tokens("ann")
            async with client(server, await token_of(server, "ann", vcs=["vision"])) as there:
                assert (await there.post(f"/v1/tokens/{whole.id}/revoke")).status_code == 403
                (own,) = [token for token in service.tokens("ann") if token.vcs]
                assert (await there.post(f"/v1/tokens/{own.id}/revoke")).status_code == 200

    asyncio.run(story())


def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "state") as (_, server):
            for lasts_s in (1.0, 4.0, 16.0, 64.0):
                token = await token_of(server, "ann", lasts_s=lasts_s)
                async with client(server, token) as there, there.stream("GET", "/v1/events/stream") as stream:
                    if stream.status_code == 401 and lasts_s < 64:
                        continue  # it was over before it was asked with: a slow machine
                    assert stream.status_code == 200
                    with pytest.raises(httpx.HTTPError):
                        await asyncio.wait_for(stream.aread(), lasts_s + 120)
                    break

    asyncio.run(story())


def test_an_array_that_takes_long_to_read(tmp_path: Path) -> None:
    """It was spelled out before anybody asked who wants it: minutes in which the engine did nothing else."""

    async def story() -> None:
        async with running(tmp_path / "state") as (_, server):
            token = await token_of(server, "ann")
            async with client(server, token) as there:
                for text in ("0-9999," * 12_000 + "1", "0-9999," * 500 + "1"):
                    answer = await there.post("/v1/jobs", json=JOB | {"array": text})
                    assert answer.status_code == 422

    asyncio.run(story())


ASK = """
import json, os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
for method, path, body in json.loads(sys.argv[2]):
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(sys.argv[1])
        text = "" if body is None else json.dumps(body)
        head = f"{method} {path} HTTP/1.1\\r\\nHost: hived\\r\\nConnection: close\\r\\n"
        head += f"Content-Type: application/json\\r\\nContent-Length: {len(text)}\\r\\n\\r\\n"
        there.sendall((head + text).encode())
        answer = b""
        while part := there.recv(65536):
            answer += part
    print(answer.split()[1].decode(), answer.rpartition(b"\\r\\n\\r\\n")[2].decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_second_user_of_the_machine(open_folder: Path) -> None:
    """The kernel says who asks: who reaches the socket without a role looks, and changes nothing."""

    async def story() -> None:
        async with running(open_folder / "state") as (service, _):
            (open_folder / "state" / "s").chmod(0o666)
            job = await service.submit(service_job(), Person("ann", owns=True))
            asked = [
                ("GET", "/v1/jobs", None),
                ("POST", "/v1/jobs", JOB),
                ("POST", f"/v1/jobs/{job.id}/cancel", {}),
                ("GET", f"/v1/logs/{job.id}", None),
                ("POST", "/v1/drain", {}),
                ("POST", "/v1/tokens", {"user": "root"}),
                ("POST", "/v1/tokens", {"user": pwd.getpwuid(65534).pw_name}),
            ]
            command = [sys.executable, "-c", ASK, str(open_folder / "state" / "s"), json.dumps(asked)]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, problems = await process.communicate()
            answers = out.decode().splitlines()
            assert [line.split()[0] for line in answers] == ["200", "403", "403", "403", "403", "403", "201"], problems
            assert f"{pwd.getpwuid(65534).pw_name} may not cancel {job.name}: it is ann's job in vision" in answers[2]
            assert "ask an admin of vision (carol) or an operator (root, olga)" in answers[2]

    asyncio.run(story())
