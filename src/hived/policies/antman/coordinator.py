"""The local coordinator of one GPU: limits of memory and compute for guests (AntMan, OSDI'20, 3.3 and 4.1). Pure.

A state machine: events in, instructions out, no clock. Who runs on the GPU is decided elsewhere; here the *owner*, a
guaranteed job, is protected from its *guests*:

    owner comes ->  initialising: each guest has its least memory and no compute
                    stable for settle_s: its mini-batch time alone is the reference
                ->  raising: guests get the memory that it leaves; their compute rises by a step, every step_s
    slower than the reference beyond tolerance -> initialising again; the last step is not taken again
    owner goes  ->  one guest: no limits; several: no limits of compute, and memory by trial and error

A limit of compute is a part of the owner's idle time. 0 holds a job at the end of the mini-batch that it is in. A limit
of memory changes at the end of a mini-batch alone (4.1): what is allocated above it goes to the host at once, never
fails, and raises the limit at that moment, if memory is left (Figure 7a). For an owner, its guests shrink for that.

Its caller is to be the agent of a machine (`engines/local/agent.py`): so far tests alone run it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import permutations

from hived.errors import ensure

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Protection:
    """The parameters. All are ours but ``gap_s``: the paper gives no step and does not define "stable"."""

    settle_s: float = 20.0  #: how long an owner's mini-batch times have to agree before guests compute
    step_s: float = 5.0  #: between two steps
    steps: int = 4  #: from no compute for a guest to all of the owner's idle time
    tolerance: float = 0.02  #: the part by which a mini-batch time may differ from the reference, beside ``gap_s``
    gap_s: float = 0.010  #: smaller differences do not count (5.3)
    trial_s: float = 10.0  #: how long a division of memory among guests without an owner is measured
    trial_gib: float = 1.0  #: memory that a trial moves


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnerArrived:
    """A guaranteed job starts on the GPU, or a guest there was upgraded."""

    at: float  #: seconds, never less than those of earlier events
    job: int


@dataclass(frozen=True, slots=True)
class GuestArrived:
    """An opportunistic job starts on the GPU. It is new there and has its least memory at first."""

    at: float
    job: int
    least_gib: float  #: with which it can go on


@dataclass(frozen=True, slots=True)
class Left:
    """A job has left the GPU."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A job has ended a mini-batch, and begins the next."""

    at: float
    job: int
    seconds: float  #: that it took
    peak_gib: float  #: the most memory that it used on the GPU
    host_gib: float = 0.0  #: allocated above its limit, on the host


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    at: float


Event = OwnerArrived | GuestArrived | Left | MiniBatch | Tick

# -- instructions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitMemory:
    """``job`` may use this much memory of the GPU, from this mini-batch on."""

    job: int
    gib: float


@dataclass(frozen=True, slots=True)
class LimitCompute:
    """``job`` may use this part of the owner's idle time, at once; 0: it is held after its mini-batch."""

    job: int
    limit: float


Instruction = LimitMemory | LimitCompute


class _Guest:
    """An opportunistic job."""

    def __init__(self, job: int, at: float, least: float) -> None:
        self.job, self.least = job, least
        #: as last instructed; None: not yet
        self.memory: float | None = None
        self.compute: float | None = None
        #: memory that it has needed so far, on the GPU and on the host
        self.wanted = least
        #: when its limit of compute began to rise, if the owner is stable
        self.rises = at
        #: whether it is held, and its mini-batch has ended
        self.at_end = True
        #: its first and its last mini-batch time; 0: none yet
        self.first, self.last = 0.0, 0.0


class Coordinator:
    """The jobs of one GPU. An event costs O(guests + mini-batches of an owner in ``settle_s``)."""

    def __init__(self, gpu_gib: float, protection: Protection | None = None) -> None:
        self.gpu_gib, self.protection = gpu_gib, protection or Protection()
        self.owner: int | None = None
        #: memory of the owner: the most that it has used or asked for
        self.owner_gib = 0.0
        #: its mini-batch time without guests; None: it initialises, or is not stable
        self.reference: float | None = None
        #: the most steps that guests take: those that have not slowed the owner down
        self.most = self.protection.steps
        self.guests: dict[int, _Guest] = {}
        self._settles_at = 0.0
        # mini-batches of the owner without guests: when, and seconds
        self._alone: deque[tuple[float, float]] = deque()
        # the reference when guests had last slowed the owner down
        self._slowed: float | None = None
        # guests without an owner: memory that some have given up (below 0) for others
        self._moved: dict[int, float] = {}
        self._trial: tuple[float, int, int, float] | None = None  # when it ends, giver, taker, sum of rates before
        self._tried: set[tuple[int, int]] = set()

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Follow an event; what to do about it."""
        now = event.at
        match event:
            case OwnerArrived():
                ensure(self.owner is None, f"job {event.job} arrives, and {self.owner} owns the GPU")
                self.guests.pop(event.job, None)
                self.owner, self.owner_gib, self._slowed = event.job, 0.0, None
                self._begin(now)
                self._jobs_changed(now)
            case GuestArrived():
                ensure(event.job not in self.guests, f"guest {event.job} is there already")
                self._jobs_changed(now)
                self.guests[event.job] = _Guest(event.job, now, event.least_gib)
            case Left():
                if event.job == self.owner:
                    self.owner, self.reference, self.owner_gib = None, None, 0.0
                    self._alone.clear()
                else:
                    del self.guests[event.job]
                self._jobs_changed(now)
            case MiniBatch():
                if event.job == self.owner:
                    self._owner_measured(event)
                else:
                    self._guest_measured(event)
            case Tick():
                pass
        if self.owner is not None and self.reference is None and now >= self._settles_at:
            self._settle(now)
        if self.owner is None and len(self.guests) > 1:
            self._try_memory(now)
        return self._instructions(now, event.job if isinstance(event, MiniBatch) else None)

    def _jobs_changed(self, now: float) -> None:
        """What was learned of other jobs together does not hold any more."""
        if self.most < self.protection.steps and self.reference is not None:
            for guest in self.guests.values():  # they rise again from where they were
                guest.rises = max(guest.rises, now - max(0, self.most - 1) * self.protection.step_s)
        self.most, self._trial = self.protection.steps, None
        self._moved.clear()
        self._tried.clear()

    # -- the owner ----------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Pessimistic limits, until the owner is stable."""
        self.reference = None
        self._settles_at = now + self.protection.settle_s
        self._alone.clear()

    def _owner_measured(self, event: MiniBatch) -> None:
        self.owner_gib = max(self.owner_gib, event.peak_gib + event.host_gib)
        if self.reference is None:
            self._alone.append((event.at, event.seconds))
            return
        computing = max([self._step(guest, event.at) for guest in self.guests.values()], default=0)
        if event.seconds > self.reference + self._tolerated(self.reference):
            if computing:
                self.most, self._slowed = computing - 1, self.reference
            self._begin(event.at)
        elif not computing and event.seconds < self.reference - self._tolerated(self.reference):
            self._begin(event.at)  # another phase of its own

    def _tolerated(self, seconds: float) -> float:
        return max(self.protection.tolerance * seconds, self.protection.gap_s)

    def _settle(self, now: float) -> None:
        """The owner is stable where its mini-batch times of the last ``settle_s`` agree; no sample is no answer."""
        alone = self._alone
        while alone and alone[0][0] < now - self.protection.settle_s:
            alone.popleft()
        times = [seconds for _, seconds in alone]
        if not times or max(times) - min(times) > self._tolerated(min(times)):
            return
        self.reference = sum(times) / len(times)
        if self._slowed is not None and abs(self.reference - self._slowed) > self._tolerated(self._slowed):
            self.most = self.protection.steps  # it had changed by itself
        self._slowed = None
        for guest in self.guests.values():
            guest.rises = now

    # -- the guests ---------------------------------------------------------------------------------------------------

    def _guest_measured(self, event: MiniBatch) -> None:
        guest = self.guests[event.job]
        guest.wanted = max(guest.wanted, event.peak_gib + event.host_gib)
        guest.first, guest.last = guest.first or event.seconds, event.seconds
        guest.at_end = True

    def _step(self, guest: _Guest, now: float) -> int:
        """The steps of compute that a guest has beside an owner."""
        if self.reference is None:
            return 0
        protection = self.protection
        return int(min(protection.steps, self.most, 1 + (now - guest.rises + _EXACT) // protection.step_s))

    def _memory(self) -> dict[int, float]:
        """The memory of each guest: first the least of each in the order of arrival, then what they have needed.

        A guest whose least does not fit has none, and is held.
        """
        left = self.gpu_gib - self.owner_gib
        if self.owner is None and len(self.guests) == 1:
            return dict.fromkeys(self.guests, self.gpu_gib)
        found = dict.fromkeys(self.guests, 0.0)
        for guest in self.guests.values():
            if guest.least <= left + _EXACT:
                found[guest.job] = guest.least
                left -= guest.least
        if self.owner is None or self.reference is not None:
            for guest in self.guests.values():
                if found[guest.job]:
                    more = max(0.0, min(guest.wanted - guest.least, left))
                    found[guest.job] += more
                    left -= more
        for job, gib in self._moved.items():
            found[job] += gib
        return found

    def _instructions(self, now: float, ended: int | None) -> tuple[Instruction, ...]:
        """What has changed for each guest. ``ended``: whose mini-batch has."""
        found: list[Instruction] = []
        memory = self._memory()
        for guest in self.guests.values():
            compute = 1.0
            if not memory[guest.job]:
                compute = 0.0
            elif self.owner is not None:
                compute = self._step(guest, now) / self.protection.steps
            if (guest.at_end or ended == guest.job) and guest.memory != memory[guest.job]:
                guest.memory = memory[guest.job]
                found.append(LimitMemory(guest.job, guest.memory))
            if guest.compute != compute:
                guest.compute = compute
                found.append(LimitCompute(guest.job, compute))
            guest.at_end = guest.at_end and not compute
        return tuple(found)

    # -- guests without an owner: memory by trial and error -----------------------------------------------------------

    def _rates(self) -> float:
        """The sum of the guests' speeds, each against its first here: one scale, so trials come to an end."""
        return sum(guest.first / guest.last for guest in self.guests.values() if guest.last)

    def _try_memory(self, now: float) -> None:
        """Move memory from one guest to another that has some on the host; keep it only if the sum of rates rises."""
        protection = self.protection
        if self._trial is not None:
            ends, giver, taker, before = self._trial
            if now < ends:
                return
            self._trial = None
            if self._rates() <= before:
                self._move(taker, giver)
                self._tried.add((giver, taker))
            else:
                self._tried.clear()
        memory = self._memory()
        for one, other in permutations(self.guests.values(), 2):
            spare = memory[one.job] - one.least >= protection.trial_gib - _EXACT
            lacks = other.least <= memory[other.job] < other.wanted - _EXACT
            if spare and lacks and (one.job, other.job) not in self._tried:
                self._trial = now + protection.trial_s, one.job, other.job, self._rates()
                self._move(one.job, other.job)
                return

    def _move(self, giver: int, taker: int) -> None:
        for job, gib in (giver, -self.protection.trial_gib), (taker, self.protection.trial_gib):
            self._moved[job] = self._moved.get(job, 0.0) + gib

    # -- checks -------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check what holds between events. O(guests)."""
        memory = self._memory()
        ensure(sum(memory.values()) <= self.gpu_gib - min(self.owner_gib, self.gpu_gib) + 1e-6, "memory of the GPU")
        for guest in self.guests.values():
            ensure(not memory[guest.job] or memory[guest.job] >= guest.least - 1e-6, f"guest {guest.job} can go on")
            held = self.owner is not None and self.reference is None
            ensure(not held or guest.compute == 0, f"guest {guest.job} is held")
            ensure(0 <= (guest.compute or 0.0) <= 1, f"guest {guest.job} has a part of the time")
