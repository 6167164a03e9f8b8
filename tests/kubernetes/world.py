"""A cluster with a service behind proxies, its users and its witness; and what has to be true once nothing moves."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from .cluster import Cluster
from .control_plane import ControlPlane
from .load import Load, Work
from .proxies import Proxy
from .real import scenes
from .service import Service, grant
from .witness import Witness, devices, is_bound, kind

Json = dict[str, Any]

PATIENCE_S = 120.0
ENDED_IN_THE_DARK = "ended without an API server"
#: last words of a kube-scheduler (1.36.3) that takes a pod for another of the same name, from before its watch broke:
#: https://github.com/kubernetes/kubernetes/pull/141255
CONFUSED = "Scheduler cache is corrupted"


class World:
    """One cluster. What is wrong is in ``found``, in words."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, seed: int, nodes: int, vcs: dict[str, int],
                 gpus: int) -> None:  # fmt: skip
        """``vcs``: nodes that each has reserved, of so many ``nodes`` with ``gpus`` each."""
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        self.points: Counter[str] = Counter()  #: where it was killed
        self.rng = random.Random(seed)
        self.vcs, self.gpus = vcs, gpus
        self.plane = plane
        self.cluster = Cluster(plane, namespace)
        grant(self.cluster.api)
        self.cluster.create_priority_class(scenes.URGENT, 2000)
        self.cluster.create_priority_class(scenes.GUARANTEED, 1000)
        self.cluster.create_priority_class(scenes.OPPORTUNISTIC, 1)
        self.nodes = [f"n{number:03}" for number in range(nodes)]
        self.cluster.create_nodes(self.nodes, cpu=str(scenes.CPU))
        self.witness = Witness(plane, namespace)
        self.to_api = Proxy(plane.port, plane.ca)
        self.service = Service(plane, folder, scenes.spec(self.nodes, vcs, gpus))
        self.to_service = Proxy(self.service.port)
        config = plane.kubeconfig("hived").read_text().replace(plane.url, f"https://127.0.0.1:{self.to_api.port}")
        self._kubeconfig = folder / "behind-the-proxy.kubeconfig"
        self._kubeconfig.write_text(config)
        self.load: Load | None = None
        self._extender = f"http://127.0.0.1:{self.to_service.port}/v1/extender"
        self.plane.start_scheduler(self._extender)

    def close(self) -> None:
        """Leave nothing."""
        if self.load is not None:
            if self.load.lock.locked():  # by us, when something went wrong
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
        """The service begins; ``warm``: with its modules loaded."""
        self.service.start("--kubeconfig", str(self._kubeconfig), ready=ready, warm=warm)

    def work(self, most: int) -> Load:
        """Users come."""
        self.load = Load(self.cluster, self.witness, self.vcs, self.gpus, most, self.rng.randrange(1 << 30))
        return self.load

    # -- the end --------------------------------------------------------------------------------------------------

    def settle(self, delete: bool = False) -> None:
        """No new works: soon nothing changes any more, and all is as it has to be. Then all run and go, and it is free.

        ``delete``: they do not run, but are deleted.
        """
        load = self.load
        assert load is not None
        load.creates = load.finishes = False
        give_up = time.monotonic() + PATIENCE_S
        while wrong := self.unsettled():
            self._others_go_on()
            if time.monotonic() > give_up:
                self.found += wrong
                break
            time.sleep(0.5)
        self.check()
        if delete:
            load.delete_all()
        load.finishes = True
        self.wait(lambda: not load.works, "everything that was wanted has run or was deleted, and is gone")
        self._all_is_free()

    def unsettled(self) -> list[str]:
        """What is not as it will have to be, now that nobody comes or goes."""
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
                wrong.append(f"{work.name} of {work.pods} pods has {len(mine)}, of which {bound} are bound")
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

    def _fits(self, work: Work) -> bool:
        """Whether there is room for its pods, which are all of one size: counted from the pods' annotations alone."""
        assert self.load is not None
        mine: Counter[str] = Counter()
        used: Counter[str] = Counter()
        owners = {uid: other for other in self.load.all.values() for uid in other.uids}
        for uid, pod in self.witness.living().items():
            if is_bound(pod):
                node = pod["spec"]["nodeName"]
                used[node] += len(devices(pod))
                if owners[uid].vc == work.vc and kind(pod) == "guaranteed":
                    mine[node] += len(devices(pod))
        if not work.guaranteed:
            return sum((self.gpus - used[node]) // work.gpus for node in self.nodes) >= work.pods
        # its VC reserved whole nodes: those that it uses, and any others
        room = sum((self.gpus - there) // work.gpus for there in mine.values())
        return room + (self.vcs[work.vc] - len(mine)) * (self.gpus // work.gpus) >= work.pods

    def check(self) -> None:
        """What has to be true whenever nothing moves."""
        load = self.load
        if load is not None:
            if load.problem is not None:
                self.found.append(f"the load came to a stop: {load.problem!r}")
            self._nobody_is_lost(load)
            self.counts += load.counts
            self.counts["pods created"] += len(load.created)
        self.found += self.witness.found
        self.counts["pods bound"] = len(self.witness.bound_at)
        for metric in ("hived_safety_violations_total", "hived_conflicts", "hived_refused_pods"):
            if value := self.service.metric(metric):
                self.found.append(f"{metric} is {value:g}")
        bugs = self.service.bugs()
        for _ in range(self.counts[ENDED_IN_THE_DARK]):  # which it says, as it has to
            bugs.remove(next(line for line in bugs if line.startswith("hived: ")))
        self.found += [f"it says: {line[:1500]}" for line in bugs]

    def _nobody_is_lost(self, load: Load) -> None:
        named = {
            event["involvedObject"]["uid"]: event["message"]
            for reason in ("HivedPreempted", "Preempted")
            for event in self.cluster.api(
                "GET", f"/api/v1/namespaces/{self.cluster.namespace}/events", fieldSelector=f"reason={reason}"
            )["items"]
        }
        pods = self.pods()
        told = "\n".join(self.to_api.deleted)
        for uid, name in load.created.items():
            if uid in pods or uid in load.ended:
                continue
            self.counts["pods preempted"] += 1
            if uid not in named:
                who = "hived has deleted it" if uid in told else "it is not known who has deleted it"
                self.found.append(f"{name} is gone, and no Event says why; {who}")

    def _all_is_free(self) -> None:
        """Nobody is there, and nothing is in use."""

        def free() -> bool:
            status = self.service.get("/v1/status")
            used = {key: status[key] for key in ("guaranteed", "opportunistic", "reserved", "bad")}
            return not any(used.values()) and not any(status["groups"].values())

        self.wait(free, "all GPUs are free again")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Until ``condition`` is true; where it never is, that is found."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            self._others_go_on()
            if time.monotonic() > give_up:
                self.found.append(f"not within {PATIENCE_S:g} s: {what}\n{json.dumps(self.groups())[:3000]}")
                return
            time.sleep(0.2)

    def _others_go_on(self) -> None:
        """The load works, and a kube-scheduler that has ended is begun anew, as a kubelet does."""
        if self.load is not None and self.load.problem is not None:
            raise AssertionError("the load came to a stop") from self.load.problem
        if self.plane.scheduler_has_ended():
            words = "\n".join(self.plane.log("kube-scheduler").splitlines()[-20:])  # others may say something after it
            if CONFUSED not in words:
                self.found.append(f"kube-scheduler has ended: {words[-1500:]}")
            self.counts["ends of kube-scheduler"] += 1
            self.plane.start_scheduler(self._extender)

    # -- looking --------------------------------------------------------------------------------------------------

    def groups(self) -> Json | None:
        """What the service says about its groups, by name; None: it does not answer, or is not ready."""
        try:
            return self.service.groups()
        except (AssertionError, httpx.HTTPError):
            return None

    def pods(self) -> dict[str, Json]:
        """All that there are, by uid."""
        return {pod["metadata"]["uid"]: pod for pod in self.cluster.pods().values()}


def _is_behind(group: Json) -> bool:
    return any("in line" in why for why in group["why"])
