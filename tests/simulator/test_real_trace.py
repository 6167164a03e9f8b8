"""The real trace: as it is, and on 200 nodes with its clock compressed 1.5 times, where the papers' anomalies show."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from hived.simulator.traces import TABLE1, describe, read_trace, write_trace
from hived.spec import read_quotas, spec_from_quotas

from .helpers import SHARED, Experiment, simulated

MEASURED = Path(__file__).parents[2] / "docs" / "reference" / "measured.md"
TRACE = SHARED / "traces" / "philly-2017-oct-nov.csv.gz"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TRACE.exists(), reason="the shared folder with the Philly trace is not here"),
]


def test_it_is_what_its_readme_states(tmp_path: Path) -> None:
    """Its jobs, its tenants and its load; and it survives writing."""
    trace = read_trace(TRACE)
    assert (trace.name, len(trace.jobs), trace.synthetic, trace.dropped) == ("philly-2017-oct-nov", 89_392, False, ())
    assert {job.tenant for job in trace.jobs} == {row.tenant for row in TABLE1}
    found = describe(trace)
    assert found.days == pytest.approx(61, abs=0.01)
    assert found.total.offered_load_gpus / 2232 == pytest.approx(0.59, abs=0.005)
    write_trace(trace, tmp_path / "again.csv.gz")
    assert read_trace(tmp_path / "again.csv.gz").jobs == trace.jobs


def means(found: Experiment, scheme: str) -> dict[str, float]:
    """Mean queueing delay in seconds of each tenant, over the jobs that every scheme finished."""
    queues = defaultdict(list)
    for name, job in found[scheme].jobs.items():
        if all(other.jobs[name].finished for other in found.outcomes.values()):
            queues[job.tenant].append((job.queue or 0) / 1000)
    return {tenant: fmean(of_tenant) for tenant, of_tenant in queues.items()}


def test_tenants_wait_longer_by_quota_only(tmp_path: Path) -> None:
    spec = spec_from_quotas(200, read_quotas(SHARED / "traces" / "hived_table1.csv"))  # Table 1's, in whole nodes
    found = simulated(tmp_path, spec, TRACE, compression=1.5)
    private, quota, hived = (means(found, scheme) for scheme in ("private", "quota", "hived"))
    assert quota["prod-a"] > 2 * private["prod-a"]
    assert quota["res-f"] > private["res-f"]
    assert [tenant for tenant in private if hived[tenant] > private[tenant]] == []
    # the page says which tenants fare better under quota, and by how much
    assert sorted(tenant for tenant in quota if hived[tenant] > quota[tenant]) == ["prod-b", "prod-e"]
    for tenant in ("prod-b", "prod-e"):
        words = f"{tenant} {hived[tenant] / 60:,.0f} min for {quota[tenant] / 60:,.0f}"
        assert words in " ".join(MEASURED.read_text(encoding="utf-8").split())
