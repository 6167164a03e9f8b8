"""Figure 18 (Gandiva, 6.4): two multi-jobs in a busy cluster, and what migration adds to time-slicing."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.simulator.models import assign_models
from hived.simulator.multi_job import Explorer, MultiJob
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.work import Work
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..drawn import drawn
from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, trace_label
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .base import GPUS_PER_SERVER, MINUTE_MS, perturbed
from .table5 import DAYS, MIX, SERVERS

SEARCHES = ("search-1", "search-2")
_OTHERS = "others"
#: GPUs of a search
GPUS, CONFIGURATIONS, TOP = 8, 40, 2
#: 100,000 mini-batches of 0.6 s
RUN_MIN, START_MIN = 1000.0, 5607.0
LOAD = 0.8
SEEDS = 5
POLICIES = {
    "FIFO": "yarn-cs",
    "slicing": "gandiva:packs=false:migrates=false:most_height=1000",
    "slicing and migration": "gandiva:packs=false:most_height=1000",
}
#: sharing, what the speed between servers is multiplied with (2: a VGG-like model loses nothing), whether the best
#: configuration is the last in line
_SETTINGS = (("quota", 1.0, False), ("quota", 1.0, True), ("quota", 2.0, False), ("hived", 1.0, False))
_PAPER = {"FIFO": "13.6 and 12.9 times as long", "slicing": "7 times", "slicing and migration": "1,216 and 1,111"}


def cluster() -> ClusterSpec:
    """25 servers of 4 GPUs; either search has the quota of two."""
    shares = {_OTHERS: SERVERS - 2 * GPUS // GPUS_PER_SERVER, **dict.fromkeys(SEARCHES, GPUS // GPUS_PER_SERVER)}
    data = {
        "physicalCluster": {
            "cellTypes": {
                "SERVER": {"childCellType": "GPU", "childCellNumber": GPUS_PER_SERVER, "isNodeLevel": True},
                "CLUSTER": {"childCellType": "SERVER", "childCellNumber": SERVERS},
            },
            "physicalCells": [
                {"cellType": "CLUSTER", "cellChildren": [{"cellAddress": f"server-{n}"} for n in range(SERVERS)]}
            ],
        },
        "virtualClusters": {
            tenant: {"virtualCells": [{"cellType": "CLUSTER.SERVER", "cellNumber": number_of}]}
            for tenant, number_of in shares.items()
        },
    }
    return spec_from_dict(data)


def carry_out(
    workload: Workload, policy: str, sharing: str, days: float, seed: int, across: float, last: bool
) -> dict[str, Any]:
    """Minutes from the start of the searches to the end of each; 0: not ended."""
    others = [
        TraceJob(f"job-{at}", _OTHERS, round(t * MINUTE_MS), round(span * MINUTE_MS), _power(g), "pass", soft=True)
        for at, (t, g, span) in enumerate(drawn(workload, LOAD * (SERVERS * GPUS_PER_SERVER - 2 * GPUS), days, seed))
    ]
    jobs = assign_models(others, MIX, seed)
    start = START_MIN / DAYS * days
    searches = []
    for at, name in enumerate(SEARCHES):
        random = Random(100 * seed + at)
        accuracies = [random.uniform(0.1, 0.9) for _ in range(CONFIGURATIONS)]
        if last:
            accuracies.append(accuracies.pop(accuracies.index(max(accuracies))))
        searches.append(
            MultiJob(
                name,
                name,
                2,
                RUN_MIN * 60,
                tuple(accuracies),
                max(accuracies),
                start * 60,
                first=CONFIGURATIONS,
                top=TOP,
                model="VGG-like",
                seed=seed,
                soft=True,
            )
        )
    spec = cluster()
    policies = policies_of(spec, policy)
    explorer = Explorer(searches, len(jobs), policy != POLICIES["FIFO"])
    work = Work([*jobs, *explorer.jobs], spec, perturbed("across_nodes", across))
    on = Cluster(spec, sharing=Sharing(sharing), rank=policies.rank, ranks=policies.ranks)
    simulate(on, policies, jobs, opportunistic=False, work=work, driver=explorer)
    return {name: (explorer.ended.get(name, 0) - start * MINUTE_MS) / MINUTE_MS for name in SEARCHES}


def _power(gpus: int) -> int:
    return 1 << (gpus - 1).bit_length()


def _arms(scale: Scale) -> list[tuple[str, str, float, bool]]:
    return [(name, *setting) for setting in (_SETTINGS if scale is not QUICK else _SETTINGS[:1]) for name in POLICIES]


def _seeds(scale: Scale) -> range:
    return range(1, 1 + (SEEDS if scale is not QUICK else 1))


def _label(name: str, sharing: str, across: float, last: bool, seed: int) -> str:
    return f"{name} {sharing} {across:g} {last} {seed}"


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    days = DAYS if scale is not QUICK else 1.0
    return {
        _label(name, sharing, across, last, seed): Trial(
            carry_out, (workload, POLICIES[name], sharing, days, seed, across, last), 20.0
        )
        for name, sharing, across, last in _arms(scale)
        for seed in _seeds(scale)
    }


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    rows = []
    medians: dict[tuple[str, str, float, bool], float] = {}
    for arm in _arms(scale):
        name, sharing, across, last = arm
        found = [results[_label(*arm, seed)].plain[search] for seed in _seeds(scale) for search in SEARCHES]
        medians[arm] = float(np.median(found))
        where = {"quota": "quota", "hived": "HiveD's virtual clusters"}[sharing]
        where += ", no loss between servers" * (across != 1) + ", the best comes last" * last
        gain = medians["FIFO", sharing, across, last] / medians[arm]
        rows.append(
            Row(
                f"{where}; {name}: minutes, median (least to most); gain",
                _PAPER[name],
                f"{number(medians[arm])} ({min(found):,.0f} to {max(found):,.0f}); {gain:.2f} times",
            )
        )
    base, sliced, both = (medians[name, *_SETTINGS[0]] for name in POLICIES)
    return Outcome(
        f"25 servers of 4 GPUs at load {LOAD:g} of other jobs ({trace_label(workload)}, as in Table 5); from minute "
        f"{START_MIN:,.0f} on two searches with the quota of 8 GPUs each, {CONFIGURATIONS} configurations of 2 "
        f"GPUs and {RUN_MIN:,.0f} minutes alone, final accuracies uniform; both look for their best; M = {TOP}; "
        f"{SEEDS if scale is not QUICK else 1} seeds",
        rows,
        [
            Claim(
                "time-slicing finds the best configuration sooner than FIFO",
                Shape.HOLDS if sliced < base else Shape.FAILS,
            ),
            Claim("migration makes it sooner still", Shape.HOLDS if both < sliced else Shape.FAILS),
        ],
        "The paper does not say when the best configuration comes, nor the time of a mini-batch: 0.6 s is assumed, "
        "with which a training takes about as long as its searches. Under FIFO a search ends with its best one, "
        "wherever it is in line. In virtual clusters a search has servers of its own: its GPUs are together from the "
        "start, and migration has little to mend.",
    )


EXPERIMENT = Experiment(
    "fig18",
    "Figure 18: two searches in a busy cluster",
    "13.6 and 12.9 times sooner than without Gandiva, 7 times by time-slicing alone; the rest is locality by migration",
    _trials,
    _evaluate,
)
