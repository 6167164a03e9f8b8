"""Table 3: one row fitted, the other predicted. Both are the paper's, so that nothing here is a result of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..experiment import Experiment, Outcome, Row, Scale, number, percent
from ..results import Result
from ..simulations import Workload
from ..trial import Trial

#: position of the configuration that qualifies; minutes without and with Gandiva, on 4 and on 16 GPUs
POSITIONS = (93, 187, 280, 365)
BASELINE = {4: (691.5, 1373.0, 2067.2, 2726.4), 16: (253.0, 492.7, 731.7, 970.0)}
GANDIVA = {4: (125.5, 213.8, 302.4, 387.1), 16: (74.4, 103.7, 135.4, 162.6)}


def fitted(minutes: Sequence[float], gpus: int) -> tuple[float, float]:
    """GPU minutes of a configuration, and minutes that are spent once: the least-squares line through a row."""
    slope, once = np.polyfit(POSITIONS, minutes, 1)
    return float(slope) * gpus, float(once)


def predicted(each: float, once: float, gpus: int) -> list[float]:
    """Minutes on ``gpus`` GPUs: configurations share all GPUs, the full run of the best one is exclusive."""
    return [each * position / gpus + once for position in POSITIONS]


def _nothing(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {}


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    rows = []
    ours_of: dict[str, list[float]] = {}
    for name, table in (("without Gandiva", BASELINE), ("with Gandiva", GANDIVA)):
        each, once = fitted(table[4], 4)
        rows.append(
            Row(f"{name}, 4 GPUs: GPU minutes of a configuration, and minutes once", "-", f"{each:.1f}, {once:.1f}")
        )
        ours_of[name] = predicted(each, once, 16)
        for position, paper, ours in zip(POSITIONS, table[16], ours_of[name], strict=True):
            rows.append(
                Row(
                    f"{name}, 16 GPUs, configuration {position}: minutes, and error of the prediction",
                    number(paper),
                    f"{number(ours)} ({percent(ours / paper - 1)})",
                )
            )
    gains = [a / b for a, b in zip(ours_of["without Gandiva"], ours_of["with Gandiva"], strict=True)]
    rows.append(Row("16 GPUs: times faster, by prediction", "3.40 to 5.96", f"{gains[0]:.2f} to {gains[-1]:.2f}"))
    return Outcome(
        "no simulation: a line through the paper's row of 4 GPUs predicts its row of 16; four times the GPUs take a "
        "quarter of a configuration's minutes, and the same minutes once",
        rows,
        [],
        "Nothing is judged: every number follows from the paper's own rows (Figure 14 has the table by "
        "simulation). It tests the simplest model of a multi-job, not Gandiva's mechanisms: on 16 GPUs a configuration "
        "costs more "
        "GPU time than on 4, which a line cannot know.",
    )


EXPERIMENT = Experiment(
    "table3",
    "Table 3: minutes until a multi-job finds its configuration",
    "5.5 to 7.0 times less on 4 GPUs, 3.4 to 6.0 times less on 16",
    _nothing,
    _evaluate,
)
