"""Engines that cannot have jobs take turns refuse policies that need it, when they start and later."""

from __future__ import annotations

import pytest

from hived.cluster.cluster import Cluster
from hived.errors import PolicyError
from hived.policies import FIFO, Gandiva
from hived.scheduling import Policies, Scheduler
from tests.simulator.test_gandiva import cluster_spec

SPEC = cluster_spec(1)


def test_without_a_probe_such_a_policy_is_refused() -> None:
    with pytest.raises(PolicyError, match="share GPUs, which is only simulated"):
        Scheduler(Cluster(SPEC), Gandiva(), lambda _: None)


def test_a_new_spec_with_such_a_policy_changes_nothing() -> None:
    policies = Policies(FIFO(), {"a": FIFO()})
    Scheduler(Cluster(SPEC), policies, lambda _: None)
    before = policies["a"]
    with pytest.raises(PolicyError, match="gandiva"):
        policies.assign({"a": Gandiva()})
    assert policies["a"] is before
