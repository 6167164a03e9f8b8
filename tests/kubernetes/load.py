"""A steady load of pods: users, controllers that replace lost pods, and kubelets."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from tools.control_plane.cluster import MERGE, Api, Cluster, RefusedError
from tools.control_plane.workloads import CPU, URGENT, make_pod

from .witness import Witness, has_ended, is_bound

Json = dict[str, Any]
_WORK = "chaos/work"
_TICK_S = 0.05
_SEEN_S = 30.0  #: after that the witness has seen a pod, or never will


@dataclass
class Work:
    """A gang of pods, kept alive until they have run together for long enough."""

    name: str
    group: str  #: its name in HiveD
    vc: str
    pods: int
    gpus: int  #: of each pod
    priority: str  #: label: ``opportunistic``, ``0``, ``5``
    manifest: Json
    same_names: bool  #: a lost pod is replaced under its name once it is removed; else: under another, at once
    runs_s: float
    made: int = 0
    ending: bool = False
    uids: dict[str, float] = field(default_factory=dict)  #: of all pods that it ever had: when they were made

    @property
    def guaranteed(self) -> bool:
        return self.priority != "opportunistic"


class Load(threading.Thread):
    """Runs about ``most`` works at a time. It pauses while another thread holds the ``lock``."""

    def __init__(
        self, cluster: Cluster, witness: Witness, vcs: dict[str, int], gpus: int, most: int, seed: int
    ) -> None:
        """``vcs``: nodes of each, with ``gpus`` each."""
        super().__init__(daemon=True)
        self.lock = threading.Lock()
        self.works: dict[str, Work] = {}
        self.all: dict[str, Work] = {}  #: also those that have ended
        self.creates = True  #: whether new works come, and pods are deleted for no reason
        self.finishes = True  #: whether works that have run for long enough end
        self.counts: Counter[str] = Counter()
        self.created: dict[str, str] = {}  #: name of every pod there was, by uid
        self.ended: set[str] = set()  #: uids of those that the run has ended or deleted
        self.problem: BaseException | None = None
        self._api = Api(cluster.plane.kubeconfig())
        self._namespace = cluster.namespace
        self._witness = witness
        self._vcs, self._gpus, self._most = vcs, gpus, most
        self._rng = random.Random(seed)
        self._ending_since: dict[str, float] = {}
        self._number = 0
        self._ending = threading.Event()
        self.start()

    def stop(self) -> None:
        self._ending.set()
        self.join()
        self._api.close()

    def run(self) -> None:
        try:
            while not self._ending.wait(_TICK_S):
                with self.lock:
                    try:
                        self._tick()
                    except httpx.HTTPError:
                        self.counts["API server was away"] += 1
        except BaseException as error:  # reported by the run
            self.problem = error
            raise

    def _tick(self) -> None:
        living = self._witness.living()
        self._kubelets(living)
        mine: dict[str, list[Json]] = {name: [] for name in self.works}
        for pod in living.values():
            mine.setdefault(pod["metadata"]["labels"].get(_WORK, ""), []).append(pod)
        for work in list(self.works.values()):
            self._reconcile(work, mine[work.name])
        if self.creates and len(self.works) < self._most:
            for _ in range(self._rng.randrange(4)):
                self._new_work()
        if self.creates and living and self._rng.random() < 0.02:
            self._remove(self._rng.choice(list(living.values())), "one pod of many deleted")

    # -- kubelets -------------------------------------------------------------------------------------------------

    def _kubelets(self, living: dict[str, Json]) -> None:
        """Bound pods that are being deleted take a moment to end."""
        for uid, pod in living.items():
            if "deletionTimestamp" in pod["metadata"]:
                since = self._ending_since.setdefault(uid, time.monotonic())
                if time.monotonic() - since > self._rng.uniform(0.0, 1.0):
                    self._call("DELETE", pod, {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0})
        self._ending_since = {uid: since for uid, since in self._ending_since.items() if uid in living}

    # -- controllers ----------------------------------------------------------------------------------------------

    def _reconcile(self, work: Work, pods: list[Json]) -> None:
        pods_there, gone, lately = self._witness.pods, self._witness.gone, time.monotonic() - _SEEN_S
        unseen = sum(at > lately and uid not in pods_there and uid not in gone for uid, at in work.uids.items())
        if work.ending:
            if not pods and not unseen:
                del self.works[work.name]
            for pod in pods:  # also pods that were not seen when the work was ended
                if "deletionTimestamp" not in pod["metadata"]:
                    self._remove(pod, "")
            return
        there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and not has_ended(pod)]
        have = len(pods if work.same_names else there) + unseen
        taken = {pod["metadata"]["name"] for pod in pods}
        for _ in range(work.pods - have):
            self._create_pod(work, taken)
        bound = [self._witness.bound_at.get(pod["metadata"]["uid"]) for pod in there if is_bound(pod)]
        if len(bound) == work.pods and time.monotonic() - max(at or 0 for at in bound) > work.runs_s:
            if self.finishes:
                self._end(work, there, self._rng.random() < 0.6)
                self.counts["works that ran"] += 1
        elif self.creates and not bound and self._rng.random() < 0.001:
            self._end(work, there, False)
            self.counts["works that were given up"] += 1

    def delete_all(self) -> None:
        with self.lock:
            living = self._witness.living()
            for work in self.works.values():
                self._end(work, [living[uid] for uid in work.uids if uid in living], False)

    def _end(self, work: Work, pods: list[Json], succeeds: bool) -> None:
        work.ending = True
        for pod in pods:
            if succeeds:
                self.ended.add(pod["metadata"]["uid"])
                self._call("PATCH", pod, {"status": {"phase": "Succeeded"}}, "/status")
            else:
                self._remove(pod, "")

    def _remove(self, pod: Json, what: str) -> None:
        self.ended.add(pod["metadata"]["uid"])
        self._call("DELETE", pod, {"preconditions": {"uid": pod["metadata"]["uid"]}})
        if what:
            self.counts[what] += 1

    def _call(self, verb: str, pod: Json, body: Json, more: str = "") -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod['metadata']['name']}{more}"
        try:
            self._api(verb, path, body, MERGE if verb == "PATCH" else "application/json")
        except RefusedError as error:
            if error.status not in (404, 409):  # it is removed meanwhile, or another has its name
                raise

    # -- users ----------------------------------------------------------------------------------------------------

    def _new_work(self) -> None:
        vc = self._rng.choice(list(self._vcs))
        pods = self._rng.choice((1, 1, 1, 1, 2, 2, 3, 4))
        gpus = self._rng.choice([n for n in (1, 1, 2, 2, self._gpus) if pods * n <= self._vcs[vc] * self._gpus])
        priority = self._rng.choice(("opportunistic", "opportunistic", "0", "0", "0", "5"))
        self.add(vc, pods, gpus, priority, self._rng.choice(("labels", "labels", "job", "upstream")))

    def add(self, vc: str, pods: int, gpus: int, priority: str, style: str) -> Work:
        """Add a work, whose pods are created from now on."""
        self._number += 1
        name = f"w{self._number}"
        opportunistic = priority == "opportunistic"
        manifest = make_pod(name, vc, gpus, opportunistic=opportunistic)
        labels = manifest["metadata"]["labels"]
        group = f"{self._namespace}/{name}"
        if style == "upstream":
            asked = {
                "virtualCluster": vc,
                "priority": -1 if opportunistic else int(priority),
                "leafCellNumber": gpus,
                "ignoreK8sSuggestedNodes": self._rng.random() < 0.5,
                "affinityGroup": {"name": name, "members": [{"podNumber": pods, "leafCellNumber": gpus}]},
            }
            manifest["metadata"]["annotations"] = {
                "hivedscheduler.microsoft.com/pod-scheduling-spec": json.dumps(asked)
            }
            labels.clear()
        else:
            labels["hived.io/priority"] = priority
        if style == "job":
            manifest["metadata"]["ownerReferences"] = [self._job(name, pods, manifest)]
        elif style == "labels":
            labels |= {"hived.io/group": name, "hived.io/group-size": str(pods)}
        labels[_WORK] = name
        if priority == "5":
            manifest["spec"]["priorityClassName"] = URGENT
        # a node that is full has no CPU to spare either, but for pods that ask for none
        cpu = self._rng.choice((0, CPU // self._gpus))
        manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": str(cpu * gpus)}
        manifest["spec"]["terminationGracePeriodSeconds"] = self._rng.choice((0, 30))
        same_names = self._rng.random() < 0.5
        work = Work(name, group, vc, pods, gpus, priority, manifest, same_names, 4 * self._rng.random() ** 2)
        self.works[name] = self.all[name] = work
        return work

    def _job(self, name: str, pods: int, manifest: Json) -> Json:
        template = {**manifest, "metadata": {"labels": manifest["metadata"]["labels"]}}
        template["spec"] = {**manifest["spec"], "restartPolicy": "Never"}
        body = {"metadata": {"name": name}, "spec": {"parallelism": pods, "completions": pods, "template": template}}
        made = self._api("POST", f"/apis/batch/v1/namespaces/{self._namespace}/jobs", body)
        uid = made["metadata"]["uid"]
        return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}

    def _create_pod(self, work: Work, taken: set[str]) -> None:
        if work.same_names:
            name = next(n for rank in range(work.pods + 1) if (n := f"{work.name}-{rank}") not in taken)
        else:
            name = f"{work.name}-{work.made}"
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        body = {**work.manifest, "metadata": {**work.manifest["metadata"], "name": name}}
        try:
            made = self._api("POST", path, body)
        except RefusedError as error:
            if error.reason != "AlreadyExists":
                raise
            there = {pod["metadata"]["name"]: pod for pod in self._api("GET", path)["items"]}
            if name not in there:
                return
            made = there[name]  # by a request whose answer was lost
        work.made += 1
        taken.add(name)
        work.uids[made["metadata"]["uid"]] = time.monotonic()
        self.created[made["metadata"]["uid"]] = name
