"""Counters of the engine; :mod:`hived.server.kubernetes.metrics` exports them."""

from __future__ import annotations

from collections import Counter


class Counts:
    """Counts since the start. Known results begin at 0, so that their first occurrence shows as an increase."""

    def __init__(self) -> None:
        #: by result: ok, conflict, refused, unknown
        self.bindings = Counter({"ok": 0, "conflict": 0, "refused": 0, "unknown": 0})
        #: by result: ok, refused
        self.spec_reloads = Counter({"ok": 0, "refused": 0})
        #: by resource and reason
        self.watch_restarts: Counter[tuple[str, str]] = Counter()
        #: by verb, resource and HTTP status (0: no answer)
        self.api_errors: Counter[tuple[str, str, int]] = Counter()
        self.events_dropped = 0
        #: by result: ok, gone, failed, blocked (by a disruption budget), deleted (without an eviction)
        self.evictions = Counter({"ok": 0, "gone": 0, "failed": 0, "blocked": 0, "deleted": 0})
        self.safety_violations = 0
