"""What guests and owners of a machine's GPUs are limited to (AntMan, OSDI'20, 3.3): a coordinator per GPU. Pure.

Each :class:`~hived.policies.antman.coordinator.Coordinator` is told who is on its GPU, and what is read of their pages.
A job on several GPUs has the least that their coordinators give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from hived.errors import ensure
from hived.policies.antman.coordinator import (
    Coordinator,
    Event,
    GuestArrived,
    Left,
    LimitCompute,
    LimitMemory,
    MiniBatch,
    OwnerArrived,
    Paused,
    Protection,
    Tick,
)
from hived.policies.antman.parameters import GuestSharing
from hived.spec.compiled import Device

from .model import Obeying

_GIB = 2.0**30
#: memory is limited in multiples of this: what a job uses changes all the time
QUANTUM_GIB = 0.25
#: of a GPU's time: a guest that would have less is held
LEAST_SHARE = 0.02
#: smaller changes of a share are not told, unless its owner leaves it another part
_SHARE_STEP = 0.05


class Allowance(NamedTuple):
    """What a job may use of its GPUs beside others."""

    share: float  #: of their time; 0: it is held
    memory: int  #: device bytes per process; 0: no limit
    why: str
    protects: bool = False  #: it is a guest: without renewal it does not hold for long


class _Gpu:
    """A GPU: its coordinator, and what that has said last of each job."""

    def __init__(self, gpu_gib: float, protection: Protection) -> None:
        self.coordinator = Coordinator(gpu_gib, protection)
        self.compute: dict[int, float] = {}
        self.memory: dict[int, float] = {}
        #: owners that do not obey, or share nothing: guests are held beside them
        self.apart: set[int] = set()

    def handle(self, event: Event) -> None:
        for instruction in self.coordinator.handle(event):
            if isinstance(instruction, LimitCompute):
                self.compute[instruction.job] = instruction.limit
            else:
                assert isinstance(instruction, LimitMemory)
                self.memory[instruction.job] = instruction.gib


class _Member:
    """A job on its GPUs."""

    def __init__(self, name: str, devices: tuple[Device, ...], owner: bool) -> None:
        self.name, self.devices, self.owner = name, devices, owner
        #: mini-batches ended, and when the last of them had; None: since it was suspended nothing is known
        self.seen: tuple[int, float] | None = None
        #: whether its device memory is managed
        self.on_gpu = False
        self.compute = 1.0
        self.allowed: Allowance | None = None


class Coordination:
    """The GPUs with jobs that share them. An event costs O(GPUs of its job * jobs there)."""

    def __init__(self, utilization: Callable[[int], float], sharing: GuestSharing) -> None:
        """``utilization``: of a job alone, as measured."""
        self._utilization, self._gpu_gib = utilization, sharing.gpu_memory_gib
        self._protection = Protection(sharing.settle_s, sharing.step_s, int(sharing.steps))
        self._gpus: dict[Device, _Gpu] = {}
        self._members: dict[int, _Member] = {}
        #: jobs that may use other than they were told last, in order
        self._changed: dict[int, None] = {}

    # -- facts --------------------------------------------------------------------------------------------------------

    def follow(
        self, job: int, name: str, devices: Iterable[Device], owner: bool, apart: bool, least_gib: float, at: float
    ) -> None:
        """A job is on these GPUs, as their ``owner`` or as a guest; ``apart``: it does not share. Idempotent."""
        devices = tuple(devices)
        member = self._members.get(job)
        if member is not None and member.devices != devices:
            self.leave(job, at)
            member = None
        if member is not None and member.owner is owner:
            for device in devices if owner else ():
                self._set_apart(self._gpus[device], job, apart)
            return
        if member is None:
            member = self._members[job] = _Member(name, devices, owner)
        elif member.owner:  # it has lost its cells, and stays beside who gets them
            for device in devices:
                self._handle(device, Left(at, job))
        member.owner = owner
        for device in devices:
            gpu = self._gpus.setdefault(device, _Gpu(self._gpu_gib, self._protection))
            gpu.compute[job] = 1.0
            gpu.memory.pop(job, None)
            if owner:
                self._handle(device, OwnerArrived(at, job))
                self._set_apart(gpu, job, apart)
            else:
                self._handle(device, GuestArrived(at, job, max(least_gib, QUANTUM_GIB)))

    def _set_apart(self, gpu: _Gpu, job: int, apart: bool) -> None:
        if apart is not (job in gpu.apart):
            (gpu.apart.add if apart else gpu.apart.discard)(job)
            self._changed.update(dict.fromkeys(gpu.coordinator.guests))

    def leave(self, job: int, at: float) -> None:
        """A job is on its GPUs no more; of one that is not known, nothing."""
        member = self._members.pop(job, None)
        self._changed.pop(job, None)
        for device in () if member is None else member.devices:
            gpu = self._gpus[device]
            gpu.apart.discard(job)
            gpu.compute.pop(job, None)
            gpu.memory.pop(job, None)
            self._handle(device, Left(at, job))
            if gpu.coordinator.owner is None and not gpu.coordinator.guests:
                del self._gpus[device]

    def measure(self, job: int, doing: Obeying, at: float) -> None:
        """What the pages of a job say now."""
        member = self._members.get(job)
        if member is None:
            return
        member.on_gpu = doing.device.startswith("cuda")
        before, member.seen = member.seen, None
        if doing.suspended:
            for device in member.devices if not member.owner else ():
                self._handle(device, Paused(at, job))
        if doing.suspended or not doing.mini_batches:
            return
        member.seen = doing.mini_batches, doing.ended_at
        if before is None or doing.mini_batches <= before[0] or doing.ended_at <= before[1]:
            if before is not None and doing.mini_batches == before[0]:
                member.seen = before
            return
        seconds = (doing.ended_at - before[1]) / (doing.mini_batches - before[0])
        peak, host = doing.device_bytes / _GIB, doing.host_bytes / _GIB
        for device in member.devices:
            self._handle(device, MiniBatch(at, job, seconds, peak, host))

    def pass_time(self, at: float) -> None:
        """It is ``at`` now. O(GPUs with guests * jobs there)."""
        for device, gpu in self._gpus.items():
            if gpu.coordinator.guests:
                self._handle(device, Tick(at))

    def _handle(self, device: Device, event: Event) -> None:
        gpu = self._gpus[device]
        gpu.handle(event)
        self._changed.update(dict.fromkeys(gpu.compute))

    # -- what is allowed ----------------------------------------------------------------------------------------------

    def take_changed(self) -> list[tuple[int, Allowance]]:
        """The jobs that may use other than this has said before, each with what."""
        found = []
        for job in self._changed:
            member = self._members[job]
            allowed, compute = self._allowance(job, member)
            before = member.allowed
            if before is not None and before[1:] == allowed[1:] and compute == member.compute:
                small = abs(before.share - allowed.share) < _SHARE_STEP and bool(before.share) is bool(allowed.share)
                if small:
                    continue
            member.allowed, member.compute = allowed, compute
            if before != allowed:
                found.append((job, allowed))
        self._changed.clear()
        return found

    def allowed(self, job: int) -> Allowance | None:
        """What a job may use, as said last; None: all."""
        member = self._members.get(job)
        return None if member is None else member.allowed

    def _allowance(self, job: int, member: _Member) -> tuple[Allowance, float]:
        """What it may use, and the least part of an owner's idle time in that."""
        gpus = [self._gpus[device] for device in member.devices]
        memory = min([gpu.memory.get(job, inf) for gpu in gpus], default=inf)
        crowded = any(
            gpu.coordinator.guests and (gpu.coordinator.owner or len(gpu.coordinator.guests) > 1) for gpu in gpus
        )
        limit = 0
        if member.on_gpu and crowded and memory < inf:
            limit = max(int(memory / QUANTUM_GIB), 1) * int(QUANTUM_GIB * _GIB)
        if member.owner:
            return Allowance(1.0, limit, "guests are beside it, and have the rest" if limit else ""), 1.0
        least, compute, why = 1.0, 1.0, ""
        for gpu in gpus:
            share, part, because = self._beside_owner(gpu, job)
            if share < least or not why:
                least, compute, why = share, part, because
        return Allowance(least, limit, why, any(gpu.coordinator.owner is not None for gpu in gpus)), compute

    def _beside_owner(self, gpu: _Gpu, job: int) -> tuple[float, float, str]:
        """Of a guest on a GPU: its share of the time, the part of the owner's idle time, and why."""
        coordinator, part = gpu.coordinator, gpu.compute.get(job, 1.0)
        if coordinator.owner is None:
            return part, part, "" if part else "its least memory does not fit beside other guests"
        owner = self._members[coordinator.owner].name
        if coordinator.owner in gpu.apart:
            return 0.0, 0.0, f"{owner}, whose GPU it is, shares it with nobody"
        if coordinator.is_away and part:
            return part, part, f"{owner}, whose GPU it is, does not use it now"
        if not part:
            if coordinator.reference is None:
                return 0.0, 0.0, f"{owner}, whose GPU it is, is measured alone first"
            return 0.0, 0.0, f"its least memory does not fit beside {owner}, whose GPU it is"
        share = round(part * max(0.0, 1.0 - self._utilization(coordinator.owner)), 2)
        if share < LEAST_SHARE:
            return 0.0, part, f"{owner}, whose GPU it is, leaves no time"
        steps = f"{round(part * self._protection.steps)} of {self._protection.steps} steps"
        return share, part, f"{owner} has the GPU, and goes on as alone; {steps} of what it leaves"

    def validate(self) -> None:
        """Check who is where. O(GPUs * jobs there)."""
        for device, gpu in self._gpus.items():
            gpu.coordinator.validate()
            own = gpu.coordinator.owner
            here = {job for job, member in self._members.items() if device in member.devices}
            ensure(here == {*gpu.coordinator.guests, *(() if own is None else (own,))}, f"jobs on {device}")
