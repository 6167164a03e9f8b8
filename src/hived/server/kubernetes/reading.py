"""What the dashboard, the status and the metrics read in the gang scheduler: who waits, for what, and what is bad."""

from __future__ import annotations

from itertools import islice

from hived.cluster.reasons import ReasonKind
from hived.engines.kubernetes.gangs.foreign import kept_for_others
from hived.engines.kubernetes.gangs.gang import Gang, GangState
from hived.engines.kubernetes.gangs.gang_table import GangTable
from hived.scheduling import Status


def waiting(gang_scheduler: GangTable, most: int) -> list[Gang]:
    """Who holds no GPUs: with a reservation, then in turn, then those that are in no line. At most ``most``.

    O(most + gangs).
    """
    found = gang_scheduler.reserved()[:most]
    found += [gang_scheduler.gangs[entry.name] for entry in gang_scheduler.scheduler.in_turn(max(0, most - len(found)))]
    # who waits for pods of its own that do not exist yet, or for kube-scheduler to ask
    in_line = sum(entry.status is Status.WAITING for entry in gang_scheduler.scheduler.jobs.values())
    left = min(most - len(found), gang_scheduler.usage.waiting.total() - len(gang_scheduler.reserved()) - in_line)
    others = (g for g in gang_scheduler.gangs.values() if g.state is GangState.WAITING and not g.in_line)
    return found + list(islice(others, max(0, left)))


def bad_gpus(gang_scheduler: GangTable) -> int:
    """GPUs that nobody uses and that are kept from jobs, but not for foreign pods. O(bad GPUs + foreign pods)."""
    nodes, held = gang_scheduler.nodes, gang_scheduler.usage.at
    bad = sum((node, device) not in held for node in nodes.bad_nodes for device in nodes.devices[node])
    return bad + sum(place not in held for place in nodes.bad_devices) - kept_for_others(gang_scheduler)


def why(gang: Gang) -> ReasonKind:
    """The decisive reason of a gang that waits, as far as that can be said of it alone. O(1)."""
    if gang.state is GangState.RESERVED:
        return ReasonKind.WAITING_FOR_PREEMPTION
    if not gang.in_line:
        return ReasonKind.WAITING_FOR_GANG
    # the core is asked for who is first in line, so of the others it may have said nothing
    return gang.reasons[0].kind if gang.reasons else ReasonKind.BEHIND_OTHERS
