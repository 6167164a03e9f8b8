"""Reasons and decisions as text: one sentence per reason, with need, supply and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import assert_never

from hived.cluster.decisions import Bind, Decision, Preempt, Wait
from hived.cluster.explain import reasons as why
from hived.words import ranges

#: the first second that no date is for
_YEAR_10000 = 253_402_300_800
#: names listed in a sentence at most
MAX_NAMED = 8


def explained(decision: Decision, *, runs: bool = False, pod: Callable[[int], str] = "pod {}: ".format) -> list[str]:
    """A decision in lines: a headline, then one per reason, or per pod and per consequence for other groups.

    ``runs``: whether the group runs already; ``pod``: the prefix of a pod's line by its number, from 1.
    """
    name = _name(decision.group)
    if isinstance(decision, Wait):
        return [f"{name} waits:", *map(say, decision.reasons)]
    head = f"{name} {'runs' if runs else 'can start'} on {_gpus(decision.placement.gpus)}"
    if isinstance(decision, Bind):
        return [f"{head}:", *_outcome(decision, pod)]
    gone = f"once {_count(len(decision.victims), 'group')} {_have(decision.victims)} ended"
    return [f"{head}, {gone}:", f"to be ended: {_all(decision.victims)}", *_outcome(decision, pod)]


def in_lines(lines: Iterable[str]) -> str:
    """The first line as a headline, the others as a list below it."""
    return "\n- ".join(lines)


def say(reason: why.Reason) -> str:
    """``reason`` as one sentence without a full stop, in which "it" is the waiting group."""
    match reason:
        case why.Misconfigured():
            return f"its request is not right for this cluster: {_name(reason.field)}: {_name(reason.message)}"
        case why.NeverFits():
            return _never_fits(reason)
        case why.VcExhausted():
            return exhausted(reason)
        case why.Fragmented():
            return _fragmented(reason)
        case why.WaitingForPreemption():
            return f"its GPUs are reserved; it starts once {_some(reason.victims)} {_have(reason.victims)} ended"
        case why.WaitingForGang():
            fit = f"{reason.fit} of its {_count(reason.pods, 'pod')} would fit now"
            return f"{fit}, but a group starts with all its pods or none"
        case why.BadHardware():
            nodes = _some(reason.nodes, reason.more, "other node")
            were = "were" if reason.leaf_cells != 1 else "was"
            bad = f"{_gpus(reason.leaf_cells)} on {nodes} {were}"
            return f"it would fit if {bad} healthy; it starts once enough is repaired"
        case why.BehindOthers():
            are = "are" if reason.position != 1 else "is"
            jobs = _some(reason.ahead, max(0, reason.position - len(reason.ahead)))
            return f"{_count(reason.position, 'job')} of its VC {are} ahead of it in line: {jobs}"
        case why.ShareUsedUp():
            needs, vc = f"it needs {_gpus(reason.need)} on loan", f"VC {_name(reason.vc)}"
            if not reason.held:
                needs += f", more than the fair share of {vc}, which is {reason.share} now"
            else:
                needs += f", and {vc} has {reason.held} on loan already, where its fair share is {reason.share}"
            return f"{needs}; beyond that it gets only what is idle"
        case why.NothingIdle():
            return _nothing_idle(reason)
        case why.NotSuggested():
            return _not_suggested(reason)
        case why.PreemptedBy():
            return _preempted(reason)
        case why.LostReservation():
            if reason.group is not None:
                return f"it had GPUs reserved, and {_name(reason.group)}, of a higher priority, took them; ask again"
            if reason.node is not None:
                return f"it had GPUs reserved, and node {_name(reason.node)} turned bad under them; ask again"
            return "it had GPUs reserved, and the cluster was reconfigured since; ask again"
        case why.KeptForEnded():
            are = "are" if reason.leaf_cells != 1 else "is"
            ended = f"{_some(reason.groups, reason.more)}, which ended early"
            kept = f"{_gpus(reason.leaf_cells)} of VC {_name(reason.vc)} {are} kept for {ended}"
            return f"{kept}: its safety is exact, so its turns are those of a private cluster; loans use them"
        case why.CellsGiven():
            cells = f"{reason.number:,} x {_name(reason.cell_type)}"
            until = f"until {_moment(reason.until)} (trade {reason.trade})"
            return f"VC {_name(reason.vc)} has given {cells} to VC {_name(reason.to)} {until}"
        case why.Suspended():
            if reason.owner is not None:
                now = f"{_name(reason.owner)} has some of them now, and its VC has no such guests"
                return f"it was a guest on {_gpus(reason.leaf_cells)}, and {now}; schedule it again to go on"
            return f"it is suspended, and has given its {_gpus(reason.leaf_cells)} up; schedule it again to go on"
        case why.OutOfService():
            return _out_of_service(reason)
        case why.PodsMissing():
            held = f", of which {reason.held_back} cannot be bound (a scheduling gate, or being deleted)"
            them = held if reason.held_back else ""
            return f"{reason.there} of its {reason.pods} pods exist{them}; it is placed once all do"
        case why.NotAsked():
            said = f": {_name(' '.join(reason.said.split()))}" if reason.said else " yet"
            return f"its scheduler, {_name(reason.scheduler)}, has not asked for it{said}"
    assert_never(reason)


#: devices that are given one by one
_MOST_OPTIONS = 4


def _out_of_service(reason: why.OutOfService) -> str:
    cures = []
    if reason.drained:
        cures.append(f"{_places(reason.drained)} not drained ({_undrain(reason.drained)})")
    if reason.broken:
        cures.append(f"{_places(reason.broken)} healthy")
    if reason.kept:
        cures.append(f"{_places(reason.kept)} free, when {_some(reason.kept_by)} {_have(reason.kept_by)} ended")
    if not cures:
        after = f", after {_some(reason.before)}" if reason.before else ""
        return f"it waits for GPUs that are out of service{after}"
    return f"it would start with {' and '.join(cures)}"


def _places(places: why.Places) -> str:
    devices = [f"{'GPU' if len(of) == 1 else 'GPUs'} {ranges(of)} of {_name(node)}" for node, of in places[:MAX_NAMED]]
    left = sum(len(of) for _, of in places[MAX_NAMED:])
    return ", ".join(devices) + (f" and {_gpus(left)} elsewhere" if left else "")


def _undrain(places: why.Places) -> str:
    """How an operator undoes that."""
    if len(places) > 1:
        return "an operator undoes that: hived drain NODE --undo"
    ((node, devices),) = places
    some = "".join(f" --device {device}" for device in devices) if len(devices) <= _MOST_OPTIONS else ""
    return f"an operator undoes that: hived drain {_name(node)}{some} --undo"


def _moment(at: float) -> str:
    """Seconds since the epoch as a date."""
    if not 0 <= at < _YEAR_10000:
        return f"second {at:,.0f}"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _preempted(reason: why.PreemptedBy) -> str:
    by = f"{_name(reason.group)} of VC {_name(reason.vc)}"
    had = "had" if reason.ended else "has"
    own = "opportunistic" if reason.own_priority < 0 else f"of priority {reason.own_priority}"
    if reason.priority < 0:
        return f"it {had} to go for {by}: both are opportunistic, and its own VC was above its fair share"
    return f"it is {own} and {had} to go for {by}, which is guaranteed with priority {reason.priority}"


def _never_fits(reason: why.NeverFits) -> str:
    where = f"VC {_name(reason.vc)}" if reason.vc else "the cluster"
    if reason.need > reason.have:
        has = f"it needs {_gpus(reason.need)}, and {where} has {reason.have} of that kind in all"
        return f"{has}: it can never start; ask for fewer GPUs, or for a larger reservation"
    if reason.largest_pod > reason.largest_host:
        has = f"a pod of it needs {_gpus(reason.largest_pod)} together, and {where} has at most {reason.largest_host}"
        return f"{has} together: it can never start; split the pod into smaller ones"
    has = f"{where} has {_gpus(reason.have)} for the {reason.need} it needs"
    if reason.within is not None:
        cell = _name(reason.within)
        return f"{has}, but never in one {cell}: it can never start; ask for a wider cell or for soft affinity"
    return f"{has}, but its pods never fit side by side: it can never start; ask for smaller pods"


def exhausted(reason: why.VcExhausted, lost: int = 0, where: str = "") -> str:
    """A VC has too little; ``lost``: GPUs that cannot be used any more once those who hold them end, and ``where``."""
    has = f"VC {_name(reason.vc)} has {reason.have} of the {_gpus(reason.need)} it needs"
    if not reason.held_by and not reason.more:
        return f"{has}: the rest of its {reason.size} cannot be used now"
    by = ", ".join(f"{_name(group)} ({held})" for group, held in reason.held_by)
    if reason.more:
        others = _count(reason.more, "more job")
        taken = f"the rest of its {reason.size} are held by {f'{by}, {others}' if by else others}"
    else:
        held = sum(held for _, held in reason.held_by)
        unusable = reason.size - reason.have - held
        if reason.have + held < reason.need:
            by += f", and {unusable} cannot be used now; it starts when enough of all these can be used"
            return f"{has}: {held} of its {reason.size} {'are' if held != 1 else 'is'} held by {by}"
        taken = f"{held} of its {reason.size} {'are' if held != 1 else 'is'} held by {by}"
        if held > reason.size:  # what is being stopped holds its cells, and so does who comes after it
            taken = f"all {reason.size} of it are held by {by}, some of whom make room for others of these"
        taken += f", and {unusable} cannot be used now" if unusable > 0 else ""
    if lost:
        taken += f", of which {lost} cannot be used after that ({where})"
        if not reason.more and reason.have + sum(held for _, held in reason.held_by) - lost < reason.need:
            return f"{has}: {taken}; it starts when enough of all these can be used"
    if len(reason.held_by) + reason.more == 1:
        return f"{has}: {taken}; it starts when that ends, or with a higher priority than its own"
    return f"{has}: {taken}; it starts when enough of them end, or with a higher priority than theirs"


def _fragmented(reason: why.Fragmented) -> str:
    has = f"VC {_name(reason.vc)} has {_gpus(reason.have)} free for the {reason.need} it needs"
    way_out = "it starts when others in the VC end, and sooner with"
    if reason.largest_pod > reason.largest_free:
        most = f"the most free together {'are' if reason.largest_free != 1 else 'is'} {reason.largest_free}"
        together = f"not close enough together: a pod needs {reason.largest_pod}, and {most}"
        return f"{has}, but {together}; {way_out} smaller pods"
    if reason.within is not None:
        return f"{has}, but not in one {_name(reason.within)}; {way_out} a wider cell or soft affinity"
    return f"{has}, but not close enough together for all its pods; {way_out} smaller pods"


def _nothing_idle(reason: why.NothingIdle) -> str:
    are = "are" if reason.idle != 1 else "is"
    if reason.idle >= reason.need:
        has = f"{_gpus(reason.idle)} {are} idle, but not close enough together for the {reason.need} it needs"
        return f"{has}; it starts once enough of them are"
    has = f"it needs {_count(reason.need, 'idle GPU')}, and {reason.idle or 'none'} {are} idle"
    return f"{has}; it starts once enough are"


def _not_suggested(reason: why.NotSuggested) -> str:
    way_out = "suggest more nodes, or none at all to allow every node"
    if not reason.suggested:
        return "it would fit, but no node of the cluster was suggested; suggest some"
    nodes = f"the {_count(reason.suggested, 'suggested node')}"
    if reason.searched_all:
        return f"it would fit elsewhere, but not on {nodes}; {way_out}"
    return f"it would fit elsewhere, and no place was found on {nodes}, though not every way was tried; {way_out}"


def _outcome(decision: Bind | Preempt, pod: Callable[[int], str]) -> list[str]:
    """The lines of a placement: where, how close together, and the consequences for other groups."""
    placement = decision.placement
    lines = [
        f"{pod(number)}{_name(node)}, {'GPU' if len(devices) == 1 else 'GPUs'} {ranges(devices, ', ')}"
        for number, (node, devices) in enumerate(placement.pods, 1)
    ]
    guaranteed = "guaranteed: it stands in cells that its VC reserved"
    lines.append(
        guaranteed if placement.guaranteed else "opportunistic: it is lent, and taken back when its owner needs it"
    )
    within = None if decision.within is None else f"all of it is in one {_name(decision.within)}"
    lines.append(within or "no single cell holds all of it")
    if decision.relaxed:
        relaxed = " or one ".join(map(_name, decision.relaxed))
        lines.append(f"soft affinity: it could not be had in one {relaxed}")
    if decision.downgraded:
        run = "run" if len(decision.downgraded) != 1 else "runs"
        lines.append(f"{_all(decision.downgraded)} {run} on as opportunistic for its sake")
    if decision.overtaken:
        ends = "lose their reservations and wait" if len(decision.overtaken) != 1 else "loses its reservation and waits"
        lines.append(f"{_all(decision.overtaken)} {ends} again")
    return lines


def _gpus(number: int) -> str:
    return _count(number, "GPU")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _name(text: str) -> str:
    """``text`` for a line, with unprintable characters escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def _all(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; ``none`` for no names."""
    if not names:
        return "none"
    *most, last = map(_name, names)
    return f"{', '.join(most)} and {last}" if most else last


def _some(names: Sequence[str], more: int = 0, noun: str = "other") -> str:
    """The first ``MAX_NAMED`` names, and the number of others: ``more`` and those left out here."""
    more += len(names[MAX_NAMED:])
    if not more:
        return _all(names)
    rest = _count(more, noun)
    return f"{', '.join(map(_name, names[:MAX_NAMED]))} and {rest}" if names else rest
