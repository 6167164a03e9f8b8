"""Reading the text of a file: gzip or not, UTF-8, with or without a byte order mark."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from ...errors import Location, TraceError

GZIP_MAGIC = b"\x1f\x8b"
_BOM = "\ufeff"


def read_text(path: Path) -> str:
    """The text of ``path``, unpacked if its first bytes (not its name) are those of gzip. O(size of the text).

    Raises :class:`~hived.errors.TraceError` for a file that is missing, a directory, unreadable, empty,
    broken gzip, or not UTF-8.
    """
    where = Location(str(path))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TraceError("no such file: check the path", where) from None
    except IsADirectoryError:
        raise TraceError("is a directory: name a file", where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot be read ({reason}): check its permissions", where) from None
    if data.startswith(GZIP_MAGIC):
        data = _unpacked(data, where)
    if not data.strip():
        raise TraceError("the file is empty: it needs a header and at least one row", where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(
            f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8: save the file as UTF-8",
            Location(where.file, line),
        ) from None
    return text.removeprefix(_BOM)


def _unpacked(data: bytes, where: Location) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise TraceError("the gzip data is cut off before its end: fetch the file again", where) from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"the gzip data is broken ({error}): fetch the file again", where) from None
