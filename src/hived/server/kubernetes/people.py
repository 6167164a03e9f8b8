"""People whom Kubernetes knows, for the API of the service there."""

from __future__ import annotations

from hived.access import Person
from hived.engines.kubernetes.client.token_review import TokenReviews


class People:
    """Whose tokens are: implements :class:`~hived.server.guard.Holders` by reviews of the API server."""

    #: who has the service's own token
    owner = Person("", owns=True)

    def __init__(self, reviews: TokenReviews) -> None:
        self._reviews = reviews

    async def holder(self, text: str) -> Person | None:
        """Whose a token of this cluster is."""
        found = await self._reviews.who(text)
        return None if found is None else Person(*found)

    def by_id(self, _number: str) -> Person | None:
        """Tokens of Kubernetes have no ids: no cookie is made of one."""
        return None
