"""Who may ask: tokens, host names, origins."""

from __future__ import annotations

import httpx

from hived.server.guard import looking, session

from ..fakes import FakeService, local_app
from .client import Client, error

TOKEN = "s3cret-token"
OTHER = "another-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOME = "http://localhost:8080"
JOB = {"vc": "vision", "command": ["true"]}
NAME, VALUE = session(TOKEN)


def tcp(service: FakeService, base_url: str = HOME, hosts: tuple[str, ...] = (), token: str = TOKEN) -> Client:
    """What a client over TCP sees."""
    return Client(local_app(service, token, hosts), base_url=base_url)


def signed_in(service: FakeService) -> Client:
    client = tcp(service)
    assert client.get(f"/?token={TOKEN}").status_code == 303
    return client


# -- the token


def test_no_token_is_refused(service: FakeService) -> None:
    client = tcp(service)
    shown = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
    ]
    cookies = [f"{NAME}=", f"{NAME}=wrong", f"{NAME}={TOKEN}", f"hived_token={TOKEN}", f"other={VALUE}"]
    strange = [b"Bearer \xff\xfe", b"Bearer t\xc3\xb6ken", b"bearer " + b"x" * 8_000]
    asked = [("Authorization", text.encode()) for text in shown] + [("Cookie", text.encode()) for text in cookies]
    for name, value in [("X-None", b""), *asked, *(("Authorization", raw) for raw in strange)]:
        for path in ("/v1/usage", "/v1/dashboard/layout", "/v1/nothing", "/v1", "//v1/usage", "/static2"):
            response = client.get(path, headers=httpx.Headers({name.encode(): value}))
            assert response.status_code == 401, (path, value)
            assert error(response)["code"] == "unauthorized"
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert TOKEN not in response.text
    assert client.get("/?token=%FF%00%ED%A0%80").status_code == 401


def test_right_token_is_answered(service: FakeService) -> None:
    client = tcp(service)
    assert client.get("/v1/usage", headers=BEARER).status_code == 200
    assert client.get("/v1/usage", headers={"Authorization": f"bearer  {TOKEN} "}).status_code == 200
    assert client.post("/v1/jobs", headers=BEARER, json=JOB).status_code == 201


def test_line_break_after_a_path_is_no_way_past_limits(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in (*paths, "/healthz", "/metrics", "/"):
        for method in ("GET", "HEAD", "POST", "DELETE"):
            response = client.request(method, f"{path.replace('{ref}', '1')}%0A")
            assert response.status_code == 404, (method, path)


def test_page_and_files_need_no_token(service: FakeService) -> None:
    for path in ("/", "/healthz", "/openapi.json"):
        assert tcp(service).get(path).status_code == 200, path
    assert tcp(service).get("/static/nothing").status_code == 404


def test_link_signs_the_browser_in(service: FakeService) -> None:
    client = tcp(service)
    response = client.get(f"/?token={TOKEN}")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    for part in (f"{NAME}={VALUE}", "httponly", "samesite=strict", "path=/"):
        assert part in cookie
    assert "secure" not in cookie, "over plain HTTP it would not come back"
    assert "token" not in response.headers["location"]
    assert client.get("/v1/usage").status_code == 200
    assert client.get("/v1/usage", headers={"Authorization": "Bearer wrong"}).status_code == 401
    over_tls = tcp(service, base_url="https://localhost:8080").get(f"/?token={TOKEN}")
    assert "secure" in over_tls.headers["set-cookie"].lower()


def test_cookie_has_nothing_of_the_token(service: FakeService) -> None:
    """It goes to every server on this host."""
    cookie = tcp(service).get(f"/?token={TOKEN}").headers["set-cookie"]
    assert TOKEN not in cookie
    stolen = cookie.partition("=")[2].partition(";")[0]
    assert tcp(service).get("/v1/usage", headers={"Authorization": f"Bearer {stolen}"}).status_code == 401
    assert tcp(service).get(f"/?token={stolen}").status_code == 401


def test_link_can_be_given_on(service: FakeService) -> None:
    """It had the engine's own token in it: who was shown the dashboard could run jobs as root."""
    shown = looking(TOKEN)
    client = tcp(service)
    assert client.get(f"/?token={shown}").status_code == 303
    assert client.get("/v1/usage").status_code == 200
    assert client.post("/v1/jobs", json=JOB).status_code == 403
    assert tcp(service).get("/v1/usage", headers={"Authorization": f"Bearer {shown}"}).status_code == 401
    assert tcp(service, token=OTHER).get(f"/?token={shown}").status_code == 401


def test_two_servers_on_one_host(service: FakeService) -> None:
    """A browser is signed in to both, and neither's cookie opens the other."""
    one, other = tcp(service), tcp(service, base_url="http://localhost:8081", token=OTHER)
    assert one.get(f"/?token={TOKEN}").status_code == 303
    other.cookies = one.cookies  # a browser has one jar for all ports of a host
    assert other.get(f"/?token={OTHER}").status_code == 303
    one.cookies = other.cookies
    assert one.get("/v1/usage").status_code == 200
    assert other.get("/v1/usage").status_code == 200
    name, value = session(OTHER)
    for cookie in (f"{name}={value}", f"{NAME}={value}", f"{name}={VALUE}"):
        assert tcp(service).get("/v1/usage", headers={"Cookie": cookie}).status_code == 401


def test_link_that_does_not_sign_in(service: FakeService) -> None:
    for base_url, token, status in ((HOME, "wrong", 401), ("http://evil.example", TOKEN, 403)):
        response = tcp(service, base_url).get(f"/?token={token}")
        assert response.status_code == status
        assert "set-cookie" not in response.headers


def test_socket_needs_no_token(client: Client) -> None:
    assert client.get("/v1/usage").status_code == 200
    assert client.post("/v1/jobs", json=JOB).status_code == 201


def test_openapi_says_how_the_token_is_sent(service: FakeService, client: Client) -> None:
    document = tcp(service).get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert document["security"] == [{"token": []}]
    assert "401" in document["paths"]["/v1/jobs"]["post"]["responses"]
    assert "securitySchemes" not in client.get("/openapi.json").json()["components"]


# -- host names


OWN = [
    "localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:9999", "gpu1", "gpu1:7", "gpu2:80",
]  # fmt: skip
OTHERS = [
    "evil.example", "evil.example:8080", "localhost.evil.example", "localhost@evil.example",
    "evil.example#localhost", "evil.example/localhost", r"evil.example\@localhost", "localhost:8080:8080",
    "localhost:99999", "[::1", "gpu2", "gpu2:81", "192.0.2.1",
]  # fmt: skip


def test_host_names(service: FakeService) -> None:
    client = tcp(service, hosts=("gpu1", "GPU2:80"))
    for host in OWN:
        assert client.get("/v1/usage", headers={**BEARER, "Host": host}).status_code == 200, host
    for host in ("", *OTHERS):
        for path in ("/v1/usage", "/", "/healthz", "/openapi.json"):
            response = client.get(path, headers={**BEARER, "Host": host})
            assert (response.status_code, error(response)["code"]) == (403, "forbidden"), (path, host)


def test_host_names_of_the_socket(service: FakeService, client: Client) -> None:
    for host in ("hived", "localhost", "127.0.0.1:9000", "engine:80"):
        assert client.get("/v1/usage", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:9000", "a b"):
        assert client.get("/v1/usage", headers={"Host": host}).status_code == 403, host


# -- origins

FOREIGN = [
    "http://evil.example", "http://localhost", "http://localhost:3000", "http://127.0.0.1:8080",
    "http://localhost:8080/", "https://localhost.evil.example:8080", "http://localhost:8080@evil.example",
    "http://evil.example#localhost:8080", "ftp://localhost:8080", "localhost:8080", "null",
]  # fmt: skip


def test_foreign_page(service: FakeService, client: Client) -> None:
    browser = signed_in(service)
    for origin in ("", *FOREIGN):
        for response in (
            browser.post("/v1/jobs", json=JOB, headers={"Origin": origin}),
            browser.post("/v1/jobs", json=JOB, headers={"Origin": origin, **BEARER}),
            browser.get("/v1/usage", headers={"Origin": origin}),
            client.post("/v1/jobs", json=JOB, headers={"Origin": origin, "Host": "x:9000"}),  # a forwarded socket
        ):
            assert (response.status_code, error(response)["code"]) == (403, "forbidden"), origin
    assert not service.all


def test_own_page_with_the_token(service: FakeService) -> None:
    """Behind TLS too; but one foreign origin among ours is foreign."""
    assert signed_in(service).post("/v1/jobs", json=JOB, headers={"Origin": HOME, **BEARER}).status_code == 201
    headers = {**BEARER, "Host": "gpu1", "Origin": "https://gpu1"}
    assert tcp(service, hosts=("gpu1",)).post("/v1/jobs", json=JOB, headers=headers).status_code == 201
    both = httpx.Headers([("Origin", HOME), ("Origin", "http://evil.example"), *BEARER.items()])
    assert tcp(service).post("/v1/jobs", json=JOB, headers=both).status_code == 403


def test_cookie_changes_nothing(service: FakeService) -> None:
    client = signed_in(service)
    for headers in ({}, {"Origin": HOME}):  # whoever has taken the cookie can write any header
        for method, path in (("POST", "/v1/jobs"), ("PUT", "/v1/spec"), ("DELETE", "/v1/jobs"), ("POST", "/v1/drain")):
            assert client.request(method, path, json=JOB, headers=headers).status_code == 403, path
    assert not service.all


def test_no_foreign_origin_reads(service: FakeService) -> None:
    response = tcp(service).get("/v1/usage", headers={**BEARER, "Origin": HOME})
    assert "access-control-allow-origin" not in response.headers
    preflight = tcp(service).request(
        "OPTIONS", "/v1/jobs", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 403


def test_headers_of_answers(client: Client) -> None:
    for path in ("/v1/usage", "/v1/jobs/9", "/", "/nothing"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY", path
        assert headers["cross-origin-resource-policy"] == "same-origin", path
        assert headers["referrer-policy"] in ("same-origin", "no-referrer"), path
        assert headers["cache-control"] in ("no-store", "no-cache"), path
