"""Figure 11 of the draft: GPU time that tenants contribute and benefit from, by exchange and by low-priority jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..drawing import bars
from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, number, shape_of, trace_label
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .trading import setting_of, trial

#: a tenant is balanced where neither side of its exchange is above so many times the other
FACTOR = 2
#: of the GPU time that all tenants exchange: who has less is not shown
LEAST = 0.01
#: of each tenant, as in a result
_SIDES = {
    "contributed": "contributed, exchange",
    "benefited": "benefited, exchange",
    "lent": "contributed, low-priority",
    "borrowed": "benefited, low-priority",
}


def balance(of: Mapping[str, Any]) -> float:
    """Of a tenant: -1 if it contributes alone by exchange, 0 if it benefits from as much, 1 if it benefits alone."""
    return float((of["benefited"] - of["contributed"]) / (of["benefited"] + of["contributed"]))


def chosen(tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Three tenants and what each shows: the one nearest to balance, and the farthest from it on either side.

    Of those with more than :data:`LEAST` of the GPU time of all: fewer where fewer exchange. Ties go to more GPU time.
    """
    exchanged = {name: of["contributed"] + of["benefited"] for name, of in tenants.items()}
    least = LEAST * sum(exchanged.values())
    names = sorted((name for name in tenants if exchanged[name] > least), key=lambda name: -exchanged[name])
    found = {}
    rules = (
        ("benefits most", lambda name: -balance(tenants[name])),
        ("contributes most", lambda name: balance(tenants[name])),
        ("most balanced", lambda name: abs(balance(tenants[name]))),
    )
    for what, key in rules:
        if names:
            found[min(names, key=key)] = what
            names.remove(min(names, key=key))
    return dict(reversed(found.items()))


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {"balanced": trial(workload, False, "balanced")}


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """GPU hours of all tenants, and the figure of three."""
    plain = results["balanced"].plain
    tenants: Mapping[str, Mapping[str, Any]] = plain["tenants"]
    three = chosen(tenants)
    order = [*three, *(tenant for tenant in tenants if tenant not in three)]
    rows = [
        Row(
            f"{tenant}{f' ({three[tenant]})' if tenant in three else ''}: GPU hours contributed and benefited by "
            "exchange; by low-priority jobs",
            "-",
            "; ".join(
                f"{number(tenants[tenant][given])}, {number(tenants[tenant][taken])}"
                for given, taken in (("contributed", "benefited"), ("lent", "borrowed"))
            ),
        )
        for tenant in order
    ]
    of_three = [balance(tenants[tenant]) for tenant in three]
    least = (FACTOR - 1) / (FACTOR + 1)
    full = len(three) == 3
    low, high = (min(of_three), max(of_three)) if full else (0.0, 0.0)
    return Outcome(
        setting_of(workload, False, plain) + "; arm 'balanced'",
        rows,
        [
            Claim(
                f"a tenant contributes and benefits by exchange alike (within a factor of {FACTOR})",
                shape_of(full, min(map(abs, of_three), default=1.0) <= least),
            ),
            Claim(
                f"one contributes more than {FACTOR} times what it benefits from, and another the reverse",
                shape_of(full, low < -least and high > least),
            ),
        ],
        "The paper's balanced tenant is res-e; ours are chosen by (benefited - contributed) / (benefited + "
        "contributed) of their exchange: the nearest to 0, the lowest and the highest, of the tenants with more than "
        f"{LEAST:.0%} of the GPU time of all. By exchange: a node counts as 8 GPUs while a guaranteed job is on it. By "
        "low-priority jobs: GPUs of loans at every hour. A loan "
        "does not say whose cells it is on, since idle cells are bound to nobody: it is shared among all tenants in "
        "proportion to the GPUs that each has reserved at that hour, with its trades, and does not use with guaranteed "
        "jobs. What falls to the loan's own tenant is not counted." + (" Quick: a window." if scale is QUICK else ""),
        {
            "draft-fig11": partial(
                bars,
                f"The draft's Figure 11: GPU time given and taken ({trace_label(workload)})",
                [f"{tenant}\n{what}" for tenant, what in three.items()],
                {label: [tenants[tenant][side] for tenant in three] for side, label in _SIDES.items()},
                "GPU hours",
                None,
                False,
            )
        }
        if three
        else {},
    )


EXPERIMENT = Experiment(
    "draft-fig11",
    "Figure 11 of the draft: contributed and benefited GPU time",
    "res-e contributes and benefits by exchange alike; of two others, one mostly contributes, one mostly benefits",
    _trials,
    evaluate,
)
