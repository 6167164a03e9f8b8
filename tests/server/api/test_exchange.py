"""The market over HTTP: offers, requests, trades, and everything that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Client

HOUR = 3600.0


def offer(client: Client, **more: Any) -> Any:
    body = {"vc": "vision", "cells": {"cell_type": "NODE", "number": 1}, "duration_s": HOUR}
    return client.post("/v1/exchange/offers", json=body | more)


def request(client: Client, **more: Any) -> Any:
    body = {"vc": "speech", "cells": {"cell_type": "NODE", "number": 1}, "duration_s": HOUR}
    return client.post("/v1/exchange/requests", json=body | more)


def test_an_offer_waits_for_a_request_and_becomes_a_trade(client: Client) -> None:
    posted = offer(client, cells={"cell_type": "NODE", "number": 2})
    assert (posted.status_code, posted.json()) == (201, {"number": 1, "waits": True, "trades": []})
    market = client.get("/v1/exchange").json()
    assert market["arbiter"] == "balanced"
    (post,) = market["offers"]
    assert (post["number"], post["vc"], post["cells"]) == (1, "vision", {"cell_type": "NODE", "number": 2})
    assert (post["start"], post["end"]) == (1_000, 4_600)
    posted = request(client).json()
    (trade,) = posted["trades"]
    assert (posted["number"], posted["waits"]) == (2, False)
    assert (trade["giver"], trade["taker"], trade["on"], trade["gpu_hours"]) == ("vision", "speech", True, 4)
    market = client.get("/v1/exchange").json()
    assert (market["trades"], market["surplus"]) == ([trade], {"vision": 4, "speech": -4})
    assert [post["cells"]["number"] for post in market["offers"]] == [1]


def test_cells_in_return_are_of_who_has_them(client: Client) -> None:
    both = {"cell_type": "NODE", "number": 1}, {"cell_type": "SOCKET", "number": 1}
    refused = request(client, gives=both[1])
    assert refused.json()["error"]["field"] == "gives"
    assert "speech has 0 x NODE.SOCKET in that time, and gives 1" in refused.json()["error"]["message"]
    refused = offer(client, wants=both[1])
    assert refused.json()["error"]["field"] == "wants"
    assert "no other tenant has 1 x NODE.SOCKET" in refused.json()["error"]["message"]


def test_a_post_is_withdrawn_by_its_virtual_cluster(client: Client) -> None:
    number = offer(client).json()["number"]
    path, mine = "/v1/exchange/withdraw", {"number": number, "vc": "vision"}
    assert client.post(path, json=mine | {"vc": "speech"}).status_code == 409
    assert client.post(path, json=mine).json()["offers"] == []
    assert client.post(path, json=mine).status_code == 404


@pytest.mark.parametrize(
    ("more", "field", "says"),
    [
        ({"vc": "nobody"}, "vc", "no such virtual cluster; there is vision, speech"),
        ({"cells": {"cell_type": "RACK"}}, "cells.cell_type", "no such cell type; there is"),
        ({"cells": {"cell_type": "NODE", "number": 3}}, "cells.number", "vision has 2 x NODE in that time, and offers"),
        ({"cells": {"cell_type": "NODE", "number": 0}}, "cells.number", ""),
        ({"start": 999.0}, "start", "is over"),
        ({"duration_s": 0}, "duration_s", ""),
        ({"duration_s": -5.0}, "duration_s", ""),
        ({"wants": {"cell_type": "NODE"}}, "wants", "of another level"),
        ({"price": -1.0}, "price", ""),
        ({"colour": "red"}, "colour", ""),
    ],
)
def test_what_cannot_be_offered_is_one_clear_error(client: Client, more: Any, field: str, says: str) -> None:
    answer = offer(client, **more)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["field"] == field
    assert says in answer.json()["error"]["message"]
    assert client.get("/v1/exchange").json()["offers"] == []
