"""The fields of a trace: one set of rules for every reader and for the writer.

Each function parses the text of a field and returns the value, or raises :class:`FieldError` with the part of the
message that follows the column's name. All are O(length of the field).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal

from hived.cluster.requests import HIGHEST

from .model import MS, TraceJob

MAX_SECONDS = 10**12  #: about 31,700 years: a larger number is in a wrong unit
MAX_GPUS = 10**6  #: a larger number is of a wrong column

#: how a job may run: on cells of its VC alone, on GPUs that others leave alone, or on either, its own at its turn
MODES = ("guaranteed", "opportunistic", "either")

#: kinds of errors that several fields have
EMPTY, BELOW_ZERO, TOO_LARGE, TWICE = "empty", "below zero", "too large", "there twice"

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_MILLISECOND = Decimal("0.001")
_PLAIN_DIGITS = 12  #: an integer of at most this many digits is below MAX_SECONDS and needs no further check
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})  #: control characters, lone surrogates, line separators


class FieldError(ValueError):
    """An invalid field. The message continues from the column's name; ``kind`` is its short form, to count by."""

    def __init__(self, what: str, kind: str = "wrong") -> None:
        super().__init__(what)
        self.kind = kind


def shown(text: str, limit: int = 40) -> str:
    """``text`` in quotes on one line, cut to ``limit`` characters, for a message."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def milliseconds(text: str) -> int:
    """A number of seconds (``12``, ``0.5``, ``1e3``) as whole milliseconds: exact, then rounded half up.

    Raises :class:`FieldError` for text that is no number, nan, infinite, negative, or above :data:`MAX_SECONDS`.
    """
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text) * MS
    value = _number(text, "give seconds, for example 12 or 12.5")
    if value < 0:
        raise FieldError(
            f"is {shown(text)}, below zero: give seconds since the start of the trace, 0 or more", BELOW_ZERO
        )
    if value > MAX_SECONDS:
        raise FieldError(
            f"is {shown(text)}, above the limit of {MAX_SECONDS} seconds: is it in milliseconds?", TOO_LARGE
        )
    return int(value.quantize(_MILLISECOND, ROUND_HALF_UP) * MS)


def gpu_count(text: str) -> int:
    """A whole number of GPUs, 0 to :data:`MAX_GPUS` (``8``; ``8.0`` is whole too).

    Raises :class:`FieldError` for text that is no number, not whole, negative or above the limit. Whether 0 is an
    error depends on the format.
    """
    if len(text) <= 6 and text.isdigit() and text.isascii():
        return int(text)
    value = _number(text, "give a whole number of GPUs, 1 or more")
    if value < 0:
        raise FieldError(f"is {shown(text)}, below zero: give a whole number of GPUs, 1 or more", BELOW_ZERO)
    if value > MAX_GPUS:
        raise FieldError(f"is {shown(text)}, above the limit of {MAX_GPUS} GPUs: is it another column?", TOO_LARGE)
    if value != value.to_integral_value():
        raise FieldError(f"is {shown(text)}, not a whole number: a job takes whole GPUs", "not whole")
    return int(value)


def priority_of(text: str) -> int:
    """A whole number, 0 to 1000; empty: 0. Raises :class:`FieldError` for any other text."""
    text = text.strip(" \t")
    if not text:
        return 0
    value = _number(text, f"give a whole number, 0 to {HIGHEST}")
    if value != value.to_integral_value() or not 0 <= value <= HIGHEST:
        raise FieldError(
            f"is {shown(text)}: give a whole number, 0 to {HIGHEST}; the higher preempt the lower", "out of range"
        )
    return int(value)


def mode_of(text: str) -> str:
    """One of :data:`MODES`, or "". Raises :class:`FieldError` for any other text."""
    text = text.strip(" \t")
    if text and text not in MODES:
        raise FieldError(f"is {shown(text)}: give {', '.join(MODES[:-1])} or {MODES[-1]}, or leave it empty", "unknown")
    return text


def truth_of(text: str) -> bool:
    """``true`` or ``false``, in any case; empty: false. Raises :class:`FieldError` for any other text."""
    word = text.strip(" \t").lower()
    if word not in ("true", "false", ""):
        raise FieldError(f"is {shown(text)}: give true or false, or leave it empty", "unknown")
    return word == "true"


def identifier(text: str) -> str:
    """The name of a job or tenant: ``text`` itself, if it is not blank and fits on one line.

    Raises :class:`FieldError` for blank text, and for line breaks and other control characters.
    """
    if not text or text.isspace():
        raise FieldError("is empty: every job needs one", EMPTY)
    return one_line(text)


def one_line(text: str) -> str:
    """``text`` itself, or :class:`FieldError` for a line break or other control character in it."""
    if not text.isprintable():
        for character in text:
            if unicodedata.category(character) in _FORBIDDEN:
                name = f"U+{ord(character):04X}"
                raise FieldError(
                    f"is {shown(text)}, with the control character {name}: take it out", "with a control character"
                )
    return text


def check_jobs(jobs: Iterable[TraceJob], use: str) -> None:
    """Raise :class:`FieldError` for the first job that cannot ``use`` (``be written``): wrong, or of another's name."""
    seen: dict[str, int] = {}
    for number, job in enumerate(jobs, start=1):
        first = seen.setdefault(job.job_id, number)
        try:
            if first != number:
                raise FieldError(f"job_id {shown(job.job_id)} is already job {first}")  # noqa: TRY301 - caught below, where the job's number is added
            check_job(job)
        except FieldError as error:
            raise FieldError(f"job {number} of the trace cannot {use}: {error}") from None


def check_job(job: TraceJob) -> None:
    """Raise :class:`FieldError`, the field's name first, for a job that no reader would accept."""
    for name, text in (("job_id", job.job_id), ("tenant", job.tenant)):
        try:
            identifier(text)
        except FieldError as error:
            raise FieldError(f"{name} {error}") from None
    for name, text in (("status", job.status), ("user", job.user), ("model", job.model)):
        try:
            one_line(text)
        except FieldError as error:
            raise FieldError(f"{name} {error}") from None
    for name, ms in (("submit_ms", job.submit_ms), ("duration_ms", job.duration_ms)):
        if not 0 <= ms <= MAX_SECONDS * MS:
            raise FieldError(f"{name} is {ms}: it must lie between 0 and {MAX_SECONDS * MS}")
    if not 1 <= job.gpus <= MAX_GPUS:
        raise FieldError(f"gpus is {job.gpus}: it must lie between 1 and {MAX_GPUS}")
    if not 0 <= job.priority <= HIGHEST:
        raise FieldError(f"priority is {job.priority}: it must lie between 0 and {HIGHEST}")
    try:
        mode_of(job.mode)
    except FieldError as error:
        raise FieldError(f"mode {error}") from None


def _number(text: str, way_out: str) -> Decimal:
    text = text.strip(" \t")
    if not text:
        raise FieldError(f"is empty: {way_out}", EMPTY)
    if not _NUMBER.fullmatch(text):
        raise FieldError(f"is {shown(text)}, not a number: {way_out}", "not a number")
    return Decimal(text)
