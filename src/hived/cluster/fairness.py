"""Weighted max-min fairness: how GPUs that nobody reserved are divided among those who want them.

Everybody's share grows at a rate proportional to its weight until it has what it wants, and what it does not want goes
to the others: *water filling*. Nobody's share could be larger without making that of somebody with less (per weight)
smaller. (HiveD, OSDI'20, section 3.3, names the rule.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


def shares(total: int, wanted: Sequence[int], weights: Sequence[int]) -> list[Fraction]:
    """Each one's weighted max-min share of ``total``, at most what it wants. Exact. O(n log n).

    Those of weight 0 get what all others leave, in the order given.

    >>> [str(share) for share in shares(10, [8, 2, 8], [1, 1, 3])]
    ['2', '2', '6']
    """
    found = [Fraction(0)] * len(wanted)
    left = total
    weight = sum(weights[i] for i, want in enumerate(wanted) if want)
    # who is satisfied at the lowest water level comes first
    levels = sorted((Fraction(want, weights[i]), i) for i, want in enumerate(wanted) if want and weights[i])
    order = [i for _, i in levels]
    for place, i in enumerate(order):
        if wanted[i] * weight > left * weights[i]:  # the water ends below: all that follow share what is left
            for j in order[place:]:
                found[j] = Fraction(left * weights[j], weight)
            return found
        found[i] = Fraction(wanted[i])
        left -= wanted[i]
        weight -= weights[i]
    for i, want in enumerate(wanted):
        if want and not weights[i]:
            found[i] = Fraction(min(want, left))
            left -= min(want, left)
    return found


def whole(weights: Sequence[Fraction]) -> list[int]:
    """The same weights in proportion, as whole numbers."""
    scale = lcm(*(weight.denominator for weight in weights))
    return [int(weight * scale) for weight in weights]
