"""Section 5.3: the time of a request at 65,536 GPUs."""

from __future__ import annotations

import random
import time

from hived import Bind, Cluster, Member, Preempt, Request
from hived.spec import ClusterSpec

from .clusters import cluster_with

RACKS, NODES_PER_RACK, TENANTS = 8, 1024, 8
_SEED = 1


def cluster() -> ClusterSpec:
    """8 racks of 1,024 nodes of 8 GPUs in 5 levels, shared by 8 tenants: 7/8 of the nodes, of one half the sockets."""
    nodes = RACKS * NODES_PER_RACK * 7 // 8 // TENANTS
    own = {"RACK.NODE": nodes // 2, "RACK.NODE.SOCKET": 2 * (nodes - nodes // 2)}
    types = {
        "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
        "SOCKET": {"childCellType": "PAIR", "childCellNumber": 2},
        "NODE": {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True},
        "RACK": {"childCellType": "NODE", "childCellNumber": NODES_PER_RACK},
    }
    cells = [{"cellType": "RACK", "cellAddress": f"rack-[1-{RACKS}]"}]
    tenants = {f"tenant-{tenant}": own for tenant in range(TENANTS)}
    return cluster_with({"cellTypes": types, "physicalCells": cells}, tenants)


def measure(requests: int) -> dict[str, float]:
    """Mean CPU time of a request, from ``schedule`` to ``commit``, with its reasons and its placement.

    Requests of 1, 2, 4 or 8 GPUs, 30% of them opportunistic, of random tenants; while more than 80% of the GPUs are in
    use groups end at random. The mean and the 99th percentile depend on the machine.
    """
    rng = random.Random(_SEED)
    made = Cluster(cluster())
    held: dict[str, int] = {}
    names: list[str] = []
    used, started = 0, 0
    times: list[float] = []
    most = RACKS * NODES_PER_RACK * 8 * 8 // 10
    for number in range(requests):
        while used > most:
            at = rng.randrange(len(names))
            names[at], names[-1] = names[-1], names[at]
            ended = names.pop()
            if ended in held:
                used -= held.pop(ended)
                made.release(ended)
        gpus = rng.choice((1, 2, 4, 8))
        priority = -1 if rng.random() < 0.3 else 0
        request = Request(f"group-{number}", f"tenant-{rng.randrange(TENANTS)}", priority, (Member(1, gpus),))
        since = time.thread_time()
        decision = made.schedule(request)
        made.commit(decision)
        times.append(1000 * (time.thread_time() - since))
        if isinstance(decision, Preempt):
            for victim in decision.victims:
                used -= held.pop(victim)
                made.release(victim)
            decision = made.schedule(request)
            made.commit(decision)
        if isinstance(decision, Bind):
            started += 1
            held[request.group] = gpus
            names.append(request.group)
            used += gpus
        else:
            made.cancel(request.group)
    times.sort()
    return {
        "requests": requests,
        "started": started,
        "mean_ms": sum(times) / len(times),
        "p99_ms": times[int(0.99 * (len(times) - 1))],
    }
