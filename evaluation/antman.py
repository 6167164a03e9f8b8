"""AntMan's evaluation (OSDI'20) by simulation.

What measures GPUs is left out: Figures 10 to 12, Tables 2 and 5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from hived.scheduling import Kind
from hived.simulator.models import Models, assign_models
from hived.simulator.record import Record
from hived.simulator.traces import TraceJob

from .against_private import add_private
from .clusters import CROWDED_NODES, FULL_NODES, GPUS_PER_NODE, cluster_of, servers
from .drawing import Panel, over_time
from .experiment import Evaluation, Results, Scale, Trials
from .measures import HOUR_MS, completion, gpu_time, makespan
from .simulations import LAWS, MINUTE_MS, UNCHANGED, Trial, Workload, drawn, perturbed, play, played, trace_label

ANTMAN = Evaluation("antman", table1=False)

# -- Figure 2 ----------------------------------------------------------------------------------------------------------

#: sizes of gangs: from so many GPUs up to less than the next
_SIZES = (2, 3, 5, 9, 17, 33)


def waiting(record: Record) -> dict[int, tuple[int, float]]:
    """By size of gang: how many there are, and GPU-hours that their GPUs wait for them.

    A gang is at the head of its tenant's line from the start of the last job before it: from then on no other
    guaranteed job gets what is free for it, which is the paper's reservation. A GPU waits from then, or from the end of
    its last job, until the gang starts. O(runs * GPUs).
    """
    ended: dict[tuple[str, int], int] = {}
    head: dict[str, int] = defaultdict(int)
    found: dict[int, tuple[int, float]] = dict.fromkeys(_SIZES, (0, 0.0))
    starts = sorted((run.start, run.job, run) for run in record.runs if run.kind is Kind.GUARANTEED)
    # runs of one tenant start in the order of its line
    for start, job, run in starts:
        one = record.jobs[job]
        since = max(head[one.tenant], one.submit_ms)
        gpus = [(pod.node, leaf) for pod in run.placement.pods for leaf in pod.leaf_cells]
        if one.gpus > 1:
            size = max(size for size in _SIZES if size <= one.gpus)
            idle = sum(start - min(start, max(since, ended.get(gpu, 0))) for gpu in gpus) / HOUR_MS
            found[size] = found[size][0] + 1, found[size][1] + idle
        ended.update(dict.fromkeys(gpus, run.end))
        head[one.tenant] = max(head[one.tenant], start)
    return found


def gangs(workload: Workload) -> dict[str, Any]:
    """Gangs and GPU-hours of waiting, by size."""
    record = play(cluster_of(CROWDED_NODES), played(workload, CROWDED_NODES).jobs, scheme="quota")
    return {"sizes": [[size, number, hours] for size, (number, hours) in waiting(record).items()]}


@ANTMAN.of("fig2", lambda workload, _: {"waiting": Trial(gangs, (workload,), 10.0)})
def figure_2(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """GPUs that are reserved for gangs and wait for the rest of them."""
    names = ["2", "3 to 4", "5 to 8", "9 to 16", "17 to 32", "33 and more"]
    sizes = [
        (name, number, hours / number if number else float("nan"), hours)
        for name, (_, number, hours) in zip(names, results["waiting"].plain["sizes"], strict=True)
    ]
    seen = [mean for _, _, mean, _ in sizes if mean == mean]
    return {
        "sizes": sizes,
        "longer": seen == sorted(seen) and len(seen) > 1,
        "most": bool(seen) and max(seen) in [mean for _, _, mean, _ in sizes[3:]],
    }


# -- Figure 13 ---------------------------------------------------------------------------------------------------------

#: tenants of the testbed: one has the quota of all GPUs, the other none
GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
ARMS = ("YARN-CS", "YARN-CS with preemption", "packing with profiles", "AntMan")
SERVERS, DAYS, LOADS = 8, 4.0, (0.8, 1.2, 1.6, 2.0)
#: the load of the runs with other models
_MIDDLE = 1.6
#: five groups of nine models, a fifth of the jobs each
MIX = "ResNet-50=6.667,VGG16=6.667,InceptionV3=6.666,GNMT=10,LSTM=10,DeepSpeech=10,ESPnet=10,DeepFM=20,GCN=20"
_UTILIZATIONS = (0.7, 1.3)
PERTURBED = (*(("utilization", factor) for factor in _UTILIZATIONS), *LAWS)
#: Gandiva's packing with profiles (5.2): jobs of one queue are packed on the GPUs of the least utilization that have
#: the memory, whatever their utilizations sum to. Every job is opportunistic: nobody has a turn, nothing is protected
PACKING = "antman:most_utilization=100:moves=false:limits=false"
#: the automatic mode (3.3): a job of the tenant with a quota is a guest where it is predicted to wait at all, and is
#: upgraded in place alone
AUTOMATIC = "antman:moves=false"
#: what the paper leaves open, by what is changed: an arm, and its policy then
VARIANTS = {
    "guaranteed jobs never start as guests": ("AntMan", f"{AUTOMATIC}:wait_s=1e9"),
    "they do if predicted to wait for 10 minutes": ("AntMan", f"{AUTOMATIC}:wait_s=600"),
    "they do if predicted to wait for an hour": ("AntMan", f"{AUTOMATIC}:wait_s=3600"),
    "they move to free GPUs at their turn": ("AntMan", "antman"),
    "packing only below a utilization of 80%": (ARMS[2], PACKING.replace("=100:", "=0.8:")),
}


def play_arm(arm: str, jobs: Sequence[TraceJob], number: int, models: Models, policy: str = "") -> Record:
    """Simulate one of :data:`ARMS`, with another policy if one is given.

    Tenants are those of the jobs, and with them who may be preempted or is a guest alone. YARN-CS without preemption
    and packing have one queue for all.
    """
    modes = {ARMS[0]: "guaranteed", ARMS[2]: "opportunistic"}
    own = {GUARANTEED: "either" if arm == "AntMan" else "guaranteed", OPPORTUNISTIC: "opportunistic"}
    seen = [
        job._replace(tenant=GUARANTEED, mode=modes[arm]) if arm in modes else job._replace(mode=own[job.tenant])
        for job in jobs
    ]
    policy = policy or {ARMS[2]: PACKING, "AntMan": AUTOMATIC}.get(arm, "yarn-cs")
    spec = servers(8, {GUARANTEED: number, OPPORTUNISTIC: 0}, guests="all")
    preempted = "restart" if arm == ARMS[1] else "resume"
    record = play(spec, seen, policy, "quota", opportunistic=arm != ARMS[0], models=models, preempted=preempted)
    record.jobs = jobs
    return record


def in_use(record: Record, models: Models, gpus: int, until: int) -> tuple[float, float]:
    """The mean share of the GPUs with a job up to ``until``, and their mean utilization."""
    used = 0.0
    for run in record.runs:
        start, end = min(run.start, until), min(run.end, until)
        used += run.gpus * run.rate * models.of(record.jobs[run.job].model).utilization * (end - start)
    return gpu_time(record, 0, until, lambda run: 1, 0) / (until * gpus), used / (until * gpus)


def two_tenants(
    workload: Workload, arm: str, load: float, days: float, quantity: str, factor: float, policy: str = ""
) -> dict[str, Any]:
    """Completion times of all jobs and of either tenant's, makespan, preempted jobs, GPUs in use.

    The jobs are of the trace, of either tenant by a coin, with models.
    """
    coin = Random(2)
    jobs = assign_models(
        [
            one._replace(tenant=coin.choice((GUARANTEED, OPPORTUNISTIC)))
            for one in drawn(workload, load * SERVERS * 8, days)
        ],
        MIX,
        1,
    )
    models = perturbed(quantity, factor)
    record = play_arm(arm, jobs, SERVERS, models, policy)
    guests = {run.job for run in record.runs if run.kind is Kind.GUEST and record.jobs[run.job].tenant == GUARANTEED}
    late = [times > 0 for one, times in zip(jobs, record.preemptions, strict=True) if one.tenant == OPPORTUNISTIC]
    gpus, used = in_use(record, models, SERVERS * 8, round(days * 24 * 60) * MINUTE_MS)
    return {
        "jobs": len(jobs),
        "completion": completion(record),
        GUARANTEED: completion(record, GUARANTEED),
        "makespan": makespan(record),
        "preempted": sum(late) / max(1, len(late)),
        "guests": len(guests) / max(1, len(jobs) - len(late)),
        "gpus": gpus,
        "used": used,
    }


def _two_tenants(workload: Workload, scale: Scale) -> Trials:
    """By load, what is changed, and arm; and the variants."""
    settings = [(load, UNCHANGED) for load in scale.of(LOADS, (_MIDDLE,))]
    settings += [(_MIDDLE, change) for change in scale.of(PERTURBED, ())]
    days = scale.of(DAYS, 1.0)
    trials: dict[Any, Trial] = {
        (load, change, arm): Trial(two_tenants, (workload, arm, load, days, *change), 5.0 * load)
        for load, change in settings
        for arm in ARMS
    }
    for name, (arm, policy) in scale.of(VARIANTS, {}).items():
        trials[_MIDDLE, name] = Trial(two_tenants, (workload, arm, _MIDDLE, days, *UNCHANGED, policy), 5.0 * _MIDDLE)
    return trials


@ANTMAN.of("fig13", _two_tenants)
def figure_13(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Two tenants on 64 GPUs, under four schedulers, by load."""
    of_arms: dict[tuple[float, tuple[str, float]], dict[str, Any]] = {}
    variants = []
    for key, result in results.items():
        if len(key) == 2:
            variants.append((key[1], VARIANTS[key[1]][0], result.plain))
        else:
            load, change, arm = key
            of_arms.setdefault((load, change), {})[arm] = result.plain
    loads = np.asarray([load for load, change in of_arms if change == UNCHANGED])
    by_load = [of for (_, change), of in of_arms.items() if change == UNCHANGED]
    ours, yarn, packing = (np.asarray([of[arm][GUARANTEED] for of in by_load]) for arm in ("AntMan", ARMS[1], ARMS[2]))
    panels = [
        Panel(label, {arm: (loads, np.asarray([of[arm][what] for of in by_load])) for arm in ARMS})
        for label, what in (("all jobs (minutes)", "completion"), ("guaranteed (minutes)", GUARANTEED))
    ]
    title = f"AntMan, Figure 13: completion times by load ({trace_label(workload)}, simulated)"
    figures = {"antman-fig13": partial(over_time, title, panels, "GPUs asked for over those there are")}
    return {
        "arms": ARMS,
        "days": scale.of(DAYS, 1.0),
        "jobs": of_arms[_MIDDLE, UNCHANGED]["AntMan"]["jobs"],
        "settings": [{"load": load, "change": change, "of": of} for (load, change), of in of_arms.items()],
        "middle": _MIDDLE,
        "variants": [(name, arm, of_arms[_MIDDLE, UNCHANGED][arm], of) for name, arm, of in variants],
        "shortest": all(of["AntMan"]["completion"] <= of[arm]["completion"] for of in by_load for arm in ARMS),
        "as_long": bool(np.all(ours <= 1.05 * yarn)),
        "delays": bool(np.all(packing > 1.05 * yarn)),
        "preempts": any(of["AntMan"]["preempted"] for of in by_load),
        "figures": figures if len(loads) > 1 else {},
    }


# -- Table 4 -----------------------------------------------------------------------------------------------------------

#: a job waits for its tenant's quota; or borrows meanwhile, and may be preempted; or is a guest meanwhile
_QUEUES = {
    "quotas alone": ("yarn-cs", "1,132, 1,978, 5,960"),
    "loans": ("yarn-cs", "-"),
    "AntMan": ("antman", "550, 124, 489"),
}


def queue(workload: Workload, arm: str, nodes: int, factor: float) -> dict[str, Any]:
    """Queueing times in seconds, completion time, and use of the GPUs while jobs are submitted."""
    jobs = assign_models(played(workload, nodes).jobs, MIX, 1)
    models = Models.load().scaled("utilization", factor)
    spec = cluster_of(nodes, guests="all")
    record = play(spec, jobs, _QUEUES[arm][0], "quota", opportunistic=arm != "quotas alone", models=models)
    waits = [(start - one.submit_ms) / 1000 for one, start in zip(jobs, record.first_start, strict=True) if start >= 0]
    gpus, used = in_use(record, models, nodes * GPUS_PER_NODE, jobs[-1].submit_ms)
    return {
        "jobs": len(jobs),
        "queueing": [float(np.mean(waits)), *(float(np.percentile(waits, at)) for at in (90, 95))],
        "completion": completion(record),
        "gpus": gpus,
        "used": used,
        "preempted": sum(record.preemptions),
    }


def _queues(workload: Workload, scale: Scale) -> Trials:
    """By nodes, what utilizations are multiplied with, and arm."""
    clusters = [(CROWDED_NODES, factor) for factor in (1.0, *_UTILIZATIONS)]
    return {
        (*cluster, arm): Trial(queue, (workload, arm, *cluster), 100.0)
        for cluster in scale.of([(FULL_NODES, 1.0), *clusters], clusters[:1])
        for arm in _QUEUES
    }


@ANTMAN.of("table4", _queues)
def table_4(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """The analogue of Table 4 (5.3): queueing on the trace, and GPUs and utilization gained."""
    settings = []
    for nodes, factor in dict.fromkeys(key[:2] for key in results):
        of = {arm: results[nodes, factor, arm].plain for arm in _QUEUES}
        base, ours = of["quotas alone"], of["AntMan"]
        settings.append({
            "nodes": nodes, "clock": workload.clock_on(nodes), "factor": factor, "of": of,
            "better": all(a <= b for a, b in zip(ours["queueing"], base["queueing"], strict=True)),
            "more": ours["gpus"] > base["gpus"] and ours["used"] > base["used"],
        })  # fmt: skip
    return {"settings": settings, "paper": {arm: words for arm, (_, words) in _QUEUES.items()}}


add_private(ANTMAN, "antman", MIX, guests="all")
