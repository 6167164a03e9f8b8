"""Which GPUs the processes of a control group may open: a program of the kernel's that is asked for every device file.

A GPU of NVIDIA's is the file ``/dev/nvidiaN`` of major number 195, N being the minor number that NVML says. The program
is attached to a group of version 2 (``BPF_CGROUP_DEVICE``, bpf(2)), and is there as long as the group. It denies the
files of GPUs that are not the task's, to root as to anybody, and nothing else: control files (minor 254 and 255) and
other devices are open as before.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection
from pathlib import Path

#: number of the system call, by the machine
_CALL = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH = 5, 8  # commands
_PROGRAM_TYPE, _ATTACH_TYPE = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
_CHARACTER = 2  # BPF_DEVCG_DEV_CHAR
_MAJOR = 195
#: minor numbers from here on are of control files
_CONTROL = 254
_ATTRIBUTES = 128  #: bytes of the union that the call takes


def allow_only(group: Path, minors: Collection[int]) -> None:
    """Have processes of a group open these GPUs alone, in place of what was allowed before.

    Raises :class:`OSError` where the kernel does not let this process do it. O(minors).
    """
    code, license_ = program(minors), b"GPL\0"
    at = [ctypes.create_string_buffer(data, len(data)) for data in (code, license_)]
    load = struct.pack("<IIQQ", _PROGRAM_TYPE, len(code) // 8, *map(ctypes.addressof, at))
    loaded = _bpf(_LOAD, load)
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_ATTACH, struct.pack("<IIII", folder, loaded, _ATTACH_TYPE, 0))
        finally:
            os.close(folder)
    finally:
        os.close(loaded)


def program(minors: Collection[int]) -> bytes:
    """The instructions of the program, which answers 1 for what may be opened and 0 for the rest."""
    own = sorted(minors)
    last = 7 + len(own)  # the instructions before the answers: 0 is there, and 1 two after it
    lines = [
        _line(0x61, 2, 1, 0),  # r2 = kind and access
        _line(0x57, 2, imm=0xFFFF),  # r2 &= kind
        _line(0x55, 2, imm=_CHARACTER, off=last + 2 - 3),
        _line(0x61, 2, 1, 4),  # r2 = major
        _line(0x55, 2, imm=_MAJOR, off=last + 2 - 5),
        _line(0x61, 2, 1, 8),  # r2 = minor
        _line(0x35, 2, imm=_CONTROL, off=last + 2 - 7),  # >=
    ]
    lines += [_line(0x15, 2, imm=minor, off=last + 2 - (8 + n)) for n, minor in enumerate(own)]
    lines += [_line(0xB7, 0), _line(0x95), _line(0xB7, 0, imm=1), _line(0x95)]
    return b"".join(lines)


def _line(code: int, to: int = 0, of: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """One instruction: ``off`` is of a load, or how many lines a jump leaves out."""
    return struct.pack("<BBhi", code, of << 4 | to, off, imm)


def _bpf(command: int, attributes: bytes) -> int:
    number = _CALL.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"no bpf(2) for {os.uname().machine} here")
    data = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    found: int = ctypes.CDLL(None, use_errno=True).syscall(number, command, data, _ATTRIBUTES)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found
