"""The local coordinator of one GPU: limits of memory and compute for guests (AntMan, OSDI'20, 3.3 and 4.1). Pure.

A state machine: events in, instructions out, no clock. Who runs on the GPU is decided elsewhere; here the *owner*, a
guaranteed job, is protected from its *guests*:

    owner comes ->  initialising: each guest has its least memory and no compute
                    measured for settle_s: its mini-batch times alone, as a distribution, are the reference
                ->  raising: guests get the memory that it leaves; their compute rises by a step, every step_s
    three of five mini-batches beyond the reference  -> half the steps, and up to one below; that one after retry_s
    slow at the first step, or much faster than alone -> it has changed by itself: measured anew
    no mini-batch for long -> it does not use the GPU (a phase on the processor): its guests do, until the next one;
                    before its first one it may load its model, or be no training job: they wait
    owner goes  ->  one guest: no limits; several: no limits of compute, and memory by trial and error

So one slow mini-batch stops nobody, and neither do times that vary by themselves. A limit of compute is a part of the
owner's idle time. 0 holds a job at the end of the mini-batch that it is in. A limit of memory changes at the end of a
mini-batch alone (4.1): what is allocated above it goes to the host at once, never fails, and raises the limit at that
moment, if memory is left (Figure 7a). Limits follow what was used lately, up and down (Figure 7b), the owner's own too:
it has what its guests leave, and they shrink for it.

Its caller is the job scheduler of a machine (`engines/local/coordination.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import permutations
from math import inf

from hived.errors import ensure

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Protection:
    """The parameters. All are ours: the paper gives no step and does not define "stable"."""

    settle_s: float = 20.0  #: how long an owner's mini-batch times have to agree before guests compute
    step_s: float = 5.0  #: between two steps
    steps: int = 4  #: from no compute for a guest to all of the owner's idle time
    retry_s: float = 60.0  #: after which a step that has slowed the owner down is tried again
    away: float = 3.0  #: an owner without a mini-batch for so many times its longest does not use the GPU
    away_s: float = 1.0  #: and for so long at least
    memory_s: float = 60.0  #: for how long a peak of memory counts
    tolerance: float = 0.02  #: the part by which a mini-batch time may differ from the reference, beside ``gap_s``
    gap_s: float = 0.001  #: smaller differences do not count
    faster: float = 0.1  #: the part by which it has to be faster than alone to be measured anew
    change_s: float = 1.0  #: for which the owner's times say nothing, after guests may compute more or less than before
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
class Paused:
    """A guest that is held has ended its mini-batch, and has no memory on the GPU."""

    at: float
    job: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    at: float


Event = OwnerArrived | GuestArrived | Left | MiniBatch | Paused | Tick

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


@dataclass(frozen=True, slots=True)
class _Times:
    """Mini-batch times of an owner alone."""

    half: float  #: as many are shorter as longer
    most: float  #: nine of ten are shorter
    longest: float

    @classmethod
    def of(cls, times: list[float]) -> _Times:
        """By nearest rank. O(n log n)."""
        ordered = sorted(times)
        return cls(ordered[(len(ordered) - 1) // 2], ordered[(9 * len(ordered) - 1) // 10], ordered[-1])


class _Peaks:
    """The most of something in the last while."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._falling: deque[tuple[float, float]] = deque()  #: later ones are smaller

    def add(self, at: float, value: float) -> None:
        """Amortised O(1)."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((at, value))

    def most(self, now: float) -> float:
        """Of those in the span; the last one if there is none."""
        while len(self._falling) > 1 and self._falling[0][0] < now - self._span:
            self._falling.popleft()
        return self._falling[0][1] if self._falling else 0.0


class _Guest:
    """An opportunistic job."""

    def __init__(self, job: int, at: float, least: float, span: float) -> None:
        self.job, self.least = job, least
        #: as last instructed; None: not yet
        self.memory: float | None = None
        self.compute: float | None = None
        #: memory that it has needed lately, on the GPU and on the host
        self.needed = _Peaks(span)
        self.needed.add(at, least)
        #: when its limit of compute began to rise, if the owner is stable
        self.rises = at
        #: whether it is held, and its mini-batch has ended
        self.at_end = True
        #: its mini-batch times since a division of memory is tried; and the best mean of such times, its scale
        self.times: list[float] = []
        self.best = 0.0

    def mean(self) -> float:
        """Of its mini-batch times; 0: too few."""
        return sum(self.times) / len(self.times) if len(self.times) > 1 else 0.0


class Coordinator:
    """The jobs of one GPU. An event costs O(guests + mini-batches of an owner in ``settle_s``)."""

    def __init__(self, gpu_gib: float, protection: Protection | None = None) -> None:
        self.gpu_gib, self.protection = gpu_gib, protection or Protection()
        self.owner: int | None = None
        #: its mini-batch times without guests; None: it initialises
        self.reference: _Times | None = None
        #: the most steps that guests take, until a step that has slowed the owner down is tried again
        self.most = self.protection.steps
        self.guests: dict[int, _Guest] = {}
        #: whether the owner does not use the GPU
        self.is_away = False
        self._owner_needed = _Peaks(self.protection.memory_s)
        #: the owner's limit of memory as last instructed
        self.owner_limit: float | None = None
        self._retry_at = 0.0
        self._changed_at = -inf
        #: the times before those that are measured now
        self._former: _Times | None = None
        self._settles_at = 0.0
        # whether the owner has ended a mini-batch; when it came, or ended its last one; and mini-batches without
        # guests: when, and seconds
        self._heard, self._heard_at = False, 0.0
        self._alone: deque[tuple[float, float]] = deque()
        # of its last five beside guests, whether each was beyond the reference, and whether it was below
        self._recent: deque[tuple[bool, bool]] = deque(maxlen=5)
        self._now = 0.0
        # guests without an owner: memory that some have given up (below 0) for others
        self._moved: dict[int, float] = {}
        self._trial: tuple[float, int, int, dict[int, float]] | None = None  # when it ends, giver, taker, means before
        self._tried: set[tuple[int, int]] = set()

    @property
    def owner_gib(self) -> float:
        """Memory of the owner: the most that it has used or asked for lately."""
        return self._owner_needed.most(self._now) if self.owner is not None else 0.0

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Follow an event; what to do about it."""
        now = self._now = event.at
        match event:
            case OwnerArrived():
                ensure(self.owner is None, f"job {event.job} arrives, and {self.owner} owns the GPU")
                self.guests.pop(event.job, None)
                self.owner, self.owner_limit, self.reference = event.job, None, None
                self._owner_needed = _Peaks(self.protection.memory_s)
                self._heard, self._heard_at = False, now
                self._begin(now)
                self._jobs_changed(now)
            case GuestArrived():
                ensure(event.job not in self.guests, f"guest {event.job} is there already")
                self._jobs_changed(now)
                self.guests[event.job] = _Guest(event.job, now, event.least_gib, self.protection.memory_s)
            case Left():
                if event.job == self.owner:
                    self.owner, self.reference, self.is_away = None, None, False
                    self._alone.clear()
                else:
                    del self.guests[event.job]
                self._jobs_changed(now)
            case MiniBatch():
                if event.job == self.owner:
                    self._owner_measured(event)
                else:
                    self._guest_measured(event)
            case Paused():
                if not self.guests[event.job].at_end:
                    self.guests[event.job].at_end, self.owner_limit = True, None
            case Tick():
                pass
        if self.owner is not None:
            self._watch(now)
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
        self._measure()

    # -- the owner ----------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Pessimistic limits, until the owner's own times are known."""
        self._former, self.reference = self.reference, None
        self._settles_at = now + self.protection.settle_s
        self._alone.clear()
        self._recent.clear()

    def _owner_measured(self, event: MiniBatch) -> None:
        now = event.at
        self._owner_needed.add(now, event.peak_gib + event.host_gib)
        silent, self._heard_at = now - self._heard_at, now
        if not self._heard and silent > self.protection.step_s:  # it has loaded its model until now
            self._begin(now)
        self._heard = True
        if self.is_away:  # this one has the phase in it in which it did not use the GPU
            self.is_away = False
            if self.reference is None:
                self._begin(now)
            for guest in self.guests.values():  # they go on with the steps that they had before
                guest.rises = min(now, guest.rises + silent)
            return
        reference = self.reference
        if reference is None:
            self._alone.append((now, event.seconds))
            return
        if now < self._changed_at + self.protection.change_s - _EXACT:
            return
        beyond = event.seconds > reference.most + self._tolerated(reference.most)
        self._recent.append((beyond, event.seconds < (1 - self.protection.faster) * reference.half))
        if sum(slow for slow, _ in self._recent) >= 3:
            self._slowed_down(now)
        elif len(self._recent) == 5 and all(fast for _, fast in self._recent):
            self._begin(now)  # another phase of its own

    def _slowed_down(self, now: float) -> None:
        """Half the steps, and no further than one below for a while; at the first step it has changed by itself."""
        self._recent.clear()
        step = max([self._step(guest, now) for guest in self.guests.values()], default=0)
        if step <= 1:
            self._begin(now)
            return
        self.most, self._retry_at = step - 1, now + self.protection.retry_s
        for guest in self.guests.values():
            half = max(1, self._step(guest, now) // 2)
            guest.rises = now - (half - 1) * self.protection.step_s

    def _tolerated(self, seconds: float) -> float:
        return max(self.protection.tolerance * seconds, self.protection.gap_s)

    def _watch(self, now: float) -> None:
        """What time alone changes: the owner is known, or away; a step may be tried again."""
        protection, reference = self.protection, self.reference
        if reference is None:
            silent = protection.settle_s
            if now >= self._settles_at:
                self._settle(now)
        else:
            silent = max(protection.away_s, protection.away * reference.longest)
        if self._heard and now - self._heard_at > silent + _EXACT:
            self.is_away = True
        if self.reference is not None and self.most < protection.steps and now >= self._retry_at:
            for guest in self.guests.values():
                guest.rises = max(guest.rises, now - max(0, self.most - 1) * protection.step_s)
            self.most += 1
            self._retry_at = now + protection.retry_s

    def _settle(self, now: float) -> None:
        """The owner is known where its mini-batch times of the last ``settle_s`` agree, or are five: they may vary."""
        alone = self._alone
        while alone and alone[0][0] < now - self.protection.settle_s:
            alone.popleft()
        times = [seconds for _, seconds in alone]
        if not times or (len(times) < 5 and max(times) - min(times) > self._tolerated(min(times))):
            return
        self.reference = _Times.of(times)
        former, half = self._former, self.reference.half
        if former is not None and abs(half - former.half) > self._tolerated(former.half):
            self.most = self.protection.steps  # it has changed by itself: guests have slowed nobody down
        for guest in self.guests.values():
            guest.rises = now

    # -- the guests ---------------------------------------------------------------------------------------------------

    def _guest_measured(self, event: MiniBatch) -> None:
        guest = self.guests[event.job]
        guest.needed.add(event.at, max(guest.least, event.peak_gib + event.host_gib))
        guest.times.append(event.seconds)
        guest.at_end = True

    def _step(self, guest: _Guest, now: float) -> int:
        """The steps of compute that a guest has beside an owner."""
        protection = self.protection
        if self.is_away:
            return protection.steps
        if self.reference is None:
            return 0
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
                    more = max(0.0, min(guest.needed.most(self._now) - guest.least, left))
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
                self._changed_at = now
                guest.compute = compute
                found.append(LimitCompute(guest.job, compute))
            guest.at_end = guest.at_end and not compute
        if self.owner is not None and (ended == self.owner or self.owner_limit is None):
            # a guest that is to have less has it after its mini-batch
            theirs = sum(max(guest.memory or 0.0, memory[guest.job]) for guest in self.guests.values())
            limit = max(self.gpu_gib - theirs, 0.0)
            if limit != self.owner_limit:
                self.owner_limit = limit
                found.append(LimitMemory(self.owner, limit))
        return tuple(found)

    # -- guests without an owner: memory by trial and error -----------------------------------------------------------

    def _means(self) -> dict[int, float]:
        """The mean mini-batch time of each guest since the last division of memory; empty: not measured yet."""
        found = {guest.job: guest.mean() for guest in self.guests.values()}
        return found if all(found.values()) else {}

    def _gains(self, before: dict[int, float], after: dict[int, float]) -> bool:
        """Whether the sum of rates has risen, each against the best mean that its guest has had here."""
        for guest in self.guests.values():
            guest.best = min(guest.best or inf, before[guest.job], after[guest.job])
        rates = [sum(guest.best / of[guest.job] for guest in self.guests.values()) for of in (before, after)]
        return rates[1] > rates[0]

    def _try_memory(self, now: float) -> None:
        """Move memory from one guest to another that has some on the host; keep it only if the sum of rates rises."""
        protection, means = self.protection, self._means()
        if self._trial is not None:
            ends, giver, taker, before = self._trial
            if now < ends or (not means and now < ends + 2 * protection.trial_s):
                return
            self._trial = None
            if means and self._gains(before, means):
                self._tried.clear()
            else:
                self._move(taker, giver)
                self._tried.add((giver, taker))
            self._measure()
            return
        if not means:
            return
        memory = self._memory()
        for one, other in permutations(self.guests.values(), 2):
            spare = memory[one.job] - one.least >= protection.trial_gib - _EXACT
            lacks = other.least <= memory[other.job] < other.needed.most(now) - _EXACT
            if spare and lacks and (one.job, other.job) not in self._tried:
                self._trial = now + protection.trial_s, one.job, other.job, means
                self._move(one.job, other.job)
                self._measure()
                return

    def _measure(self) -> None:
        """From now on, under another division."""
        for guest in self.guests.values():
            guest.times.clear()

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
            held = self.owner is not None and self.reference is None and not self.is_away
            ensure(not held or guest.compute == 0, f"guest {guest.job} is held")
            ensure(0 <= (guest.compute or 0.0) <= 1, f"guest {guest.job} has a part of the time")
