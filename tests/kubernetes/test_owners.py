"""The pods that an object makes at a time, as long as there are some to make."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from hived.cluster.requests import Member
from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.pods.objects import Owner, Pod
from hived.engines.kubernetes.pods.owners import Owners, members_of
from hived.engines.kubernetes.pods.pod_request import PodRequestError

from .pods import pod
from .virtual_time import played

Json = dict[str, Any]
Sizes = tuple[Member, ...]


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
def test_pods_of_a_job(thing: Json, pods: int) -> None:
    # as many as are left to succeed: a pod that was made anew after another had succeeded waited for that one for ever
    assert members_of(thing, "the Job") == (Member(pods, 2),)


def test_pods_of_a_pytorchjob() -> None:
    """Workers that have succeeded are not made anew."""
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


def test_pods_of_a_jobset() -> None:
    """Of all its jobs that have not succeeded."""
    thing = job_set()
    assert members_of(thing, "it") == (Member(1, 1), Member(6, 2))
    thing["status"] = {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]}
    assert members_of(thing, "it") == (Member(1, 1), Member(4, 2))


def test_jobs_one_after_another() -> None:
    """They are no gang, and the error says what to do."""
    # the second is made once the first runs, which was placed once the second was there
    with pytest.raises(
        PodRequestError, match=r"one after another, so they are no gang; give the pods of each the labels"
    ):
        members_of(job_set(startupPolicy={"startupPolicyOrder": "InOrder"}), "JobSet t/set")
    thing = job_set()
    thing["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "leader", "status": "Ready"}]
    with pytest.raises(PodRequestError, match="one after another"):
        members_of(thing, "JobSet t/set")
    del thing["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert members_of(thing, "it") == (Member(6, 2),)
    assert members_of(job_set(startupPolicy={"startupPolicyOrder": "AnyOrder"}), "it")


@pytest.mark.parametrize("status", [{"succeeded": "x"}, {"succeeded": -1}, "x", ["x"]])
def test_status_of_unknown_form(status: Any) -> None:
    with pytest.raises(PodRequestError, match="has a form that is not known"):
        members_of(job(2, 2) | {"status": status}, "the Job")


class Server(KubeApi):
    """Has objects by their names, answers a moment later, and counts what it is asked."""

    def __init__(self, *there: Json) -> None:
        self.there = {thing["metadata"]["name"]: thing for thing in there}
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0

    async def get(self, path: str, params: Any = None) -> bytes:
        name = path.rpartition("/")[2]
        self.asked.append(name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if name not in self.there:
            raise ApiError("not found", 404, "NotFound")
        return msgspec.json.encode(self.there[name])


def named(thing: Json, name: str, **metadata: Any) -> Json:
    return thing | {"metadata": {"name": name, "uid": f"uid-{name}", **metadata}}


def pods_of(name: str, number: int, uid: str = "") -> list[Pod]:
    owner = Owner(api_version="batch/v1", kind="Job", name=name, uid=uid or f"uid-{name}", controller=True)
    return [pod(f"{name}-{place}", 2, owner=owner) for place in range(number)]


async def sizes(owners: Owners, pods: list[Pod]) -> list[Sizes | BaseException | None]:
    """Of all pods, asked for together."""
    return await asyncio.gather(*(owners.members(one) for one in pods), return_exceptions=True)


@played
async def test_one_read_for_a_job() -> None:
    # every pod read the Job for itself: 500 reads
    server = Server(named(job(500, None), "train"))
    assert await sizes(Owners(server), pods_of("train", 500)) == [(Member(500, 2),)] * 500
    assert server.asked == ["train"]


@played
async def test_one_read_for_each_of_a_jobset() -> None:
    """And for each of its jobs."""
    above = [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "uid-set"}]
    jobs = [named(job(2, 2), f"set-workers-{number}", ownerReferences=above) for number in range(3)]
    server = Server(named(job_set(), "set"), *jobs)
    pods = [one for thing in jobs for one in pods_of(thing["metadata"]["name"], 2)]
    assert await sizes(Owners(server), pods) == [(Member(1, 1), Member(6, 2))] * 6
    assert sorted(server.asked) == ["set", "set-workers-0", "set-workers-1", "set-workers-2"]


@played
async def test_no_storm_of_reads() -> None:
    server = Server(*(named(job(2, None), f"job-{number}") for number in range(60)))
    assert await sizes(Owners(server), [one for number in range(60) for one in pods_of(f"job-{number}", 2)])
    assert len(server.asked) == 60
    assert server.most_at_once == 16


@played
async def test_unreadable_job() -> None:
    """All its pods share one read, and the next pod tries again."""
    server = Server()
    owners = Owners(server)
    found = await sizes(owners, pods_of("train", 5))
    assert [type(one) for one in found] == [PodRequestError] * 5
    assert server.asked == ["train"]
    server.there["train"] = named(job(4, None), "train")
    assert await sizes(owners, pods_of("train", 1)) == [(Member(4, 2),)]


@played
async def test_cancelled_caller() -> None:
    """It does not cancel the read of others."""
    server = Server(named(job(2, None), "train"))
    owners = Owners(server)
    asks = [asyncio.ensure_future(owners.members(one)) for one in pods_of("train", 2)]
    await asyncio.sleep(0)
    asks[0].cancel()
    assert await asks[1] == (Member(2, 2),)
    assert server.asked == ["train"]


@played
async def test_pod_that_names_a_wrong_owner() -> None:
    # beside those that name it rightly, and before them
    server = Server(named(job(2, None), "train"), named(job(3, None), "other"))
    right, wrong = pods_of("train", 2), pods_of("other", 1, uid="uid-train")
    refused, *found = await sizes(Owners(server), wrong + right)
    assert isinstance(refused, PodRequestError)
    assert found == [(Member(2, 2),)] * 2
