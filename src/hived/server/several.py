"""One operation on several jobs: ``/v1/jobs/cancel`` and the like, in one turn of the engine and one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hived.errors import ConflictError, ForbiddenError, HivedError, NotFoundError

from . import schema
from .service import Service, in_short


async def each(
    service: Service[Any], refs: Sequence[str], act: Callable[[str], Awaitable[schema.Job]]
) -> schema.JobOutcomes:
    """The outcomes of ``act``, which does not wait, for each of these jobs, in their order.

    A job that refuses it keeps no other from it. None starts before all are done. Raises what concerns all of them.
    """
    found: list[schema.Job | HivedError] = []
    with service.together():
        for ref in refs:
            try:
                found.append(await act(ref))
            except (NotFoundError, ConflictError, ForbiddenError) as error:
                found.append(error)
    return schema.JobOutcomes(outcomes=[_outcome(service, one) for one in found])


def _outcome(service: Service[Any], one: schema.Job | HivedError) -> schema.JobOutcome:
    if isinstance(one, HivedError):
        return schema.JobOutcome(error=schema.Error(code=one.code, message=str(one)))
    # whether a job has started, the end of the turn has decided
    return schema.JobOutcome(job=in_short(one if one.state.ended else service.job(one.id)))
