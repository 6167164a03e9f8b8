"""What anybody may have written on a pod: YAML read as a spec is, or refused in words."""

from __future__ import annotations

from typing import Any

from hived.errors import InputError, SpecError
from hived.spec import read_documents

#: characters: more than all annotations of an object may have
_LONGEST = 262_144


class PodRequestError(InputError):
    """What a pod says cannot be understood, or cannot be. ``kind`` is a word for metrics."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_yaml(text: str) -> Any:
    """The value that ``text`` stands for, None for nothing. Raises :class:`ValueError`, in words. O(text)."""
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text):,} characters; at most {_LONGEST:,}")
    try:
        documents = list(read_documents(text, "YAML"))
    except SpecError as error:
        raise ValueError(str(error)) from None
    if len(documents) > 1:
        raise ValueError(f"{len(documents)} YAML documents, not one")
    return documents[0].data if documents else None


def word(value: object) -> str:
    """A value as it was given, cut where it is long."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
