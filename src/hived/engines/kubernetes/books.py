"""Who has how much, counted as gangs change: for fair turns at loans, for metrics and the dashboard."""

from __future__ import annotations

from collections import Counter

from hived.engines.places import Place

from .gangs import Gang, GangState


class Books:
    """Sums over gangs. :meth:`remove` before a gang changes, :meth:`add` after. O(pods of the gang)."""

    def __init__(self) -> None:
        #: GPUs in guaranteed use, per virtual cluster
        self.used: Counter[str] = Counter()
        #: GPUs held opportunistically, per virtual cluster
        self.lent: Counter[str] = Counter()
        #: gangs that hold no GPUs, per virtual cluster
        self.waiting: Counter[str] = Counter()
        #: gangs per virtual cluster and state
        self.states: Counter[tuple[str, str]] = Counter()
        #: GPUs in guaranteed use, per node that has any
        self.nodes: Counter[str] = Counter()
        #: guaranteed gangs that run as opportunistic for now
        self.displaced: dict[str, Gang] = {}
        #: who has each device
        self.at: dict[Place, Gang] = {}

    def add(self, gang: Gang) -> None:
        """It counts."""
        self._count(gang, 1)
        if gang.holds:
            if not gang.guaranteed and gang.priority >= 0:
                self.displaced[gang.name] = gang
            for pod in gang.placement.pods if gang.placement is not None else ():
                for device in pod.leaf_cells:
                    self.at[pod.node, device] = gang

    def remove(self, gang: Gang) -> None:
        """It does not count any more."""
        self._count(gang, -1)
        self.displaced.pop(gang.name, None)
        if gang.holds:
            for pod in gang.placement.pods if gang.placement is not None else ():
                for device in pod.leaf_cells:
                    self.at.pop((pod.node, device), None)

    def _count(self, gang: Gang, sign: int) -> None:
        vc = gang.vc
        self.states[vc, gang.state.value] += sign
        if gang.state in (GangState.WAITING, GangState.RESERVED):
            self.waiting[vc] += sign
            return
        pods = gang.placement.pods if gang.placement is not None else ()
        gpus = sign * sum(len(pod.leaf_cells) for pod in pods)
        if not gang.guaranteed:
            self.lent[vc] += gpus
            return
        self.used[vc] += gpus
        for pod in pods:
            left = self.nodes[pod.node] + sign * len(pod.leaf_cells)
            if left:
                self.nodes[pod.node] = left
            else:
                del self.nodes[pod.node]

    def per_state(self) -> dict[str, int]:
        """Gangs per state."""
        found = {state.value: 0 for state in GangState}
        for (_, state), count in self.states.items():
            found[state] += count
        return found
