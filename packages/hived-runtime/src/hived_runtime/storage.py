"""The bytes of a storage on the host."""

from __future__ import annotations

import ctypes
from typing import Any


def as_bytes(storage: Any) -> memoryview:
    """A view of a storage's bytes. Not by numpy, which would forbid the storage to be resized from then on."""
    if not storage.nbytes():
        return memoryview(b"")
    there: Any = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    there.storage = storage  # so that the view keeps it: it may be a copy that nobody else has
    return memoryview(there).cast("B")
