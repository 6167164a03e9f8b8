"""A compiled spec as the YAML that it could have been compiled from.

Comments, defaults and pinned cells that no virtual cluster holds are not in a compiled spec, and so not in the text:
``parse_spec(spec_text(spec))`` is the same spec, apart from its source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from .compiled import (
    NO_GUESTS,
    OPPORTUNISTIC_GRACE_SECONDS,
    WORK_CONSERVING,
    AccessSpec,
    ChainSpec,
    ClusterSpec,
    VirtualClusterSpec,
)

_Plain = dict[str, object]
#: the number that a range may count: the last one of an address
_NUMBERED = re.compile(r"(.*?)([0-9]{1,17})([^0-9]*)", re.DOTALL)


def spec_text(spec: ClusterSpec) -> str:
    """The spec as YAML, for people too. O(nodes + pinned cells), and devices that are not numbered from 0."""
    types: dict[str, _Plain] = {}
    cells: list[_Plain] = []
    for chain in spec.chains:
        for number in range(len(chain.levels), 1, -1):
            types[chain.levels[number - 1].cell_type] = _type(chain, number)
        cells += _Cells(chain, spec.virtual_clusters).top()
    plain: _Plain = {"physicalCluster": {"cellTypes": types, "physicalCells": cells}}
    plain["virtualClusters"] = {vc.name: _virtual(spec, vc) for vc in spec.virtual_clusters}
    if spec.operators:
        plain["operators"] = list(spec.operators)
    # lists and mappings of plain values in one line each
    text: str = yaml.dump(
        plain, Dumper=_Dumper, default_flow_style=None, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Writes no aliases: people read it."""

    def ignore_aliases(self, data: object) -> bool:
        """True: a list that occurs twice is written twice."""
        del data
        return True


def _type(chain: ChainSpec, number: int) -> _Plain:
    level, child = chain.levels[number - 1], chain.levels[number - 2]
    node = {"isNodeLevel": True} if number == chain.node_level else {}
    return {"childCellType": child.cell_type, "childCellNumber": level.fanout, **node}


class _Cells:
    """The physical cells of a chain, with as little spelled out as possible."""

    def __init__(self, chain: ChainSpec, vcs: Sequence[VirtualClusterSpec]) -> None:
        self._chain = chain
        self._pins = {
            (pin.level, pin.index): pin.pinned_cell_id for vc in vcs for pin in vc.pinned if pin.chain == chain.name
        }
        #: cells that have a pinned cell inside
        self._around = {
            (level, index // (chain.levels[level - 1].gpus // chain.levels[pinned - 1].gpus))
            for pinned, index in self._pins
            for level in range(pinned + 1, len(chain.levels) + 1)
        }

    def top(self) -> Iterator[_Plain]:
        """The entries of ``physicalCells``."""
        level = len(self._chain.levels)
        for entry in self._entries(level, range(self._chain.top_cells)):
            yield {"cellType": self._chain.name, **entry}

    def _entries(self, level: int, indexes: range) -> list[_Plain]:
        """Cells at a level, above a node or nodes."""
        chain = self._chain
        if level > chain.node_level:
            fanout = chain.levels[level - 1].fanout
            return [
                self._pin(level, index)
                | {"cellChildren": self._entries(level - 1, range(index * fanout, (index + 1) * fanout))}
                for index in indexes
            ]
        found: list[_Plain] = []
        run: list[str] = []
        of_run: object = None
        for index in indexes:
            inside = self._inside(index)
            apart = (level, index) in self._pins or (level, index) in self._around
            if run and (apart or inside != of_run):
                found += [{"cellAddress": address} | _children(of_run) for address in _ranges(run)]
                run = []
            if apart:
                address = {"cellAddress": chain.node_names[index]}
                found.append(address | self._pin(level, index) | _children(inside))
            else:
                run.append(chain.node_names[index])
                of_run = inside
        return found + [{"cellAddress": address} | _children(of_run) for address in _ranges(run)]

    def _inside(self, node: int) -> list[_Plain] | None:
        """What has to be spelled out of a node; None: nothing."""
        level = self._chain.node_level
        if node not in self._chain.device_indices and (level, node) not in self._around:
            return None
        return self._below(level, node, node)

    def _below(self, level: int, index: int, node: int) -> list[_Plain]:
        """The children of a cell of a node."""
        fanout = self._chain.levels[level - 1].fanout
        return [self._cell(level - 1, child, node) for child in range(index * fanout, (index + 1) * fanout)]

    def _cell(self, level: int, index: int, node: int) -> _Plain:
        pin, is_renumbered = self._pin(level, index), node in self._chain.device_indices
        if level == 1:
            device = self._chain.device_index(node, index - node * self._chain.gpus_per_node)
            return ({"cellAddress": device} if is_renumbered else {}) | pin
        if is_renumbered or (level, index) in self._around:
            return pin | {"cellChildren": self._below(level, index, node)}
        return pin

    def _pin(self, level: int, index: int) -> _Plain:
        pinned = self._pins.get((level, index))
        return {} if pinned is None else {"pinnedCellId": pinned}


def _children(inside: object) -> _Plain:
    return {} if inside is None else {"cellChildren": inside}


def _ranges(names: Sequence[str]) -> Iterator[str]:
    """Addresses that expand to these names, in their order.

    >>> list(_ranges(["n8", "n9", "n10", "lab", "r1-a", "r2-a", "c08", "c09", "c10"]))
    ['n[8-10]', 'lab', 'r[1-2]-a', 'c[08-10]']
    """
    run: list[tuple[str, str, str]] = []  # the text before the number, the number, the text after it
    for name in names:
        match = _NUMBERED.fullmatch(name)
        parts = (name, "", "") if match is None else (match[1], match[2], match[3])
        if run and parts != _following(run[0], run[-1]):
            yield _range(run)
            run.clear()
        run.append(parts)
    if run:
        yield _range(run)


def _following(first: tuple[str, str, str], last: tuple[str, str, str]) -> tuple[str, str, str] | None:
    """What comes after ``last`` in a range that begins with ``first``."""
    before, number, after = last
    width = len(first[1]) if first[1].startswith("0") else 0
    return (before, str(int(number) + 1).zfill(width), after) if number else None


def _range(run: Sequence[tuple[str, str, str]]) -> str:
    before, number, after = run[0]
    return f"{before}{number}{after}" if len(run) == 1 else f"{before}[{number}-{run[-1][1]}]{after}"


def _virtual(spec: ClusterSpec, vc: VirtualClusterSpec) -> _Plain:
    access = vc.access or AccessSpec()
    cells = [{"cellType": spec.chain(one.chain).path_to(one.level), "cellNumber": one.number} for one in vc.cells]
    grace = vc.opportunistic_grace_seconds
    said: Mapping[str, object] = {
        "virtualCells": cells,
        "pinnedCells": [{"pinnedCellId": pin.pinned_cell_id} for pin in vc.pinned],
        "opportunisticWeight": vc.opportunistic_weight,
        "opportunisticGraceSeconds": None if grace == OPPORTUNISTIC_GRACE_SECONDS else grace,
        "guests": None if vc.guests == NO_GUESTS else vc.guests,
        "policy": vc.policy,
        "safety": None if vc.safety == WORK_CONSERVING else vc.safety,
        "members": list(access.members),
        "admins": list(access.admins),
        "maxPriority": access.max_priority,
        "maxJobs": access.max_jobs,
        "maxGpus": access.max_gpus,
        "maxGraceSeconds": access.max_grace_seconds,
        "fileGroup": access.file_group,
    }
    return {key: value for key, value in said.items() if value not in (None, "", [])}
