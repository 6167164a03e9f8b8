"""A cluster spec as an outsider reads it: nodes, their devices, and what every tenant reserved.

Written from the contract of the YAML dialect alone; nothing of hived is imported. It trusts the spec to be right.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

#: a node's name and one of its devices
Gpu = tuple[str, int]


@dataclass
class Chain:
    """All cells of one top type."""

    name: str
    types: list[str]  #: from the leaf up
    gpus: list[int]  #: GPUs in a cell of each type
    node_level: int  #: index into the two lists above
    leaves: list[Gpu] = field(default_factory=list)  #: buddies are neighbours
    pinned: dict[str, range] = field(default_factory=dict)  #: id: its leaves

    @property
    def node_gpus(self) -> int:
        return self.gpus[self.node_level]

    @property
    def nodes(self) -> int:
        return len(self.leaves) // self.node_gpus

    @property
    def device(self) -> str:
        return self.types[0]


@dataclass(frozen=True)
class Reserved:
    """Equal cells of one tenant."""

    chain: Chain
    level: int  #: index into the chain's levels
    number: int

    @property
    def gpus(self) -> int:
        return self.number * self.chain.gpus[self.level]

    def hosts(self) -> list[int]:
        """GPUs of every node in them; a cell below a node counts as a node of its own."""
        size = self.chain.gpus[self.level]
        if size < self.chain.node_gpus:
            return [size] * self.number
        return [self.chain.node_gpus] * (self.gpus // self.chain.node_gpus)


@dataclass
class Hardware:
    """What is there, and who reserved what (pinned cells are for requests that name them: a trace has none)."""

    chains: list[Chain]
    tenants: dict[str, list[Reserved]]

    def __post_init__(self) -> None:
        #: of each GPU: its chain and its place in it
        self.place: dict[Gpu, tuple[Chain, int]] = {
            gpu: (chain, at) for chain in self.chains for at, gpu in enumerate(chain.leaves)
        }

    @property
    def gpus(self) -> int:
        return sum(len(chain.leaves) for chain in self.chains)

    def fits_cells(self, tenant: str, gpus: int) -> bool:
        """Whether a job fits the tenant's cells when they are empty."""
        for chain in self.chains:
            hosts = [size for r in self.tenants[tenant] if r.chain is chain for size in r.hosts()]
            if gpus <= chain.node_gpus:
                if any(size >= gpus for size in hosts):
                    return True
            elif hosts.count(chain.node_gpus) >= -(-gpus // chain.node_gpus):
                return True
        return False

    def fits_quota(self, tenant: str, gpus: int) -> bool:
        """Whether a job is within the tenant's number of GPUs of one device type, and the cluster has its nodes."""
        quota = self.quota(tenant)
        for chain in self.chains:
            nodes = 1 if gpus <= chain.node_gpus else -(-gpus // chain.node_gpus)
            held = gpus if gpus <= chain.node_gpus else nodes * chain.node_gpus
            if held <= quota.get(chain.device, 0) and nodes <= chain.nodes:
                return True
        return False

    def fits_cluster(self, gpus: int) -> bool:
        """Whether a job fits the whole cluster when it is empty."""
        return any(gpus <= chain.node_gpus or -(-gpus // chain.node_gpus) <= chain.nodes for chain in self.chains)

    def quota(self, tenant: str) -> dict[str, int]:
        """GPUs reserved per device type."""
        quota: dict[str, int] = {}
        for reserved in self.tenants[tenant]:
            quota[reserved.chain.device] = quota.get(reserved.chain.device, 0) + reserved.gpus
        return quota


def read_hardware(path: Path) -> Hardware:
    """The spec in a YAML file."""
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    physical = spec["physicalCluster"]
    chains: dict[str, Chain] = {}
    number = 0
    for cell in physical["physicalCells"]:
        name = cell["cellType"]
        if name not in chains:
            chains[name] = _chain(name, physical["cellTypes"])
        for one in _each(cell):
            _grow(chains[name], physical["cellTypes"], one, len(chains[name].types) - 1, number, "")
            number += 1
    tenants = {}
    for name, vc in (spec.get("virtualClusters") or {}).items():
        tenants[str(name)] = [_reserved(chains, cells) for cells in (vc or {}).get("virtualCells") or ()]
    return Hardware(list(chains.values()), tenants)


def _chain(name: str, types: Mapping[str, Any]) -> Chain:
    names, fanouts, node = [name], [1], name
    while names[-1] in types:
        kind = types[names[-1]]
        if kind.get("isNodeLevel"):
            node = names[-1]
        names.append(kind["childCellType"])
        fanouts.append(kind["childCellNumber"])
    names.reverse()
    gpus = list(itertools.accumulate([1, *reversed(fanouts[1:])], lambda a, b: a * b))
    return Chain(name, names, gpus, names.index(node))


def _grow(chain: Chain, types: Mapping[str, Any], cell: Mapping[str, Any], level: int, number: int, node: str) -> None:
    """Append the leaves of one cell. ``number`` counts cells of its level, below a node from 0 again."""
    address = cell.get("cellAddress")
    if level == chain.node_level:
        node, number = str(number if address is None else address), 0
    first = len(chain.leaves)
    if level == 0:
        own = level != chain.node_level and address is not None
        chain.leaves.append((node, int(str(address)) if own else number))
    else:
        fanout = types[chain.types[level]]["childCellNumber"]
        children = [one for child in cell.get("cellChildren") or [{}] * fanout for one in _each(child or {})]
        for n, child in enumerate(children):
            _grow(chain, types, child, level - 1, number * fanout + n, node)
    if "pinnedCellId" in cell:
        chain.pinned[cell["pinnedCellId"]] = range(first, len(chain.leaves))


def _each(cell: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The cells that an entry with an address range stands for."""
    address = cell.get("cellAddress")
    if address is None or "[" not in str(address):
        yield cell
        return
    pieces = re.split(r"\[([^\]]*)\]", str(address))
    choices = [[text] if n % 2 == 0 else _numbers(text) for n, text in enumerate(pieces)]
    for words in itertools.product(*choices):
        yield {**cell, "cellAddress": "".join(words)}


def _numbers(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        found += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return found


def _reserved(chains: Mapping[str, Chain], cells: Mapping[str, Any]) -> Reserved:
    path: Sequence[str] = cells["cellType"].split(".")
    chain = chains[path[0]]
    return Reserved(chain, chain.types.index(path[-1]), cells["cellNumber"])
