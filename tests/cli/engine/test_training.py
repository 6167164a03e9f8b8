"""The verbs for training jobs, of jobs of the engine: as for those that ``hived train run`` has started."""

from __future__ import annotations

import json

from ...server.fakes import FakeService
from ..helpers import Hived, refused


def test_verbs_reach_jobs_of_the_engine(hived: Hived, engine: FakeService) -> None:
    job = engine.add(name="train")
    took = "framework; 1.0 MiB moved in 50 ms"
    assert hived("train", "suspend", "train").out == f"train-1: suspended ({took})\n"
    assert engine.job("train").state == "suspended"
    assert hived("ps").out.splitlines()[1].split()[6] == "suspended"
    assert hived("train", "resume", job.id).out == "train-1: runs\n"
    said = hived("train", "limit", "train-1", "--memory", "6GiB", "--share", "30%").out
    assert said == "train-1: limits change at the end of its mini-batch (hived train status train-1)\n"
    limits = json.loads(hived("ps", "-o", "json").out)["jobs"][0]["limits"]
    assert (limits["memory"], limits["share"]) == (6 * 2**30, 0.3)
    assert hived("train", "scale", "train", "--workers", "2").out == "train-1: 2 workers\n"
    assert hived("priority", "train", "7").out == "train-1: priority 7\n"
    status = hived("train", "status", "train")
    assert status.out.splitlines()[0] == "train-1: true"
    assert status.out.splitlines()[2].split()[:4] == ["0", "71", "running", "12"]
    assert json.loads(hived("train", "status", "train", "-o", "json").out)["processes"][0]["share"] == 0.3
    assert json.loads(hived("train", "suspend", "train", "-o", "json").out)["state"] == "suspended"


def test_refused_in_one_line(hived: Hived, engine: FakeService) -> None:
    engine.end(engine.add(name="early"))
    refused(hived("train", "suspend", "nobody"), 4)
    assert "early-1 is succeeded: only what runs" in refused(hived("train", "suspend", "early"), 2)
    assert "no training job 'early'" in refused(hived("train", "migrate", "early", "--to", "cpu"), 4)
