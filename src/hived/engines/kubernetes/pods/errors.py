"""What is raised where what a pod says cannot be."""

from __future__ import annotations

from hived.errors import InputError


class PodRequestError(InputError):
    """What a pod says cannot be understood, or cannot be. ``kind`` is a word for metrics."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
