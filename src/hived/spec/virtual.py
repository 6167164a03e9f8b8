"""Compilation of virtual clusters: qualified cell types and pinned cell ids to levels of chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .compiled import (
    NO_GUESTS,
    OPPORTUNISTIC_GRACE_SECONDS,
    WORK_CONSERVING,
    AccessSpec,
    GuestsOf,
    PinnedCellSpec,
    SafetyOf,
    VirtualCellsSpec,
    VirtualClusterSpec,
)
from .document import Document, KeyPath, did_you_mean, shown
from .hierarchy import Hierarchy
from .model import VirtualCluster
from .physical import Physical


def compile_virtual(
    clusters: Mapping[str, VirtualCluster | None], physical: Physical, document: Document
) -> tuple[VirtualClusterSpec, ...]:
    """The virtual clusters in the order of the spec. Raises :class:`SpecError`. O(their entries).

    Entries of one VC for the same kind of cell are added up; entries of 0 cells are dropped.
    """
    names = _Names(physical.hierarchies, document)
    claimed: dict[str, tuple[str, KeyPath]] = {}
    compiled = []
    for vc, reserved in clusters.items():
        cells: dict[tuple[str, int], int] = {}
        pinned: list[PinnedCellSpec] = []
        weight, grace, policy, access = None, OPPORTUNISTIC_GRACE_SECONDS, "", None
        guests: GuestsOf = NO_GUESTS
        safety: SafetyOf = WORK_CONSERVING
        if reserved is not None:
            weight, guests, policy = reserved.opportunistic_weight, reserved.guests or NO_GUESTS, reserved.policy or ""
            safety, access = reserved.safety or safety, _access(reserved)
            if reserved.opportunistic_grace_seconds is not None:
                grace = reserved.opportunistic_grace_seconds
            for number, entry in enumerate(reserved.virtual_cells or ()):
                path: KeyPath = ("virtualClusters", vc, "virtualCells", number, "cellType")
                kind = names.find(entry.cell_type, path)
                cells[kind] = cells.get(kind, 0) + entry.cell_number
            for number, pin in enumerate(reserved.pinned_cells or ()):
                path = ("virtualClusters", vc, "pinnedCells", number, "pinnedCellId")
                pinned.append(_claim(pin.pinned_cell_id, vc, path, claimed, physical, document))
        kept = tuple(VirtualCellsSpec(chain, level, number) for (chain, level), number in cells.items() if number)
        compiled.append(VirtualClusterSpec(vc, kept, tuple(pinned), weight, grace, guests, policy, safety, access))
    return tuple(compiled)


def _access(of: VirtualCluster) -> AccessSpec | None:
    """Who may use it, and how much; None where nothing is said of that."""
    who = tuple(of.members or ()), tuple(of.admins or ())
    found = AccessSpec(*who, of.max_priority, of.max_jobs, of.max_gpus, of.max_grace_seconds, of.file_group or "")
    return None if found == AccessSpec() else found


def _claim(
    name: str,
    vc: str,
    path: KeyPath,
    claimed: dict[str, tuple[str, KeyPath]],
    physical: Physical,
    document: Document,
) -> PinnedCellSpec:
    pin = physical.pins.get(name)
    if pin is None:
        hint = did_you_mean(name, physical.pins)
        raise document.error(
            path, f"no physical cell has pinnedCellId `{shown(name)}`{hint}; add it to a cell of physicalCells"
        )
    if name in claimed:
        other, first = claimed[name]
        raise document.error(
            path,
            f"pinned cell `{shown(name)}` is held by `{shown(other)}` already ({document.place(first)}); "
            "one VC holds it, once",
        )
    claimed[name] = (vc, path)
    return pin.cell


class _Names:
    """The qualified cell types that VCs may use."""

    __slots__ = ("_document", "_hierarchies", "_kinds")

    def __init__(self, hierarchies: Sequence[Hierarchy], document: Document) -> None:
        self._hierarchies = {hierarchy.name: hierarchy for hierarchy in hierarchies}
        self._document = document
        #: qualified name to (chain, level)
        self._kinds: dict[str, tuple[str, int]] = {}
        for hierarchy in hierarchies:
            for level in range(1, hierarchy.top_level + 1):
                name = hierarchy.path_to(level)
                if name in self._kinds:  # possible only with dots in type names
                    raise document.error(
                        ("physicalCluster", "cellTypes", hierarchy.name),
                        f"`{shown(name)}` would mean cells of two chains; write type names without dots",
                    )
                self._kinds[name] = (hierarchy.name, level)

    def find(self, qualified: str, path: KeyPath) -> tuple[str, int]:
        """Chain and level of the cell type ``qualified``, which the spec has at ``path``.

        Types between the top and the cell itself may be omitted, as in deployed specs.
        """
        kind = self._kinds.get(qualified) or self._abbreviated(qualified.split("."))
        if kind is None:
            raise self._document.error(path, self._why_not(qualified))
        return kind

    def _abbreviated(self, words: list[str]) -> tuple[str, int] | None:
        """Chain and level of a path from the top downward that omits some types; None for any other."""
        hierarchy = self._hierarchies.get(words[0])
        if hierarchy is None:
            return None
        names = [level.cell_type for level in reversed(hierarchy.levels)]
        left = iter(names)
        if not all(word in left for word in words):  # a subsequence: the iterator is consumed in order
            return None
        return hierarchy.name, hierarchy.top_level - names.index(words[-1])

    def _why_not(self, qualified: str) -> str:
        words = qualified.split(".")
        hierarchy = self._hierarchies.get(words[0])
        if hierarchy is None:
            return self._unknown_chain(words[0])
        expected = [level.cell_type for level in reversed(hierarchy.levels)]
        whole = hierarchy.path_to(1)
        for n, word in enumerate(words):
            if n == len(expected):
                return f"`{shown(word)}` in `{shown(qualified)}`: nothing is inside the device `{expected[-1]}`"
            if word != expected[n]:
                if word in expected[n:]:
                    way_out = f"; write `{hierarchy.path_to(hierarchy.top_level - expected.index(word))}`"
                else:
                    way_out = did_you_mean(word, expected[n:])
                return (
                    f"`{shown(word)}` in `{shown(qualified)}`: inside `{shown(words[n - 1])}` comes "
                    f"`{expected[n]}`{way_out}; the chain is {whole}"
                )
        return f"cell type `{shown(qualified)}` cannot be read; the chain is {whole}"  # names with dots

    def _unknown_chain(self, word: str) -> str:
        chains = ", ".join(hierarchy.path_to(1) for hierarchy in self._hierarchies.values())
        inside = [
            hierarchy.path_to(level)
            for hierarchy in self._hierarchies.values()
            for level in range(1, hierarchy.top_level)
            if hierarchy.levels[level - 1].cell_type == word
        ]
        if inside:
            what = "a top cell type: name it from the top, " + " or ".join(f"`{name}`" for name in inside)
            return f"`{shown(word)}` is not {what}"
        hint = did_you_mean(word, self._hierarchies)
        return f"no physical cell has top cell type `{shown(word)}`{hint}; the chains are {chains}"
