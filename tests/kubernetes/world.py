"""A cluster with a service behind proxies, its load and its witness; and the invariants once nothing changes."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tools.control_plane.cluster import Cluster
from tools.control_plane.plane import ControlPlane
from tools.control_plane.service import Service, grant
from tools.control_plane.workloads import CPU, GUARANTEED, OPPORTUNISTIC, URGENT, make_spec, places

from .load import Load, Work
from .proxies import Proxy
from .witness import Witness, is_bound, kind

Json = dict[str, Any]

PATIENCE_S = 300.0
_ASK_S = 20.0  #: how often kube-scheduler is asked for its cache while nothing changes
_EVENTS_S = 120.0  #: for how long an Event may be on its way
ENDED_WITHOUT_API_SERVER = "ended without an API server"
#: last log line of a kube-scheduler (1.36.3) that confuses a pod with an older one of its name after its watch broke:
#: https://github.com/kubernetes/kubernetes/pull/141255; it may also go on, and count removed pods on nodes for good
CONFUSED = "Scheduler cache is corrupted"


class World:
    """One cluster. ``found`` has the findings, in words."""

    def __init__(
        self, plane: ControlPlane, namespace: str, folder: Path, seed: int, nodes: int, vcs: dict[str, int], gpus: int
    ) -> None:
        """``vcs``: how many of the ``nodes``, with ``gpus`` each, a virtual cluster has reserved."""
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        self.points: Counter[str] = Counter()  #: points of kills
        self.rng = random.Random(seed)
        self.vcs, self.gpus = vcs, gpus
        self.plane = plane
        self.cluster = Cluster(plane, namespace)
        grant(self.cluster.api)
        for name, value in ((URGENT, 2000), (GUARANTEED, 1000), (OPPORTUNISTIC, 1)):
            self.cluster.create_priority_class(name, value)
        self.nodes = [f"n{number:03}" for number in range(nodes)]
        self.cluster.create_nodes(self.nodes, cpu=str(CPU))
        self.witness = Witness(plane, namespace)
        self.to_api = Proxy(plane.port, plane.ca)
        self.service = Service(plane, folder, make_spec(self.nodes, vcs, gpus))
        self.to_service = Proxy(self.service.port)
        config = plane.kubeconfig("hived").read_text().replace(plane.url, f"https://127.0.0.1:{self.to_api.port}")
        self._kubeconfig = folder / "behind-the-proxy.kubeconfig"
        self._kubeconfig.write_text(config)
        self.load: Load | None = None
        self._ask_at = 0.0
        self.plane.start_scheduler(f"http://127.0.0.1:{self.to_service.port}/v1/extender")

    def close(self) -> None:
        if self.load is not None:
            if self.load.lock.locked():  # by this thread, after an error
                self.load.lock.release()
            self.load.stop()
        self.witness.stop()
        self.plane.start_api_server()
        self.plane.stop_scheduler()
        self.service.close()
        self.cluster.close()
        self.to_api.stop()
        self.to_service.stop()

    def start(self, ready: bool = True, warm: bool = False) -> None:
        """Start the service; ``warm``: with preloaded modules."""
        self.service.warm = warm
        self.service.start("--kubeconfig", str(self._kubeconfig), ready=ready)

    def work(self, most: int) -> Load:
        """Start the load."""
        self.load = Load(self.cluster, self.witness, self.vcs, self.gpus, most, self.rng.randrange(1 << 30))
        return self.load

    # -- the end --------------------------------------------------------------------------------------------------

    def settle(self, delete: bool = False) -> None:
        """Stop new works, wait until nothing changes, and check. Then all works run and end, and all GPUs are free.

        ``delete``: works are deleted instead of run.
        """
        load = self.load
        assert load is not None
        load.creates = load.finishes = False
        give_up = time.monotonic() + PATIENCE_S
        while wrong := self.unsettled():
            self._keep_others_running()
            if time.monotonic() > give_up:
                self.found += wrong
                break
            time.sleep(0.5)
        self._check(load)
        if delete:
            load.delete_all()
        load.finishes = True
        self.wait(lambda: not load.works, "everything that was wanted has run or was deleted, and is gone")
        self._wait_until_free()

    def unsettled(self) -> list[str]:
        """Differences from the final state, now that no works are added or removed."""
        assert self.load is not None
        quiet = time.monotonic() - self.witness.changed_at
        groups = self.groups()
        if quiet < 3.0 or groups is None:
            return [f"something has changed {quiet:.1f} s ago"]
        pods = self.witness.living()
        wrong, waiting = [], []
        for work in list(self.load.works.values()):
            mine = [pods[uid] for uid in work.uids if uid in pods]
            bound = sum(map(is_bound, mine))
            if len(mine) != work.pods or bound not in (0, work.pods):
                about: list[object] = [self._story(pod) for pod in mine if not is_bound(pod)]
                about += [f"nominated: {_nominated(pods)}", f"CPU on nodes: {_cpu(pods)}"]
                wrong.append(f"{work.name} of {work.pods} pods has {len(mine)}, of which {bound} are bound: {about}")
            group = groups.get(work.group)
            if group is None or (bound == 0 and not group["why"]):
                wrong.append(f"{work.name} waits, and nobody says why: {group}")
            elif bound == 0:
                waiting.append((work, group))
        for vc in self.vcs:
            for own in (True, False):
                line = [(w, g) for w, g in waiting if w.vc == vc and w.guaranteed == own and not _is_behind(g)]
                wrong += [f"{work.name} fits, and waits: {g['why']}" for work, g in line if self._fits(work)]
                if not line and any(w.vc == vc and w.guaranteed == own for w, _ in waiting):
                    wrong.append(f"those of {vc} that wait are all behind others")
        return wrong

    def _story(self, pod: Json) -> list[str]:
        """What is known of a pod that is not bound: its conditions, and the last lines of kube-scheduler's log."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        conditions = [json.dumps(condition) for condition in pod["status"].get("conditions", ())]
        log = self.plane.log("kube-scheduler").splitlines()
        lines = [line[:300] for line in log if uid in line or f'/{name}"' in line]
        return [f"{name} {uid}", *conditions, *lines[-5:]]

    def _fits(self, work: Work) -> bool:
        """Whether there is room for its pods, which are all of one size: counted from the pods' annotations alone."""
        assert self.load is not None
        mine: Counter[str] = Counter()
        used: Counter[str] = Counter()
        owners = {uid: other for other in self.load.all.values() for uid in other.uids}
        for uid, pod in self.witness.living().items():
            if is_bound(pod):
                node = pod["spec"]["nodeName"]
                used[node] += len(places(pod))
                if owners[uid].vc == work.vc and kind(pod) == "guaranteed":
                    mine[node] += len(places(pod))
        if not work.guaranteed:
            return sum((self.gpus - used[node]) // work.gpus for node in self.nodes) >= work.pods
        # its VC reserved whole nodes: those that it uses, and any others
        room = sum((self.gpus - there) // work.gpus for there in mine.values())
        return room + (self.vcs[work.vc] - len(mine)) * (self.gpus // work.gpus) >= work.pods

    def _check(self, load: Load) -> None:
        """Check the invariants while nothing changes."""
        if load.problem is not None:
            self.found.append(f"the load came to a stop: {load.problem!r}")
        self._check_no_pod_is_lost(load)
        self.counts += load.counts
        self.counts["pods created"] += len(load.created)
        self.found += self.witness.found
        self.counts["pods bound"] = len(self.witness.bound_at)
        for metric in ("hived_safety_violations_total", "hived_conflicts", "hived_refused_pods"):
            if value := self.service.metric(metric):
                self.found.append(f"{metric} is {value:g}")
        bugs = self.service.bugs()
        for _ in range(self.counts[ENDED_WITHOUT_API_SERVER]):  # which it has to log
            bugs.remove(next(line for line in bugs if line.startswith("hived: ")))
        self.found += [f"it says: {line[:1500]}" for line in bugs]

    def _check_no_pod_is_lost(self, load: Load) -> None:
        pods = self.pods()
        gone = {uid: name for uid, name in load.created.items() if uid not in pods and uid not in load.ended}
        self.counts["pods preempted"] += len(gone)
        # both schedulers write an Event again, some seconds later, if the API server has not answered
        until = time.monotonic() + _EVENTS_S
        while (unnamed := gone.keys() - self._named("HivedPreempted", "Preempted")) and time.monotonic() < until:
            time.sleep(0.5)
        for uid in unnamed:
            if self._taken_for_an_older_one(uid, gone[uid]):
                self.counts["pods that kube-scheduler deleted for an older one of their name"] += 1
                continue
            asked = "\n  ".join(self.plane.requests_about(self.cluster.namespace, gone[uid]))
            events = "\n  ".join(self._events_of(gone[uid]))
            self.found.append(
                f"{gone[uid]} ({uid}) is gone, and no Event says why; requests:\n  {asked}\nEvents:\n  {events}"
            )

    def _taken_for_an_older_one(self, uid: str, name: str) -> bool:
        """Whether kube-scheduler (1.36.3) has deleted it for one of the same name that was gone by then.

        It deletes victims by name alone, and its Event is about the pod that it meant: ``docs/howto/deploying.md``.
        """
        assert self.load is not None
        order = list(self.load.created)
        older = {other for other in order[: order.index(uid)] if self.load.created[other] == name}
        by_scheduler = self.plane.deleted_by_scheduler(self.cluster.namespace)
        return uid in by_scheduler and bool((older - by_scheduler) & self._named("Preempted"))

    def _events_of(self, name: str) -> list[str]:
        """The Events about pods of this name, in words."""
        return [
            f"{event['metadata']['creationTimestamp']} of {event['involvedObject']['uid']}, {event['reason']}: "
            f"{event['message']}"
            for event in self._events(f"involvedObject.name={name}")
        ]

    def _named(self, *reasons: str) -> set[str]:
        """The uids of the pods that have an Event for one of these reasons."""
        return {event["involvedObject"]["uid"] for one in reasons for event in self._events(f"reason={one}")}

    def _events(self, field: str) -> list[Json]:
        where = f"/api/v1/namespaces/{self.cluster.namespace}/events"
        found: list[Json] = self.cluster.api("GET", where, fieldSelector=field)["items"]
        return found

    def _wait_until_free(self) -> None:
        """Wait until there are no groups, and no GPU is in use."""

        def free() -> bool:
            status = self.service.get("/v1/usage")
            used = {key: status[key] for key in ("guaranteed", "opportunistic", "reserved", "bad")}
            return not any(used.values()) and not any(status["jobs"].values())

        self.wait(free, "all GPUs are free again")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until ``condition`` is true; a timeout is a finding."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            self._keep_others_running()
            if time.monotonic() > give_up:
                self.found.append(f"not within {PATIENCE_S:g} s: {what}\n{json.dumps(self.groups())[:3000]}")
                return
            time.sleep(0.2)

    def _keep_others_running(self) -> None:
        """Check that the load runs, and restart a kube-scheduler that has ended, as a kubelet does."""
        if self.load is not None and self.load.problem is not None:
            raise AssertionError("the load came to a stop") from self.load.problem
        if self.plane.scheduler_has_ended():
            words = "\n".join(self.plane.log("kube-scheduler").splitlines()[-20:])  # other lines may follow it
            if CONFUSED not in words:
                self.found.append(f"kube-scheduler has ended: {words[-1500:]}")
            self.counts["ends of kube-scheduler"] += 1
            self.plane.restart_scheduler()
        changed_at, now = self.witness.changed_at, time.monotonic()
        if now > self._ask_at and now > changed_at + 3.0:
            self._ask_at = now + _ASK_S
            wrong = self.plane.pods_kept_for_nothing()
            if wrong and self.witness.changed_at == changed_at:  # an administrator restarts it
                self.counts["restarts of a kube-scheduler that counts pods which are gone"] += 1
                self.plane.restart_scheduler()

    # -- queries --------------------------------------------------------------------------------------------------

    def groups(self) -> Json | None:
        """The service's groups by name; None: it does not answer, or is not ready."""
        with contextlib.suppress(AssertionError, httpx.HTTPError):
            return self.service.groups()
        return None

    def pods(self) -> dict[str, Json]:
        """All pods, by uid."""
        return {pod["metadata"]["uid"]: pod for pod in self.cluster.pods().values()}


def _is_behind(group: Json) -> bool:
    return any("in line" in why for why in group["why"])


def _nominated(pods: dict[str, Json]) -> dict[str, str]:
    """The nodes that kube-scheduler keeps for pods which it has let preempt, by pod."""
    nodes = {pod["metadata"]["name"]: pod["status"].get("nominatedNodeName", "") for pod in pods.values()}
    return {name: node for name, node in nodes.items() if node}


def _cpu(pods: dict[str, Json]) -> dict[str, int]:
    """The CPU that bound pods have requested, by node."""
    used: Counter[str] = Counter()
    for pod in filter(is_bound, pods.values()):
        for container in pod["spec"]["containers"]:
            used[pod["spec"]["nodeName"]] += int(container["resources"].get("requests", {}).get("cpu", "0"))
    return dict(used)
