"""An ordered set of small integers with a fast minimum.

Free lists have to find the cell with the fewest GPUs in opportunistic use, and among equals the lowest number, on every
request. A sorted list would pay for the order on every change, a heap would keep stale entries. Here the members are
bits of a list of integers under one summary integer, a tree of two levels:

    summary     ...0101            bit w is set when word w holds a member
    words       [0b0010, 0, 0b1000, ...]

Every operation reads one word and the summary, so it costs O(sqrt(universe) / 64) machine words: a few dozen at a
million cells, a fraction of a microsecond with Python's integers. (Words stop growing at 4,096 bits, so above 16
million keys the summary alone grows, in proportion.)
"""

from __future__ import annotations

from collections.abc import Iterator

#: ``1 << i``, computed once for every bit of the widest word
BITS = [1 << i for i in range(4096)]


class IndexSet:
    """A set of integers in ``[0, universe)``, in ascending order.

    >>> s = IndexSet(1000)
    >>> s.add(700); s.add(30)
    >>> s.first(), s.first_from(31), s.first_from(701)
    (30, 700, -1)
    """

    __slots__ = ("mask", "shift", "summary", "universe", "words")

    def __init__(self, universe: int) -> None:
        #: members are below this
        self.universe = universe
        #: a word has ``2 ** shift`` bits: next to the square root, so that words and summary are equally long
        self.shift = min(12, max(5, (max(1, universe - 1).bit_length() + 1) // 2))
        #: the place of an index in its word
        self.mask = (1 << self.shift) - 1
        #: the members
        self.words = [0] * ((universe >> self.shift) + 1)
        #: bit ``w`` is set exactly when word ``w`` is not zero; the set is empty exactly when this is 0
        self.summary = 0

    def add(self, index: int) -> None:
        """Add ``index``; it may be a member already."""
        word = index >> self.shift
        words = self.words
        if not words[word]:
            self.summary |= 1 << word
        words[word] |= BITS[index & self.mask]

    def remove(self, index: int) -> None:
        """Remove ``index``; ``KeyError`` when it is no member (a bug of the caller)."""
        word = index >> self.shift
        words = self.words
        old = words[word]
        new = old & ~BITS[index & self.mask]
        if new == old:
            raise KeyError(index)
        words[word] = new
        if not new:
            self.summary ^= 1 << word

    def first(self) -> int:
        """The smallest member, -1 when empty."""
        summary = self.summary
        if not summary:
            return -1
        word = (summary & -summary).bit_length() - 1
        bits = self.words[word]
        return (word << self.shift) + (bits & -bits).bit_length() - 1

    def last(self) -> int:
        """The largest member, -1 when empty."""
        if not self.summary:
            return -1
        word = self.summary.bit_length() - 1
        return (word << self.shift) + self.words[word].bit_length() - 1

    def first_from(self, start: int) -> int:
        """The smallest member that is at least ``start``, -1 when there is none."""
        if start >= self.universe:
            return -1
        word = start >> self.shift
        bits = self.words[word] >> (start & self.mask)
        if bits:
            return start + (bits & -bits).bit_length() - 1
        summary = self.summary >> (word + 1)
        if not summary:
            return -1
        word += (summary & -summary).bit_length()
        bits = self.words[word]
        return (word << self.shift) + (bits & -bits).bit_length() - 1

    def __contains__(self, index: int) -> bool:
        return bool(self.words[index >> self.shift] & BITS[index & self.mask])

    def __bool__(self) -> bool:
        return bool(self.summary)

    def __len__(self) -> int:
        return sum(word.bit_count() for word in self.words)

    def __iter__(self) -> Iterator[int]:
        index = self.first()
        while index >= 0:
            yield index
            index = self.first_from(index + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable
