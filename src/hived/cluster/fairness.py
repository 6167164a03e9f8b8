"""Weighted max-min fairness: how GPUs that nobody reserved are divided among those who want them.

Everybody's share grows at a rate proportional to its weight until it has what it wants, and what it does not want goes
to the others: *water filling*. Nobody's share could be larger without making that of somebody with less (per weight)
smaller. (HiveD, OSDI'20, section 3.2, names the rule.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def shares(total: int, wanted: Sequence[int], weights: Sequence[Fraction]) -> list[Fraction]:
    """Each one's weighted max-min share of ``total``, at most what it wants. Exact. O(n log n).

    Those of weight 0 get what all others leave, in the order given.

    >>> [str(share) for share in shares(10, [8, 2, 8], [Fraction(1), Fraction(1), Fraction(3)])]
    ['2', '2', '6']
    """
    found = [Fraction(0)] * len(wanted)
    left = Fraction(total)
    open_weight = sum((weight for weight, want in zip(weights, wanted, strict=True) if want), Fraction(0))
    # who is satisfied at the lowest water level comes first
    order = sorted(
        (i for i, want in enumerate(wanted) if want and weights[i]), key=lambda i: (Fraction(wanted[i]) / weights[i], i)
    )
    for i in order:
        found[i] = min(Fraction(wanted[i]), left * weights[i] / open_weight)
        left -= found[i]
        open_weight -= weights[i]
    for i, want in enumerate(wanted):
        if want and not weights[i]:
            found[i] = min(Fraction(want), left)
            left -= found[i]
    return found
