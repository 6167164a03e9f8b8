"""Weighted max-min fairness: the division of GPUs for loans among tenants.

Every tenant's share grows at a rate proportional to its weight until its demand is met, and the rest goes to the other
tenants: *water filling*. No share could be larger without reducing that of a tenant with less (per weight). (HiveD,
OSDI'20, section 3.3, names the rule.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


def shares(total: int, wanted: Sequence[int], weights: Sequence[int]) -> list[Fraction]:
    """The weighted max-min share of each tenant in ``total``, at most its demand. Exact. O(n log n).

    Tenants of weight 0 share the remainder, in the order given.

    >>> [str(share) for share in shares(10, [8, 2, 8], [1, 1, 3])]
    ['2', '2', '6']
    """
    found = [Fraction(0)] * len(wanted)
    left = total
    weight = sum(weights[i] for i, want in enumerate(wanted) if want)
    # ordered by the water level at which the demand is met
    levels = sorted((Fraction(want, weights[i]), i) for i, want in enumerate(wanted) if want and weights[i])
    order = [i for _, i in levels]
    for place, i in enumerate(order):
        if wanted[i] * weight > left * weights[i]:  # the water ends below: all tenants from here on share what is left
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
    """Scale weights to whole numbers, in the same proportion."""
    scale = lcm(*(weight.denominator for weight in weights))
    return [int(weight * scale) for weight in weights]
