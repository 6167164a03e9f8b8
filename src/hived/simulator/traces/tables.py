"""Reading a CSV table with a header: columns by name, rows with their line, errors with their location."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator, Sequence

from ...errors import Location, TraceError
from .fields import FieldError, shown
from .formats import Parsed

Row = tuple[int, list[str]]  #: (1-based line of the file where it starts, its fields)

_LINE_BREAK = re.compile(r"\r\n|\r|\n")


def rows_of(text: str, file: str, parsed: Parsed | None = None) -> Iterator[Row]:
    """The rows of ``text``, the header first, blank lines left out. O(length).

    A row whose number of fields is not the header's is one of the bad rows of ``parsed``. Raises
    :class:`~hived.errors.TraceError` for quotation marks that do not close, and without ``parsed`` for such a row.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = 0
    last = 0
    try:
        for row in reader:
            if not row:
                continue
            line = reader.line_num
            if line > last + 1:  # after a blank line, or with line breaks inside quotation marks
                line -= sum(len(_LINE_BREAK.findall(field)) for field in row)
            last = reader.line_num
            if len(row) != width:
                if width:
                    wrong = FieldError(
                        f"the row has {len(row)} fields, the header {width}: "
                        "put quotation marks around a field with a comma in it",
                        "with another number of fields than the header",
                    )
                    if parsed is None:
                        raise TraceError(str(wrong), Location(file, line))
                    parsed.refuse(wrong, Location(file, line))
                    continue
                width = len(row)
            yield line, row
    except csv.Error as error:
        raise TraceError(
            f"not readable as CSV ({error}): check the quotation marks", Location(file, last + 1)
        ) from None


def columns(
    header: Sequence[str], wanted: Sequence[str], where: Location, *, optional: Sequence[str] = (), others: bool
) -> list[int]:
    """The index of each of the ``wanted`` and ``optional`` columns in ``header``, which may be in any order.

    An optional column that is not there has the index -1. ``others``: whether further columns are allowed. Raises
    :class:`~hived.errors.TraceError` for a column that is missing, unknown or there twice, with the likely meant word.
    """
    names = [name.strip() for name in header]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"column {shown(name)} is there twice: remove one", where)
    unknown = [name for name in names if name not in wanted and name not in optional]
    for name in wanted:
        if name not in names:
            meant = difflib.get_close_matches(name, unknown, n=1, cutoff=0.6)
            hint = f"did you mean it by {shown(meant[0])}?" if meant else f"the header must hold {','.join(wanted)}"
            raise TraceError(f"column {shown(name)} is missing: {hint}", where)
    if unknown and not others:
        more = f" and, optional, {','.join(optional)}" if optional else ""
        raise TraceError(f"unknown column {shown(unknown[0])}: the columns are {','.join(wanted)}{more}", where)
    return [names.index(name) if name in names else -1 for name in (*wanted, *optional)]
