"""The API fuzzed from its own OpenAPI document: no 500, and no answer that the document does not have."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hived.errors import UnavailableError
from hived.server.app import make_app

from ..fakes import FakeService

TOKEN = "t0ken"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


class Fleeting(FakeService):
    """An engine that stops as soon as anybody waits for it, so that streams end."""

    async def changed(self, after: int) -> None:
        raise UnavailableError("the engine stops")

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        raise UnavailableError("the engine stops")


app = make_app(Fleeting(), Fleeting(live=False), token=TOKEN, hosts=("testserver",))
# of one seed: schemathesis would draw another on every run
schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=SchemathesisConfig(seed=1))


def check(case: Any) -> None:
    # 503 is the answer of an engine that stops, and no failure of the API
    case.call_and_validate(headers=HEADERS, checks=CHECKS)


@schema.parametrize()
@settings(phases=[Phase.explicit])
def test_every_bound(case: Any) -> None:
    """The values at the bounds of every field, and beside them."""
    check(case)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=25, phases=[Phase.generate])
def test_many_requests(case: Any) -> None:
    check(case)


class Lives(schema.as_state_machine()):  # type: ignore[misc]
    """Jobs are submitted, and what is answered is asked about in turn: read, explained, cancelled."""

    def get_call_kwargs(self, case: Any) -> dict[str, Any]:
        return {"headers": HEADERS}

    def validate_response(self, response: Any, case: Any, **more: Any) -> None:
        case.validate_response(response, checks=CHECKS, headers=HEADERS)


@pytest.mark.slow
class TestLives(Lives.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=5, stateful_step_count=8, deadline=None)
