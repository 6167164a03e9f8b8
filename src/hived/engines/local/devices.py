"""The devices of this machine: discovery, checks of a spec against them, and health.

Real GPUs are queried through NVML (nvidia-ml-py); simulated ones have only their numbers.
"""

from __future__ import annotations

import contextlib
import errno
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hived.errors import InputError
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec, Device

from .strangers import strangers

#: XIDs caused by faults of a program, not of the device: 13, 31, 43, 45 and 68, by NVIDIA's XID catalogue
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
#: cell types of a node with 2, 4, 8, 16 ... devices, from the pair up to below the node
_BETWEEN = ("PAIR", "SOCKET", "BOARD", "TRAY")


class Simulated:
    """Simulated devices: mere numbers, for any spec."""

    #: whether there is no hardware
    simulated = True
    #: permanent ids, by number; () for simulated devices
    uuids: tuple[str, ...] = ()

    def __init__(self, what: str = "simulated devices") -> None:
        #: short description, for people
        self.what = what

    def visible(self, numbers: Sequence[int], fenced: bool = False) -> str:
        """The value of ``CUDA_VISIBLE_DEVICES`` for these devices; ``fenced``: of a task that sees no others."""
        return ",".join(map(str, numbers))

    def minors(self, numbers: Sequence[int]) -> list[int] | None:
        """Minor numbers of their files; None: they have none. Raises :class:`OSError` where they cannot be found."""
        return None

    def check(self, spec: ClusterSpec) -> None:
        """Raise :class:`InputError` for a spec with other devices than these."""

    def health(self, spec: ClusterSpec) -> Mapping[Device, str | None]:
        """Changes since the last call: why a device is bad, or ``None`` for a device that is healthy again.

        By the node names of ``spec``; if it renames the node, all bad devices are reported again.
        """
        return {}

    def tell_strangers(self, is_ours: Callable[[int], bool]) -> None:
        """From now on a device is bad while a process uses it that is not ours; ``is_ours``: by its pid."""

    def close(self) -> None:
        """End the use of the devices."""


class Nvml:
    """The NVIDIA GPUs of this machine, numbered by PCI order as ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` does.

    NVML and CUDA leave out a device that has fallen off the bus, and renumber the others. Here a device keeps the
    number that it had at the previous start; a device that is not found is bad.
    """

    simulated = False

    def __init__(self, nvml: Any, node: str, known: Sequence[str] = (), same_boot: bool = False) -> None:
        """``nvml``: the module ``pynvml``, initialised. ``known``: :attr:`uuids` at the previous start.

        ``same_boot``: the machine has not been rebooted since, so jobs may still run on any of them.
        """
        self._nvml = nvml
        self._node = node
        found = [self._queried("nvmlDeviceGetUUID", index) or "" for index in range(nvml.nvmlDeviceGetCount())]
        self.uuids = numbered(known, found, same_boot)
        index_of = {uuid: index for index, uuid in enumerate(found) if uuid}
        #: by number, the present NVML index; None: NVML does not find the device
        self._indices = [index_of.get(uuid) for uuid in self.uuids] if known else list(range(len(found)))
        self._in_order = self._indices == list(range(len(found)))
        names = [None if index is None else self._queried("nvmlDeviceGetName", index) for index in self._indices]
        #: product names; for a device that does not answer, the first one known
        self.names = [name or next(filter(None, names), "GPU") for name in names]
        self._found: dict[int, str | None] = {}
        #: XIDs seen: such a device stays bad until the engine is restarted
        self._xids: dict[int, str] = {}
        self._events = self._register()
        self._is_ours: Callable[[int], bool] | None = None

    def tell_strangers(self, is_ours: Callable[[int], bool]) -> None:
        """See :meth:`Simulated.tell_strangers`."""
        self._is_ours = is_ours

    @property
    def what(self) -> str:
        """Short description, for people."""
        kinds = " and ".join(f"{self.names.count(name)} x {name}" for name in dict.fromkeys(self.names))
        missing = sum(index is None for index in self._indices)
        return f"{kinds} on {self._node}" + (f" ({missing} not found by NVML)" if missing else "")

    def minors(self, numbers: Sequence[int]) -> list[int] | None:
        """See :meth:`Simulated.minors`."""
        found = []
        for number in numbers:
            index = self._indices[number]
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(int(self._nvml.nvmlDeviceGetMinorNumber(handle)))
            except (self._nvml.NVMLError, TypeError):  # no index
                raise OSError(errno.ENODEV, "NVML does not say which file it is", f"GPU {number}") from None
        return found

    def visible(self, numbers: Sequence[int], fenced: bool = False) -> str:
        """Numbers of the devices; or UUIDs, where CUDA may number them otherwise: one is lost or bad, or not seen."""
        if self._in_order and not fenced and not any(self._found.values()):
            return ",".join(map(str, numbers))
        return ",".join(self.uuids[number] or str(number) for number in numbers)

    def check(self, spec: ClusterSpec) -> None:
        """Check that the spec has one node, with devices of this machine."""
        nodes = spec.node_names
        if len(nodes) != 1:
            raise InputError(
                f"{spec.source}: has {len(nodes)} nodes, and this is one machine; "
                "give a spec of one node, or --simulated"
            )
        for chain in spec.chains:
            for leaf in range(chain.gpus_per_node):
                device = chain.device_index(0, leaf)
                if device >= len(self.uuids):
                    have = f"this machine has {len(self.uuids)}, numbered from 0"
                    raise InputError(f"{spec.source}: names device {device}, and {have}; mend the spec, or --simulated")

    def health(self, spec: ClusterSpec) -> Mapping[Device, str | None]:
        """Changes of health: a device is lost, failed a memory repair, or had a critical XID."""
        node = spec.chains[0].node_names[0]
        if node != self._node:
            self._node = node
            self._found.clear()
        self._read_events()
        changed: dict[Device, str | None] = {}
        for number in range(len(self.uuids)):
            why = self._xids.get(number) or self._fault(number)
            if why != self._found.get(number):
                self._found[number] = why
                changed[node, number] = why
        return changed

    def close(self) -> None:
        """Shut down NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _queried(self, query: str, index: int) -> str | None:
        """The answer of a device to an NVML query; ``None`` where it does not answer."""
        with contextlib.suppress(self._nvml.NVMLError):
            text: str | bytes = getattr(self._nvml, query)(self._nvml.nvmlDeviceGetHandleByIndex(index))
            return text.decode(errors="replace") if isinstance(text, bytes) else text
        return None

    def _fault(self, number: int) -> str | None:
        nvml, index = self._nvml, self._indices[number]
        if index is None:
            return "NVML does not find it since the engine was started"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)  # each time: it may have been lost, and come back
            nvml.nvmlDeviceGetUUID(handle)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return f"NVML: {error}"
        with contextlib.suppress(nvml.NVMLError):  # older devices have no row remapping
            if nvml.nvmlDeviceGetRemappedRows(handle)[3]:
                return "NVML: a memory row could not be remapped"
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # nor MIG
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                way_out = f"nvidia-smi -i {index} -mig 0, or a spec without it"
                return f"MIG is on, so it is divided, and jobs are given whole GPUs: {way_out}"
        if self._is_ours is not None:
            with contextlib.suppress(nvml.NVMLError):
                running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                return strangers([process.pid for process in running], self._is_ours)
        return None

    def _register(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None  # not on every platform; the queries of _fault remain
        for index in [index for index in self._indices if index is not None]:
            with contextlib.suppress(nvml.NVMLError):  # nor of every device
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _read_events(self) -> None:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # a time-out: no more events
                return
            xid = int(event.eventData)
            if xid in _OF_PROGRAMS:
                continue
            with contextlib.suppress(nvml.NVMLError, ValueError):  # of a device that was not found at the start
                number = self._indices.index(int(nvml.nvmlDeviceGetIndex(event.device)))
                self._xids[number] = f"NVML: XID {xid}"


#: device access of the engine
Devices = Simulated | Nvml


def numbered(known: Sequence[str], found: Sequence[str], same_boot: bool) -> tuple[str, ...]:
    """UUIDs of devices by number ("": of a device that did not answer). Known devices keep their numbers, found or not.

    A new device gets the number of one that is not found, if the machine was rebooted since, so that nothing runs on
    it; else the next number.
    """
    if not known:
        return tuple(found)
    new = [uuid for uuid in found if uuid and uuid not in known]
    numbers = [new.pop(0) if new and uuid not in found and not (uuid and same_boot) else uuid for uuid in known]
    return (*numbers, *new)


def find_gpus(node: str | None = None, known: Sequence[str] = (), same_boot: bool = False) -> Nvml | None:
    """The GPUs of this machine; ``None`` where there are none, or no driver. See :class:`Nvml` for the rest."""
    import pynvml  # type: ignore[import-untyped]  # here, since most importers of this module have no GPU

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found = Nvml(pynvml, node or this_node(), known, same_boot)
    if found.names:
        return found
    found.close()
    return None


def this_node() -> str:
    """The name of this machine."""
    return platform.node().split(".")[0] or "this-machine"


def spec_for(node: str, devices: int, gpu: str, shares: Sequence[tuple[str, int]]) -> ClusterSpec:
    """A spec of one node with equal devices, shared out: name and GPUs of each virtual cluster.

    A power of two of devices is split in halves down to pairs (neighbours in PCI order are close on most boards); any
    other number has no level between node and device. A share consists of the largest cells that fit into it. Raises
    :class:`InputError`; whether the shares fit is checked when a cluster is made of the spec.
    """
    if not 1 <= devices <= 1024:
        raise InputError(f"--devices {devices}: must be 1 to 1024; write a spec for more")
    levels, size = [(gpu, 1)], 2
    while devices & (devices - 1) == 0 and size < devices and len(levels) <= len(_BETWEEN):
        levels.append((_BETWEEN[len(levels) - 1], size))
        size *= 2
    levels.append(("NODE", devices))
    types: dict[str, dict[str, object]] = {}
    for (child, child_size), (name, size) in pairwise(levels):
        types[name] = {"childCellType": child, "childCellNumber": size // child_size}
    types["NODE"]["isNodeLevel"] = True
    paths = {size: ".".join(name for name, _ in reversed(levels[number:])) for number, (_, size) in enumerate(levels)}
    virtual: dict[str, object] = {}
    if (asked := sum(share for _, share in shares)) > devices:
        raise InputError(f"{asked} GPUs are shared out (--vc), and there are {devices}; give some VC fewer")
    for vc, share in shares:
        if share < 1:
            raise InputError(f"--vc {vc}={share}: must be at least 1 GPU")
        cells: list[dict[str, object]] = []
        left = share
        for size in sorted(paths, reverse=True):
            if number := left // size:
                cells.append({"cellType": paths[size], "cellNumber": number})
                left -= number * size
        if vc in virtual:
            raise InputError(f"--vc {vc}: is given twice")
        virtual[vc] = {"virtualCells": cells}
    physical = {"cellTypes": types, "physicalCells": [{"cellType": "NODE", "cellAddress": node}]}
    spec = spec_from_dict({"physicalCluster": physical, "virtualClusters": virtual})
    return replace(spec, source="the shares (--vc)")
