"""``hived ...`` against the service on a real control plane, as an operator types it."""

from __future__ import annotations

import json
import subprocess

import yaml

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes


def as_data(told: subprocess.CompletedProcess[str], form: str) -> scenes.Json:
    """What a program reads."""
    assert told.stderr == ""
    found: scenes.Json = json.loads(told.stdout) if form == "json" else yaml.safe_load(told.stdout)
    return found


def job(name: str, pods: int, gpus: int, vc: str = "a") -> scenes.Json:
    pod = scenes.pod(name, vc, gpus)
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def test_a_plan_says_what_would_become_of_manifests(cluster: Cluster, service: Service) -> None:
    def plan(*objects: scenes.Json, form: str = "table") -> subprocess.CompletedProcess[str]:
        text = yaml.safe_dump_all(objects)
        return service.cli("plan", "-f", "-", "--namespace", cluster.namespace, "-o", form, stdin=text)

    cluster.create_pod(scenes.pod("first", "a", 4))
    scenes.wait_for_places(cluster, "first")
    now, waits, never = job("now", 2, 2), job("waits", 2, 4), job("never", 3, 4)
    for manifest, code, words in (
        (now, 0, [f"{cluster.namespace}/now (4 GPUs of a): now, on n"]),
        (waits, 2, [f"{cluster.namespace}/waits (8 GPUs of a): would wait"]),
        (never, 3, [f"{cluster.namespace}/never (12 GPUs of a): never fits", "12", "8"]),
    ):
        told = plan(manifest)
        assert (told.returncode, told.stderr) == (code, "")
        assert all(word in told.stdout for word in words), told.stdout
    told = plan(now, waits, never, form="yaml")
    assert told.returncode == 3, "of several, the worst"
    assert [group["outcome"] for group in as_data(told, "yaml")["groups"]] == ["now", "waits", "never"]
    told = plan({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}})
    assert (told.returncode, told.stdout) == (0, "")
    assert "nothing here is for HiveD" in told.stderr
    told = plan(job("nobodys", 1, 1, vc="nobody"))
    assert told.returncode == 3
    assert "nobody" in told.stdout
    told = plan({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 3}})
    assert told.returncode == 2
    assert "standard input:1" in told.stderr
    assert set(cluster.pods()) == {"first"}, "a plan creates nothing"
    assert set(service.groups()) == {f"{cluster.namespace}/first"}


def test_a_plan_names_the_victims_and_takes_nothing_from_them(cluster: Cluster, service: Service) -> None:
    for pod in scenes.gang("lent", "b", 4, 4, opportunistic=True):
        cluster.create_pod(pod)
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "the loan is placed on all nodes")
    told = service.cli("plan", "-f", "-", stdin=yaml.safe_dump(job("own", 1, 4)))
    assert told.returncode == 0
    assert f"once {cluster.namespace}/lent has gone" in told.stdout
    assert service.groups()[f"{cluster.namespace}/lent"]["state"] == "placed"
