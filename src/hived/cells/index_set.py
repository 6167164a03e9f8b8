"""An ordered set of small integers that finds its smallest member at once.

Free lists have to answer "the cell with the fewest GPUs in opportunistic use, and among equals the lowest number"
on every request. A sorted list would pay for the order on every change, a heap would keep stale entries. Here the
members are bits of a few machine-long integers under one summary integer, a tree of two levels:

    summary     ...0101            bit w is set when word w holds a member
    words       [0b0010, 0, 0b1000, ...]

Every operation touches one word and the summary, so it costs O(sqrt(universe) / 64) machine words: a few dozen at a
million cells, which Python's integers do in a fraction of a microsecond. (Words stop growing at 4,096 bits, so above 16
million keys the summary alone grows, in proportion.)
"""

from __future__ import annotations

from collections.abc import Iterator

#: 1 << i is computed once for every bit of the widest word in use.
_BITS = [1 << i for i in range(4096)]


class IndexSet:
    """A set of integers in ``[0, universe)``, in ascending order.

    >>> s = IndexSet(1000)
    >>> s.add(700); s.add(30)
    >>> s.first(), s.first_from(31), s.first_from(701)
    (30, 700, -1)
    """

    __slots__ = ("_mask", "_shift", "_words", "summary", "universe")

    def __init__(self, universe: int) -> None:
        #: members are below this
        self.universe = universe
        # the word length is the power of two next to the square root, so that words and summary are equally long
        self._shift = min(12, max(5, (max(1, universe - 1).bit_length() + 1) // 2))
        self._mask = (1 << self._shift) - 1
        self._words = [0] * ((universe >> self._shift) + 1)
        #: bit ``w`` is set exactly when word ``w`` is not zero; the set is empty exactly when this is 0
        self.summary = 0

    def add(self, index: int) -> None:
        """Put ``index`` in; it may be there already."""
        word = index >> self._shift
        words = self._words
        if not words[word]:
            self.summary |= 1 << word
        words[word] |= _BITS[index & self._mask]

    def remove(self, index: int) -> None:
        """Take ``index`` out; ``KeyError`` when it is not there (a bug of the caller)."""
        word = index >> self._shift
        words = self._words
        old = words[word]
        new = old & ~_BITS[index & self._mask]
        if new == old:
            raise KeyError(index)
        words[word] = new
        if not new:
            self.summary ^= 1 << word

    def move(self, index: int, target: IndexSet) -> None:
        """Take ``index`` out, and put it into another set of the same universe."""
        word, bit = index >> self._shift, _BITS[index & self._mask]
        words = self._words
        left = words[word] ^ bit
        if left & bit:
            raise KeyError(index)
        words[word] = left
        if not left:
            self.summary ^= 1 << word
        words = target._words
        if not words[word]:
            target.summary |= 1 << word
        words[word] |= bit

    def first(self) -> int:
        """The smallest member, -1 when empty."""
        summary = self.summary
        if not summary:
            return -1
        word = (summary & -summary).bit_length() - 1
        bits = self._words[word]
        return (word << self._shift) + (bits & -bits).bit_length() - 1

    def last(self) -> int:
        """The largest member, -1 when empty."""
        if not self.summary:
            return -1
        word = self.summary.bit_length() - 1
        return (word << self._shift) + self._words[word].bit_length() - 1

    def first_from(self, start: int) -> int:
        """The smallest member that is at least ``start``, -1 when there is none."""
        if start >= self.universe:
            return -1
        word = start >> self._shift
        bits = self._words[word] >> (start & self._mask)
        if bits:
            return start + (bits & -bits).bit_length() - 1
        summary = self.summary >> (word + 1)
        if not summary:
            return -1
        word += (summary & -summary).bit_length()
        bits = self._words[word]
        return (word << self._shift) + (bits & -bits).bit_length() - 1

    def __contains__(self, index: int) -> bool:
        return bool(self._words[index >> self._shift] & _BITS[index & self._mask])

    def __bool__(self) -> bool:
        return bool(self.summary)

    def __len__(self) -> int:
        return sum(word.bit_count() for word in self._words)

    def __iter__(self) -> Iterator[int]:
        index = self.first()
        while index >= 0:
            yield index
            index = self.first_from(index + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a mutable set, and says so
