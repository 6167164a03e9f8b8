"""What the dashboard asks of whoever it shows."""

from __future__ import annotations

from typing import Protocol

from .pictures import Comparison, Curves, EndedJobs, Layout, Picture, Queue, Story, Update


class Source(Protocol):
    """An engine that runs, a simulation that has ended, and later Kubernetes.

    ``view`` is the key of one of the layout's views; another is a :class:`~hived.errors.NotFoundError`.
    """

    @property
    def live(self) -> bool:
        """Whether there will be updates; without, ``picture`` takes any time of the layout."""

    def layout(self) -> Layout:
        """What does not change from moment to moment. O(cluster)."""

    def picture(self, view: str, at: float | None = None) -> Picture:
        """The moment ``at`` (None: now, or the end). O(jobs that hold GPUs)."""

    def update(self, view: str, seq: int) -> Update | None:
        """What changed since the picture or update ``seq``. O(what changed).

        None: take a picture, since it is too long ago, or the layout has changed.
        """

    async def changed(self, seq: int) -> None:
        """Return once something is newer than ``seq``."""

    def curves(self, view: str) -> Curves:
        """Over time, at most 2,000 points."""

    def story(self, view: str, job: str) -> Story:
        """A job's life. Raises :class:`~hived.errors.NotFoundError`."""

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        """Waiting jobs in the order of a picture's queue, from place ``offset`` (0-based) on. O(offset + limit)."""

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        """Jobs that have ended by ``at``, the latest first, from place ``offset`` on."""

    def comparison(self) -> Comparison | None:
        """The views side by side; None where there is only one."""
