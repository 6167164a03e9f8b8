"""Which VC borrows next: the heads of the backlogs, by class of requests and the share of loans that each VC has."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator

from .queue import Entry, Key

#: share, place in the order of the VC, head
_Item = tuple[float, Key, Entry]


class LoanHeads:
    """The heads of all backlogs. Of a class the one whose VC has the smallest share goes first, then the order decides.

    O(log heads) per head or share that changes, with a shift in memory of those behind it; O(classes) to find the next.
    """

    __slots__ = ("_by_class", "_items", "_of_vc", "_share_of")

    def __init__(self, share_of: Callable[[str], float]) -> None:
        """``share_of``: of a VC, GPUs on loan over its weight; whoever changes it calls :meth:`share_changed`."""
        self._share_of = share_of
        self._by_class: dict[Hashable, list[_Item]] = {}
        self._items: dict[Entry, _Item] = {}
        #: a VC has several backlogs
        self._of_vc: dict[str, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        """A job has become the head of a backlog."""
        self._file(entry, self._share_of(entry.vc))
        self._of_vc.setdefault(entry.vc, []).append(entry)

    def remove(self, entry: Entry) -> None:
        """It is not any more."""
        self._take_out(entry)
        self._of_vc[entry.vc].remove(entry)

    def share_changed(self, vcs: Iterable[str]) -> None:
        """These VCs may have another share."""
        for vc in vcs:
            heads = self._of_vc.get(vc)
            if not heads:
                continue
            share = self._share_of(vc)
            for entry in heads:
                if self._items[entry][0] != share:
                    self._take_out(entry)
                    self._file(entry, share)

    def clear(self) -> None:
        """Forget all heads."""
        self._by_class.clear()
        self._items.clear()
        self._of_vc.clear()

    def _file(self, entry: Entry, share: float) -> None:
        item = self._items[entry] = share, entry.key, entry
        insort(self._by_class.setdefault(entry.loan_class, []), item)

    def _take_out(self, entry: Entry) -> None:
        items, item = self._by_class[entry.loan_class], self._items.pop(entry)
        del items[bisect_left(items, item)]
        if not items:
            del self._by_class[entry.loan_class]

    def classes(self) -> Iterable[tuple[Hashable, list[_Item]]]:
        """The heads of each class of requests, in the order in which they borrow."""
        return self._by_class.items()

    def __iter__(self) -> Iterator[Entry]:
        """All heads, of whatever class, in the order in which they borrow."""
        return (entry for _, _, entry in sorted(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)
