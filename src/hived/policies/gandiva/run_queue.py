"""The jobs of a VC that share its GPUs on one server, and the turns that they get (Gandiva, OSDI'18, 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hived.cluster.decisions import Placement, PodPlacement
from hived.scheduling.instructions import Turn

from .rotation import Rotation, rotation
from .servers import Host, Spread

if TYPE_CHECKING:
    from hived.scheduling.queue import Entry


class Seat:
    """A job that time-slicing has placed: an *owner* holds GPUs of the VC, a *sharer* has turns on those of owners."""

    __slots__ = (
        "base", "credit", "entry", "gpus", "placement", "priority", "queue", "ran", "share", "since", "spread",
        "trials", "turns", "weight", "whole",
    )  # fmt: skip

    def __init__(self, entry: Entry, gpus: int, spread: Spread = (), placement: Placement | None = None) -> None:
        self.entry = entry
        #: GPUs that it asked for, and those that it has; an elastic job may have grown
        self.base = self.gpus = gpus
        #: the GPUs that it holds; none: it is a sharer
        self.spread, self.placement = spread, placement
        #: its turns on GPUs of its own
        self.whole: tuple[Turn, ...] = () if placement is None else (Turn(placement),)
        #: of its server; None: it holds GPUs of several, which are its own all the time
        self.queue: RunQueue | None = None
        self.priority = entry.priority
        self.weight = 1
        #: its turns as the engine has them
        self.turns: tuple[Turn, ...] = ()
        #: seconds for which it has run, up to ``since``, and its share from then on
        self.ran = self.since = self.share = 0.0
        #: live, seconds that count as if it had run: so that one that comes later is not ahead of all others
        self.credit = 0.0
        #: trials in which it was packed in vain
        self.trials = 0

    @property
    def job(self) -> int:
        """Its number."""
        return self.entry.number

    def hold(self, spread: Spread, placement: Placement | None) -> None:
        """Hold these GPUs from now on; () and None: no GPUs."""
        self.spread, self.placement = spread, placement
        self.whole = () if placement is None else (Turn(placement),)

    def ran_by(self, now: float) -> float:
        """Seconds for which it has run by ``now``, in the engine's unit of time."""
        return self.ran + self.share * (now - self.since)

    def __repr__(self) -> str:
        return f"Seat({self.entry.name!r}, {self.gpus} GPUs, {'owner' if self.spread else 'sharer'})"


#: jobs that run together, packed on the same GPUs; most have one member
Unit = tuple[Seat, ...]


def _largest_first(unit: Unit) -> int:
    return -unit[0].gpus


def _halted(unit: Unit) -> bool:
    """Whether all of it is told to pause by hand."""
    return all(seat.entry.halted for seat in unit)


class _Ground:
    """The GPUs that the owners of one server hold, by their positions in order of the owners' arrivals."""

    __slots__ = ("_chain", "_levels", "_node", "_places", "devices")

    def __init__(self, owners: list[Placement], live: bool) -> None:
        self._chain, self._node = owners[0].chain, owners[0].pods[0].node
        self._levels = owners[0].reserved_levels[:1] if live else ()
        self.devices = [device for placement in owners for pod in placement.pods for device in pod.leaf_cells]
        self._places: dict[tuple[int, ...], Placement] = {}

    def on(self, positions: tuple[int, ...]) -> Placement:
        """These positions as a placement. O(1) but for the first time."""
        place = self._places.get(positions)
        if place is None:
            leaves = tuple(sorted([self.devices[at] for at in positions]))
            place = self._places[positions] = Placement(self._chain, (PodPlacement(self._node, leaves),), self._levels)
        return place


class RunQueue:
    """The units of one server. Where all fit, each runs all the time; else they take turns."""

    def __init__(self, host: Host, live: bool = False) -> None:
        """``live``: an engine keeps what its jobs run on, and that it is of cells of the VC."""
        self.host, self._live = host, live
        #: in order of arrival
        self.seats: dict[Seat, None] = {}
        self.units: list[Unit] = []
        #: GPUs that its owners hold
        self.gpus = 0
        #: GPUs that its jobs ask for
        self.requested_gpus = 0
        #: a packed unit under trial: the unit, its newest member, and the throughput that it has to exceed
        self.trial: tuple[Unit, Seat, float] | None = None
        #: when the trial ends
        self.trial_ends = 0.0
        #: packings that were undone: their jobs
        self.undone: set[tuple[int, ...]] = set()
        #: when its units have changed, from which exact slices are counted
        self.changed_at = 0.0
        # of its GPUs, None where the owners have changed since
        self._ground: _Ground | None = None

    def add(self, seat: Seat) -> None:
        """Add a job as a unit of its own."""
        seat.queue = self
        self.seats[seat] = None
        self.units.append((seat,))
        self.requested_gpus += seat.gpus
        if seat.spread:
            self.gpus += seat.gpus
            self._ground = None

    def remove(self, seat: Seat) -> None:
        """Remove a job, and end the trial that it takes part in."""
        seat.queue = None
        del self.seats[seat]
        self.requested_gpus -= seat.gpus
        if seat.spread:
            self.gpus -= seat.gpus
            self._ground = None
        if len(self.units) > len(self.seats):  # none is packed
            self.units.remove((seat,))
            return
        at = next(number for number, unit in enumerate(self.units) if seat in unit)
        left = tuple([other for other in self.units[at] if other is not seat])
        if self.trial is not None and seat in self.trial[0]:
            newest, self.trial = self.trial[1], None
            if newest is not seat and len(left) > 1:  # it is packed anew once this has settled
                left = tuple([other for other in left if other is not newest])
                self.units.append((newest,))
        self.units[at : at + 1] = [left] if left else []

    def own(self, seat: Seat, spread: Spread, placement: Placement) -> None:
        """A sharer takes GPUs of the server."""
        seat.hold(spread, placement)
        self.gpus += seat.gpus
        self._ground = None

    def pack(self, seat: Seat, unit: Unit) -> Unit:
        """Pack a job, which is a unit of its own, with those of another; returns the new unit."""
        self.units.remove((seat,))
        at = self.units.index(unit)
        self.units[at] = (*unit, seat)
        return self.units[at]

    def unpack(self, seat: Seat) -> None:
        """Take a job out of its unit."""
        at = next(number for number, unit in enumerate(self.units) if seat in unit)
        self.units[at] = tuple([other for other in self.units[at] if other is not seat])
        self.units.append((seat,))

    @property
    def alone(self) -> bool:
        """Whether every job has GPUs of its own."""
        return self.requested_gpus == self.gpus and len(self.units) == len(self.seats)

    @property
    def graded(self) -> bool:
        """Whether its jobs differ in weight or priority."""
        first = next(iter(self.seats))
        return any(s.weight != first.weight or s.priority != first.priority for s in self.seats)

    @property
    def height(self) -> float:
        """GPUs asked for over GPUs: above 1, its jobs share them (Gandiva, 4.2)."""
        return self.requested_gpus / self.gpus if self.gpus else float("inf")

    @property
    def needed(self) -> int:
        """GPUs that its units need to run at once."""
        return sum([unit[0].gpus for unit in self.units])

    @property
    def overloaded(self) -> bool:
        """Whether its units take turns."""
        return self.needed > self.gpus

    @property
    def node(self) -> str:
        """Its node; "": it has no owners."""
        return next((seat.placement.pods[0].node for seat in self.seats if seat.placement is not None), "")

    def sharers(self) -> Iterator[Seat]:
        """The jobs that hold no GPUs, in order of arrival."""
        return (seat for seat in self.seats if not seat.spread)

    def turns(self, exact: int = -1) -> list[tuple[Seat, tuple[Turn, ...], float]]:
        """Every job with its turns, and the fraction of slices at whose start it is resumed. O(jobs * GPUs).

        ``exact``: the number of a slice since the last change, for the turns of that slice alone.
        """
        ground = self._its_gpus()
        if ground is None:
            return [(seat, (), 0.0) for seat in self.seats]
        if not self.overloaded:
            return self._all_the_time(ground)
        on = ground.on
        units = sorted(self.units, key=_largest_first)  # so that equal ones have equal cycles
        cycle = self._cycle(units)
        found: list[tuple[Seat, tuple[Turn, ...], float]] = []
        now = None if exact < 0 else dict(cycle.slices[exact % len(cycle.slices)])
        for number, unit in enumerate(units):
            resumes = cycle.resumes[number]
            of_unit = cycle.turns[number]
            if now is not None:
                of_unit = ((now[number], 1.0),) if number in now else ()
            if len(unit) == 1:
                found.append((unit[0], tuple([Turn(on(at), share) for at, share in of_unit]), resumes))
                continue
            for seat in unit:
                beside = tuple([other.job for other in unit if other is not seat])
                found.append((seat, tuple([Turn(on(at), share, beside) for at, share in of_unit]), resumes))
        return found

    def by_service(self, served: Callable[[Seat], float]) -> list[tuple[Seat, tuple[Turn, ...], float]]:
        """Every job with its turn in the slice that begins now: those that have run least for their weight.

        As :meth:`turns`, but by what each has really run: so whoever pauses late has less later (Gandiva, 4.1).
        Who runs already stays on its GPUs. O(jobs log jobs + GPUs).
        """
        ground = self._its_gpus()
        if ground is None:
            return [(seat, (), 0.0) for seat in self.seats]
        halted = any(seat.entry.halted for seat in self.seats)
        if not self.overloaded and not halted:
            return self._all_the_time(ground)
        number = {unit: at for at, unit in enumerate(self.units)}

        def order(unit: Unit) -> tuple[float, float, int]:
            return -max(seat.priority for seat in unit), max(served(seat) / seat.weight for seat in unit), number[unit]

        left, chosen = self.gpus, []
        for unit in sorted(self.units, key=order):
            if unit[0].gpus <= left and not _halted(unit):
                left -= unit[0].gpus
                chosen.append(unit)
        at = {device: position for position, device in enumerate(ground.devices)}
        free = set(range(len(ground.devices)))
        places: dict[Unit, tuple[int, ...]] = {}
        for unit in chosen:
            now = unit[0].turns[0].placement.pods[0].leaf_cells if unit[0].turns else ()
            here = tuple([at[device] for device in now if device in at])
            if len(here) == unit[0].gpus and free.issuperset(here):
                places[unit] = here
                free.difference_update(here)
        for unit in chosen:
            if unit not in places:
                places[unit] = tuple(sorted(free)[: unit[0].gpus])
                free.difference_update(places[unit])
        found: list[tuple[Seat, tuple[Turn, ...], float]] = []
        for unit in self.units:
            for seat in unit:
                beside = tuple([other.job for other in unit if other is not seat])
                turn = (Turn(ground.on(places[unit]), 1.0, beside),) if unit in places else ()
                found.append((seat, turn, 0.0))
        return found

    def share(self, unit: Unit) -> float:
        """The fraction of the time for which a unit runs; those told to pause leave their turns. O(jobs * GPUs)."""
        awake = [other for other in self.units if not _halted(other)]
        if unit not in awake:
            return 0.0
        if sum([other[0].gpus for other in awake]) <= self.gpus:
            return 1.0
        awake.sort(key=_largest_first)
        return sum([share for _, share in self._cycle(awake).turns[awake.index(unit)]])

    def _its_gpus(self) -> _Ground | None:
        """What its owners hold; None: it has none."""
        if self._ground is None:
            owners = [seat.placement for seat in self.seats if seat.placement is not None]
            self._ground = _Ground(owners, self._live) if owners else None
        return self._ground

    def _cycle(self, units: list[Unit]) -> Rotation:
        """The cycle of these units, the largest first, which need more GPUs than it has."""
        weights: tuple[int, ...] = ()
        priorities: tuple[int, ...] = ()
        if self.graded:
            weights = tuple([max(seat.weight for seat in unit) for unit in units])
            priorities = tuple([max(seat.priority for seat in unit) for unit in units])
        return rotation(self.gpus, tuple([unit[0].gpus for unit in units]), weights, priorities)

    def _all_the_time(self, ground: _Ground) -> list[tuple[Seat, tuple[Turn, ...], float]]:
        """Every unit on GPUs of its own: an owner's, or those that are left."""
        devices = ground.devices
        left = set(range(len(devices)))
        of_units: dict[Unit, Placement] = {}
        for unit in self.units:
            owner = next((seat for seat in unit if seat.placement is not None), None)
            if owner is not None and owner.placement is not None:
                of_units[unit] = owner.placement
                own = {device for pod in owner.placement.pods for device in pod.leaf_cells}
                left -= {at for at, device in enumerate(devices) if device in own}
        for unit in self.units:
            if unit not in of_units:
                chosen = sorted(left)[: unit[0].gpus]
                left.difference_update(chosen)
                of_units[unit] = ground.on(tuple(chosen))
        found: list[tuple[Seat, tuple[Turn, ...], float]] = []
        for unit, place in of_units.items():
            for seat in unit:
                beside = tuple([other.job for other in unit if other is not seat])
                found.append((seat, (Turn(place, 1.0, beside),), 0.0))
        return found
