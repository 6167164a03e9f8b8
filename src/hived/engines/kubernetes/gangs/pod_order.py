"""Small questions about pods and their places."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from hived.engines.kubernetes.pods.objects import Pod

from .gang import PodEntry

_INDEX = "batch.kubernetes.io/job-completion-index"
_NUMBERS = re.compile(r"(\d{1,18})")


def created_at(pod: Pod) -> float:
    """When a pod was created, in seconds since the epoch; 0 where it does not say."""
    return _seconds(pod.metadata.creation_timestamp)


def _seconds(text: str | None) -> float:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return 0.0


def bound_at(pod: Pod) -> float:
    """When a bound pod got its node, in the same way; when it was created, where it does not say that."""
    found = [c for c in pod.status.conditions or () if c.type == "PodScheduled" and c.status == "True"]
    return _seconds(found[0].last_transition_time if found else None) or created_at(pod)


def in_rank_order(entries: Iterable[PodEntry]) -> list[PodEntry]:
    """Pods as their ranks are, so that neighbours are close: by completion index, else by name, numbers as numbers."""
    return sorted(entries, key=lambda entry: (_index(entry.pod), _natural(entry.key), entry.uid))


def _index(pod: Pod) -> int:
    text = pod.annotation(_INDEX) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = _NUMBERS.split(name)
    return tuple((int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts))
