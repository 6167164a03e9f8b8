"""What the dashboard, the status and the metrics read in the mind: who waits, for what, and what is bad."""

from __future__ import annotations

from hived.cluster.reasons import ReasonKind
from hived.engines.kubernetes.foreign import kept_for_others
from hived.engines.kubernetes.gangs import Gang, GangState
from hived.engines.kubernetes.state import MindState
from hived.scheduling import Status


def waiting(mind: MindState, most: int) -> list[Gang]:
    """Who holds no GPUs: with a reservation, then in turn, then those that are in no line. At most ``most``.

    O(most + gangs).
    """
    found = [*mind.reserved.values()][:most]
    found += [mind.gangs[entry.name] for entry in mind.scheduler.in_turn(max(0, most - len(found)))]
    return found + _in_no_line(mind, most - len(found))


def _in_no_line(mind: MindState, most: int) -> list[Gang]:
    """Who waits for pods of its own that do not exist yet, or for kube-scheduler to ask. O(gangs)."""
    waiting = sum(entry.status is Status.WAITING for entry in mind.scheduler.jobs.values())
    left = min(most, sum(mind.usage.waiting.values()) - len(mind.reserved) - waiting)
    found: list[Gang] = []
    if left > 0:
        for gang in mind.gangs.values():
            if gang.state is GangState.WAITING and not gang.in_line:
                found.append(gang)
                if len(found) == left:
                    break
    return found


def bad_gpus(mind: MindState) -> int:
    """GPUs that nobody uses and that are kept from jobs, but not for foreign pods. O(bad GPUs + foreign pods)."""
    nodes, held = mind.nodes, mind.usage.at
    bad = sum((node, device) not in held for node in nodes.bad_nodes for device in nodes.devices[node])
    return bad + sum(place not in held for place in nodes.bad_devices) - kept_for_others(mind)


def why(gang: Gang) -> ReasonKind:
    """The decisive reason of a gang that waits, as far as that can be said of it alone. O(1)."""
    if gang.state is GangState.RESERVED:
        return ReasonKind.WAITING_FOR_PREEMPTION
    if not gang.in_line:
        return ReasonKind.WAITING_FOR_GANG
    # the core is asked for who is first in line, so of the others it may have said nothing
    return gang.reasons[0].kind if gang.reasons else ReasonKind.BEHIND_OTHERS
