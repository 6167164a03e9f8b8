"""A run that has ended: four tenants on sixteen nodes over ten days, with more work at times than there is room for."""

from __future__ import annotations

import random
from pathlib import Path

from hived.server.results import ResultsSource
from tests.server.results.helpers import played
from tests.simulator.helpers import Row, nodes_of_8

NODES = {"prod-a": 6, "res-b": 4, "speech": 3, "vision": 3}
SPAN = 10 * 86400.0


def finished_run(folder: Path) -> ResultsSource:
    """The same jobs in private clusters, under quota, and under hived; the last one comes as the run ends."""
    rng = random.Random(11)
    rows: list[Row] = []
    for number in range(900):
        tenant = rng.choices(list(NODES), weights=[5, 4, 3, 2])[0]
        gpus = rng.choices([1, 2, 4, 8, 16], weights=[4, 3, 3, 4, 1])[0]
        submitted, lasts = round(rng.uniform(0, SPAN * 0.9)), round(rng.lognormvariate(9.5, 1.1))
        rows.append((f"job-{number}", tenant, submitted, lasts, gpus))
    spec = nodes_of_8(sum(NODES.values()), NODES)
    return played(folder, *rows, ("last", "vision", SPAN, 60, 1), spec=spec, until_s=SPAN)
