"""Structures and constants of NVIDIA's driver as we declare them, against cuda.h, where a package of CUDA brings it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import cuda

from hived_control import checkpoint
from hived_runtime.memory.pager import _SOURCE


def assert_compiles(folder: Path, lines: list[str]) -> None:
    """After cuda.h."""
    header = next((path for root in sys.path for path in Path(root).glob("nvidia/cu*/include/cuda.h")), None)
    if header is None:
        pytest.skip("no cuda.h in this environment")
    source = folder / "check.cpp"
    source.write_text("\n".join([f'#include "{header}"', *lines]))
    done = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_structures_of_the_pager(tmp_path: Path) -> None:
    pairs = {
        "AllocationProp": (
            "CUmemAllocationProp",
            {"type": "type", "location": "location", "win32": "win32HandleMetaData", "flags": "allocFlags"},
        ),
        "AccessDesc": ("CUmemAccessDesc", {"location": "location", "flags": "flags"}),
    }
    constants = {
        "kInvalidValue": "CUDA_ERROR_INVALID_VALUE",
        "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
        "kNotSupported": "CUDA_ERROR_NOT_SUPPORTED",
        "kOnDevice": "CU_MEM_LOCATION_TYPE_DEVICE",
        "kOnHost": "CU_MEM_LOCATION_TYPE_HOST",
        "kOnHostNuma": "CU_MEM_LOCATION_TYPE_HOST_NUMA",
        "kPinned": "CU_MEM_ALLOCATION_TYPE_PINNED",
        "kReadWrite": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
        "kNonBlocking": "CU_STREAM_NON_BLOCKING",
        "kPortable": "CU_MEMHOSTALLOC_PORTABLE",
        "kRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
    }
    lines = [f'#include "{_SOURCE}"', "#include <type_traits>"]
    for mine, (theirs, fields) in pairs.items():
        lines.append(f"static_assert(sizeof({mine}) == sizeof({theirs}));")
        lines += [f"static_assert(offsetof({mine}, {a}) == offsetof({theirs}, {b}));" for a, b in fields.items()]
    lines += [f"static_assert(int({mine}) == int({theirs}));" for mine, theirs in constants.items()]
    # the same number of arguments, each of the same size and passed alike
    for name, value in (("arity", "sizeof...(A)"), ("bytes", "(0 + ... + sizeof(A))")):
        for result in ("int", "CUresult"):
            lines.append(f"template <class... A> constexpr size_t {name}({result} (*)(A...)) {{ return {value}; }}")
        same = f"{name}(decltype(Driver::name)()) == {name}(decltype(&::name)())"
        lines += [f"#define SAME(name, arguments) static_assert({same});", "DRIVER_CALLS(SAME)", "#undef SAME"]
    assert_compiles(tmp_path, lines)


def test_structures_of_checkpoints(tmp_path: Path) -> None:
    pairs = {
        cuda.AllocationProp: ("CUmemAllocationProp", {"location": "location", "flags": "allocFlags"}),
        cuda.AccessDesc: ("CUmemAccessDesc", {"flags": "flags"}),
        checkpoint.LockArgs: ("CUcheckpointLockArgs", {"timeout_ms": "timeoutMs", "more": "reserved1"}),
        checkpoint.GpuPair: ("CUcheckpointGpuPair", {"old": "oldUuid", "new": "newUuid"}),
        checkpoint.RestoreArgs: ("CUcheckpointRestoreArgs", {"pairs": "gpuPairs", "count": "gpuPairsCount"}),
    }
    lines = ["#include <cstddef>"]
    for mine, (theirs, fields) in pairs.items():
        lines.append(f"static_assert(sizeof({theirs}) == {ctypes.sizeof(mine)});")
        lines += [f"static_assert(offsetof({theirs}, {b}) == {getattr(mine, a).offset});" for a, b in fields.items()]
    lines.append("static_assert(sizeof(CUcheckpointUnlockArgs) == sizeof(CUcheckpointCheckpointArgs));")
    for name in ("DEVICE", "HOST", "HOST_NUMA"):
        lines.append(f"static_assert(CU_MEM_LOCATION_TYPE_{name} == {getattr(cuda, name)});")
    assert_compiles(tmp_path, lines)
