"""The driver and NVML by ctypes: what these runs ask of them beside PyTorch. Needs no package of CUDA.

Signatures and constants are those of cuda.h and nvml.h. Virtual memory: as the pager uses it. One kernel, in PTX, reads
memory by address, wherever that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DEVICE, HOST, HOST_NUMA = 1, 2, 3  #: CUmemLocationType
_SUCCESS, _PINNED, _READ_WRITE, _PORTABLE = 0, 1, 3, 1
_MIB = 1 << 20


class DriverError(RuntimeError):
    """A function of the driver or of NVML failed, or is not there."""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class Driver:
    """Functions of libcuda.so.1, or of a library that stands for it."""

    def __init__(self, library: str = "") -> None:
        """``library``: the fake driver's path; else libcuda.so.1. :class:`DriverError` if there is none."""
        try:
            self._library = ctypes.CDLL(library or "libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no driver: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; :class:`DriverError` if it fails or is not there."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"the driver has no {name}") from None
        code = function(*arguments)
        if code != _SUCCESS:
            raise DriverError(f"{name} failed with code {code} ({self._name(code)})")

    def _name(self, code: int) -> str:
        with contextlib.suppress(AttributeError):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            return (text.value or b"?").decode()
        return "?"

    def use_device(self) -> None:
        """Make the primary context of device 0 current in this thread."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self.call("cuCtxSetCurrent", context)

    def uuid(self, device: int = 0) -> bytes:
        """The 16 bytes of a GPU's UUID. Needs no context."""
        found = (ctypes.c_ubyte * 16)()
        try:
            self.call("cuDeviceGetUuid_v2", found, ctypes.c_int(device))
        except DriverError:
            self.call("cuDeviceGetUuid", found, ctypes.c_int(device))
        return bytes(found)

    # -- virtual memory

    def granularity(self, kind: int) -> int:
        """Bytes in whose multiples memory of a kind is made."""
        prop = _prop(kind)
        found = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(prop), ctypes.c_int(0))
        return found.value

    def create(self, kind: int, size: int) -> int:
        """Physical memory: its handle."""
        handle, prop = ctypes.c_uint64(), _prop(kind)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))
        return handle.value

    def release(self, handle: int) -> None:
        """Give physical memory back, once it is mapped nowhere."""
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    @contextlib.contextmanager
    def reserved(self, size: int) -> Iterator[int]:
        """Addresses, within."""
        at = ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        self.call("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_size_t(0), zero, zero)
        try:
            yield at.value
        finally:
            self.call("cuMemAddressFree", at, ctypes.c_size_t(size))

    def map(self, at: int, size: int, handle: int) -> None:
        """Map physical memory at an address. It cannot be accessed yet."""
        zero = ctypes.c_uint64(0)
        self.call(
            "cuMemMap", ctypes.c_uint64(at), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(handle), zero
        )

    def open(self, at: int, size: int) -> None:
        """Let the device access what is mapped."""
        access = AccessDesc(Location(DEVICE, 0), _READ_WRITE)
        self.call(
            "cuMemSetAccess", ctypes.c_uint64(at), ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1)
        )

    def unmap(self, at: int, size: int) -> None:
        """Unmap a range as it was mapped."""
        self.call("cuMemUnmap", ctypes.c_uint64(at), ctypes.c_size_t(size))

    @contextlib.contextmanager
    def mapped(self, kind: int, size: int) -> Iterator[int]:
        """Physical memory of a kind, mapped at addresses that the device can access, within."""
        handle = self.create(kind, size)
        try:
            with self.reserved(size) as at:
                self.map(at, size, handle)
                try:
                    self.open(at, size)
                    yield at
                finally:
                    self.unmap(at, size)
        finally:
            self.release(handle)

    @contextlib.contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """Pinned memory of the host, which has the same address on the device, within."""
        at = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE))
        try:
            yield at.value or 0
        finally:
            self.call("cuMemFreeHost", at)

    # -- rates

    def copy_seconds(self, to: int, from_: int, size: int, repeat: int = 3) -> float:
        """Of one copy by the copy engine, the best of several."""

        def copied() -> None:
            self.call(
                "cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(from_), ctypes.c_size_t(size), ctypes.c_void_p(0)
            )
            self.call("cuCtxSynchronize")

        return _best(copied, repeat)

    def read_seconds(self, at: int, size: int, repeat: int = 3) -> float:
        """For a kernel to read memory, the best of several."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(READER.encode()))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"read_all"))
        values = (ctypes.c_uint64(at), ctypes.c_uint64(size // 16))
        parameters = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in values))

        def read() -> None:
            numbers = [ctypes.c_uint(each) for each in (2048, 1, 1, 256, 1, 1, 0)]
            self.call("cuLaunchKernel", function, *numbers, ctypes.c_void_p(0), parameters, ctypes.c_void_p(0))
            self.call("cuCtxSynchronize")

        try:
            return _best(read, repeat)
        finally:
            self.call("cuModuleUnload", module)


def _prop(kind: int) -> AllocationProp:
    return AllocationProp(type=_PINNED, location=Location(kind, 0))


def _best(work: Any, repeat: int) -> float:
    best = float("inf")
    for _ in range(1 + repeat):  # once to warm up
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


#: each thread reads 16 bytes in every grid; what it has read is written nowhere, unless it is one value in 2^32
READER = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry read_all(.param .u64 at, .param .u64 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b32 %v<5>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [at];
    ld.param.u64 %d2, [count];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mov.u32 %r5, %nctaid.x;
    mul.lo.u32 %r6, %r5, %r2;
    cvt.u64.u32 %d3, %r4;
    cvt.u64.u32 %d4, %r6;
    mov.u32 %r7, 0;
again:
    setp.ge.u64 %p1, %d3, %d2;
    @%p1 bra done;
    shl.b64 %d5, %d3, 4;
    add.u64 %d6, %d1, %d5;
    ld.global.v4.u32 {%v1, %v2, %v3, %v4}, [%d6];
    xor.b32 %v1, %v1, %v2;
    xor.b32 %v3, %v3, %v4;
    xor.b32 %r7, %r7, %v1;
    xor.b32 %r7, %r7, %v3;
    add.u64 %d3, %d3, %d4;
    bra again;
done:
    setp.eq.u32 %p2, %r7, 0x5ca1ab1e;
    @%p2 st.global.u32 [%d1], %r7;
    ret;
}
"""


# -- NVML -------------------------------------------------------------------------------------------------------------


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, of the third version of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Device memory of a process, and how it was found."""

    value: int
    way: str


class Nvml:
    """One GPU, read by NVML. Nothing of it is changed."""

    def __init__(self, uuid: bytes) -> None:
        """:class:`DriverError` if there is no NVML, or it does not know the GPU."""
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise DriverError(f"no NVML: {error}") from None
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        text = uuid.hex()
        name = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(name.encode()), ctypes.byref(self._device))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise DriverError(f"{name} failed with code {code}")

    def driver(self) -> str:
        """The release of the driver."""
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(96))
        return text.value.decode()

    def used(self) -> int:
        """Bytes of the device in use, by anybody."""
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(found))
        return int(found.used)

    def utilization(self) -> int:
        """Percent of the time in which a kernel ran, over the last sample of the driver (up to 1 s)."""
        found = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", self._device, ctypes.byref(found))
        return int(found.gpu)

    def bytes_of(self, pid: int, before: int) -> DeviceBytes:
        """Device memory of a process.

        Within a container NVML may give the pids of the host, or none: then what the device has in use above
        ``before``, which was in use without the process.
        """
        with contextlib.suppress(DriverError, AttributeError):
            found = (ProcessInfo * 256)()
            count = ctypes.c_uint(256)
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._device, ctypes.byref(count), found)
            for each in found[: count.value]:
                if each.pid == pid and each.used < 1 << 60:
                    return DeviceBytes(int(each.used), "NVML, of the process")
        return DeviceBytes(max(self.used() - before, 0), "NVML, of the device, less what was in use before")
