"""The pods that an object makes at a time, as long as there are some to make."""

from __future__ import annotations

from typing import Any

import pytest

from hived.cluster.requests import Member
from hived.engines.kubernetes.errors import AskError
from hived.engines.kubernetes.owners import members_of

Json = dict[str, Any]


def template(gpus: int) -> Json:
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": {"hived.io/gpu": gpus}}}]}}


def job(parallelism: int | None, completions: int | None, succeeded: int | None = None) -> Json:
    spec = {"parallelism": parallelism, "completions": completions, "template": template(2)}
    status = {} if succeeded is None else {"status": {"succeeded": succeeded}}
    return {"kind": "Job", "spec": {key: value for key, value in spec.items() if value is not None}, **status}


@pytest.mark.parametrize(
    ("thing", "pods"),
    [
        (job(None, None), 1),
        (job(4, None), 4),
        (job(4, 10), 4),
        (job(4, 2), 2),
        (job(4, 10, 7), 3),
        (job(2, 2, 1), 1),
        (job(2, 2, 2), 1),
        (job(4, None, 3), 4),
    ],
)
def test_a_job_makes_as_many_pods_as_are_left_to_succeed(thing: Json, pods: int) -> None:
    # a pod that was made anew after another had succeeded waited for that one for ever
    assert members_of(thing, "the Job") == (Member(pods, 2),)


def test_a_pytorchjob_makes_no_workers_anew_that_have_succeeded() -> None:
    replicas = {"Worker": {"replicas": 4, "template": template(2)}, "Master": {"template": template(1)}}
    thing = {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": replicas}}
    assert members_of(thing, "it") == (Member(1, 1), Member(4, 2))
    thing["status"] = {"replicaStatuses": {"Master": {"active": 1}, "Worker": {"succeeded": 3}}}
    assert members_of(thing, "it") == (Member(1, 1), Member(1, 2))


def job_set(**more: Any) -> Json:
    inner = {"spec": {"parallelism": 2, "completions": 2, "template": template(2)}}
    leader = {"spec": {"template": template(1)}}
    jobs: list[Json] = [{"name": "leader", "template": leader}, {"name": "workers", "replicas": 3, "template": inner}]
    return {"kind": "JobSet", "spec": {"replicatedJobs": jobs, **more}}


def test_a_jobset_makes_the_pods_of_all_its_jobs_that_have_not_succeeded() -> None:
    thing = job_set()
    assert members_of(thing, "it") == (Member(1, 1), Member(6, 2))
    thing["status"] = {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]}
    assert members_of(thing, "it") == (Member(1, 1), Member(4, 2))


def test_jobs_that_are_made_one_after_another_are_no_gang_and_say_what_to_do() -> None:
    # the second is made once the first runs, which was placed once the second was there
    with pytest.raises(AskError, match=r"one after another, so they are no gang; give the pods of each the labels"):
        members_of(job_set(startupPolicy={"startupPolicyOrder": "InOrder"}), "JobSet t/set")
    thing = job_set()
    thing["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "leader", "status": "Ready"}]
    with pytest.raises(AskError, match="one after another"):
        members_of(thing, "JobSet t/set")
    del thing["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert members_of(thing, "it") == (Member(6, 2),)
    assert members_of(job_set(startupPolicy={"startupPolicyOrder": "AnyOrder"}), "it")


@pytest.mark.parametrize("status", [{"succeeded": "x"}, {"succeeded": -1}, "x", ["x"]])
def test_a_status_of_no_known_form_is_told(status: Any) -> None:
    with pytest.raises(AskError, match="has a form that is not known"):
        members_of(job(2, 2) | {"status": status}, "the Job")
