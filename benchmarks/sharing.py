"""Simulations in which jobs share GPUs, in jobs a second on one core, beside YARN-CS on the same jobs and cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from hived.cluster import Cluster
from hived.policies import AntMan, Gandiva, YarnCS
from hived.scheduling import Policies, Policy
from hived.simulator import simulate
from hived.simulator.models import Models, assign_models
from hived.simulator.traces import TABLE1, TraceJob, generate_table1, read_trace
from hived.simulator.work import Work
from hived.spec import ClusterSpec, parse_spec, spec_from_quotas

from .measuring import Figure, seconds
from .simulation import TRACE_VARIABLE

_NODES = 279
_AIM = "> 5,000"


def measure() -> list[Figure]:
    """Jobs a second under Gandiva and AntMan, with loans and guests and without, and how much slower than YARN-CS."""
    named = os.environ.get(TRACE_VARIABLE)
    trace = read_trace(Path(named)) if named else generate_table1(jobs=80_000)
    jobs = assign_models(trace.jobs, "cv=10,nlp=60,speech=30", 1)
    spec = parse_spec(spec_from_quotas(_NODES, [(row.tenant, row.quota_percent) for row in TABLE1]), "Table 1")
    accepting = replace(spec, virtual_clusters=tuple(replace(vc, guests="all") for vc in spec.virtual_clusters))
    figures = []
    for lending in (True, False):
        what = f"{trace.name} on {_NODES} nodes" + ("" if lending else ", nothing lent")
        base = seconds(partial(_simulate, spec, jobs, YarnCS(), lending), 2)
        policies: list[tuple[Policy, ClusterSpec]] = [(Gandiva(), spec)]
        if lending:
            policies.append((AntMan(), accepting))
        for policy, cluster in policies:
            took = seconds(partial(_simulate, cluster, jobs, policy, lending), 2)
            figures.append(Figure(f"simulate {policy.name}: {what}", len(jobs) / took, "jobs/s", _AIM, "higher"))
            figures.append(Figure(f"{policy.name} over YARN-CS: {what}", took / base, "times the time"))
    return figures


def _simulate(spec: ClusterSpec, jobs: tuple[TraceJob, ...], policy: Policy, lending: bool) -> None:
    policies = Policies(policy)
    simulate(Cluster(spec, rank=policies.rank), policies, jobs, lending, work=Work(jobs, spec, Models.load()))
