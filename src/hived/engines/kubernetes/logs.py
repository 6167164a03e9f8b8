"""The log of the service: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


def set_up_logs(form: str) -> None:
    """Log to standard error, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hived").setLevel(logging.INFO)


class _Text(logging.Formatter):
    """``2026-01-01T12:00:00.123Z INFO placed train-1: on node-1``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        what = " ".join(str(value) for value in fields.values() if value)
        text = f"{_time(record)} {record.levelname} {what}{': ' if what else ''}{record.getMessage()}"
        return _one_line(text) + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class _Json(logging.Formatter):
    """One JSON object: time, level, logger, message, extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    """Escape unprintable characters: names of users cannot start a new line or move the cursor."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)
