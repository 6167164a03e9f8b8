"""What an exchange was to each tenant: the draft's Table 4 (5.4), from what was seen at every look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.spec.compiled import ClusterSpec

from .exchange import Sample


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One tenant. Shares are of the time and the cells that it reserved."""

    tenant: str
    reserved: int  #: cells
    utilization: float  #: cells of its own with guaranteed jobs
    increase: float  #: cells of others with its guaranteed jobs: matched ones alone
    benefited_h: float  #: GPU hours of these
    contributed_h: float  #: GPU hours of its own cells that others used so
    given_h: float  #: GPU hours of its own that it had given away, used or not

    @property
    def gain(self) -> float:
        """The increase over its utilization; 0 where it used nothing."""
        return self.increase / self.utilization if self.utilization else 0.0


def exchanged(spec: ClusterSpec, samples: Sequence[Sample], every_ms: int, until_ms: int) -> list[Exchanged]:
    """What each tenant had of the exchange, in the order of the spec, up to ``until_ms``. O(samples).

    A tenant's jobs are on its own cells first, and on those of others beyond. What takers leave idle is shared among
    the givers of the moment in proportion to what they gave.
    """
    chain = spec.chains[0]
    own = {
        vc.name: sum(c.number for c in vc.cells if (c.chain, c.level) == (chain.name, chain.node_level))
        for vc in spec.virtual_clusters
    }
    looks: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.at <= until_ms:
            looks.setdefault(sample.at, []).append(sample)
    used, benefit, contributed, given = (dict.fromkeys(own, 0.0) for _ in range(4))
    for of_look in looks.values():
        on_taken = {s.tenant: max(0, min(s.taken, s.used - (own[s.tenant] - s.given))) for s in of_look}
        all_given, all_used = sum(s.given for s in of_look), sum(on_taken.values())
        for sample in of_look:
            name = sample.tenant
            used[name] += sample.used - on_taken[name]
            benefit[name] += on_taken[name]
            given[name] += sample.given
            contributed[name] += sample.given * all_used / all_given if all_given else 0.0
    number = max(1, len(looks))
    hours = chain.gpus_per_node * every_ms / 3_600_000
    return [
        Exchanged(
            name,
            cells,
            used[name] / (number * max(1, cells)),
            benefit[name] / (number * max(1, cells)),
            benefit[name] * hours,
            contributed[name] * hours,
            given[name] * hours,
        )
        for name, cells in own.items()
    ]
