"""A service that is killed (SIGKILL) between any two of its calls, and an API server that goes away, under load.

A :class:`~.witness.Witness` sees every change of every pod: no GPU may be given twice. Kills come at random moments,
and at named ones: a proxy on each side of the service lets a chosen request hang, before it is sent on or after it was
answered, and the service dies there. The recovered state of the next process, before any update, has to match the pods
and the last state. In the end (:meth:`~.world.World.settle`) every gang that fits is placed, gangs are whole, and no
pod is lost.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import Any

from tools.control_plane.workloads import make_pod, places

from .load import Load
from .proxies import Fault
from .witness import is_bound, kind
from .world import ENDED_WITHOUT_API_SERVER, PATIENCE_S, World

Json = dict[str, Any]

#: share of the starts with preloaded modules
WARM = 0.9
EX_UNAVAILABLE = 69
#: points to be killed at: kind of request, how many of it may pass before, whether after it too
TO_API = {
    "binding": (6, True), "event": (8, True), "evict pod": (3, True), "delete pod": (3, True), "patch pod": (4, True),
    "get job": (3, True), "get pod": (1, True), "list pods": (1, True), "list nodes": (1, True),
    "watch pods": (1, False), "watch nodes": (1, False),
}  # fmt: skip
TO_SERVICE = {"filter": (12, True), "bind": (6, True), "preempt": (3, True)}


class Chaos(World):
    """A :class:`World` under kills, outages and load."""

    _startup = 0.5  #: seconds of the last start with preloaded modules
    _answer: Json | None = None  #: the last one about the groups, of the process before

    # -- kills ----------------------------------------------------------------------------------------------------

    def kills(self, number: int) -> str:
        """Kill the service ``number`` times under load; the last process runs on to the end. The result in a line.

        On a busy machine little is bound between two kills: more of them follow then, until enough was compared.
        """
        load = self.work(14)
        load.lock.acquire()
        lives = 0
        while lives < number or (lives < 5 * number and self.counts["bound pods compared"] <= 2 * number):
            self._one_life(load)
            assert load.problem is None, load.problem
            lives += 1
        self.start()
        self._compare()
        load.lock.release()
        self.to_service.let_go()
        self.settle()
        return f"{lives} kills, {self.counts['pods created']} pods"

    def _one_life(self, load: Load) -> None:
        """From a start to a kill. Holds the load's lock before and after."""
        fault = self._point()
        answers = self.rng.random() < 0.7
        early = fault is None and self.rng.random() < 0.15
        answer: Json | None = None

        def strike() -> None:
            nonlocal answer
            self.to_service.hold()
            answer = self.groups() if answers else None
            assert self.service.process is not None
            os.kill(self.service.process.pid, signal.SIGKILL)

        if fault is not None:
            fault.strike = strike
        began = time.monotonic()
        warm = early or self.rng.random() < WARM
        self.start(ready=False, warm=warm)
        ready = self._until_ready(fault, began + self.rng.uniform(0.4, 1.1) * self._startup if early else None)
        if ready:
            self.counts["lives from a cold start"] += not warm
            if warm:
                self._startup = time.monotonic() - began
            self._compare(fault)
            load.lock.release()
            self.to_service.let_go()
            if fault is None or not fault.done.wait(self.rng.uniform(3.0, 6.0)):
                if fault is None:
                    time.sleep(2.5 * self.rng.random())
                else:
                    self.counts["points that did not come"] += 1
                strike()
                fault = None
            load.lock.acquire()
        self.points["at random" if fault is None else str(fault)] += 1
        self.to_api.armed.clear()
        self.to_service.armed.clear()
        assert self.service.process is not None
        code = self.service.process.wait()
        if code != -signal.SIGKILL:
            self.found.append(f"the service had ended by itself with {code}:\n{self.service.log()[-1500:]}")
        self.service.kill()
        if ready:
            self._answer = answer
        if self.rng.random() < 0.3:
            self.to_service.let_go()  # kube-scheduler finds no service

    def _until_ready(self, fault: Fault | None, until: float | None) -> bool:
        """Wait until the service is ready; False: it was killed before that."""
        process = self.service.process
        assert process is not None
        give_up = time.monotonic() + PATIENCE_S
        while not self.service.is_ready():
            if (fault is not None and fault.done.is_set()) or process.poll() is not None:
                return False
            if until is not None and time.monotonic() > until:
                process.kill()
                return False
            assert time.monotonic() < give_up, f"it does not get ready:\n{self.service.log()[-3000:]}"
            time.sleep(0.02)
        self.to_service.hold()
        return True

    def _point(self) -> Fault | None:
        """The point of the next kill; None: at a random moment."""
        if self.rng.random() < 0.3:
            return None
        proxy, kinds = self.rng.choice(((self.to_api, TO_API), (self.to_service, TO_SERVICE)))
        name = self.rng.choice(list(kinds))
        most, also_after = kinds[name]
        fault = Fault(name, self.rng.randint(1, most), also_after and self.rng.random() < 0.5, lambda: None)
        proxy.armed.append(fault)
        if self.rng.random() < 0.3:  # besides, a connection breaks without a kill
            after = self.rng.random() < 0.5
            self.to_api.armed.append(Fault("binding", self.rng.randint(1, 4), after, lambda: None))
            self.counts["binding calls cut off"] += 1
        return fault

    # -- recovered state ------------------------------------------------------------------------------------------

    def _compare(self, fault: Fault | None = None) -> None:
        """Compare the service, before any update, with pods' annotations and the last answer of its predecessor."""
        give_up = time.monotonic() + PATIENCE_S
        late = False
        while True:
            before, said, after = self.pods(), self.groups(), self.pods()
            wrong = ["it does not answer"] if said is None else self._differences(after, said)
            if said is None and fault is not None and fault.done.is_set():
                return  # killed already
            late |= before == after and bool(wrong)
            if before == after and (not wrong or time.monotonic() > give_up):
                break
            time.sleep(0.05)
        self.counts["comparisons"] += 1
        self.counts["comparisons that were right later"] += late and not wrong
        self.counts["bound pods compared"] += sum(is_bound(pod) for pod in after.values())
        self.found += [f"after a restart: {line}" for line in wrong]

    def _differences(self, pods: dict[str, Json], said: Json) -> list[str]:
        assert self.load is not None
        wrong = []
        groups = {uid: work.group for work in self.load.all.values() for uid in work.uids}
        known = {pod["uid"]: (group, pod) for group in said.values() for pod in group["tasks"]}
        for uid, pod in pods.items():
            if not is_bound(pod):
                continue
            name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
            group, told = known.get(uid, (None, None))
            if group is None or told is None:
                wrong.append(f"{name} is on {node}, and no group has it")
            elif group["name"] != groups[uid]:
                wrong.append(f"{name} is of {groups[uid]}, and in {group['name']}")
            elif [(told["node"], device) for device in told["devices"]] != places(pod):
                wrong.append(f"{name} is on {places(pod)}, and said to be on {told['node']} {told['devices']}")
            elif told["state"] not in ("running", "stopping") or group["state"] not in ("running", "stopping"):
                wrong.append(f"{name} is bound, and said to be {told['state']}, its group {group['state']}")
            elif group["kind"] != kind(pod):
                wrong.append(f"{name} is {kind(pod)}, and its group said to be {group['kind']}")
        wrong += [
            f"{pod['name']} is said to be bound" for uid, (_, pod) in known.items()
            if pod["state"] == "running" and not is_bound(pods.get(uid, {"spec": {}, "status": {}}))
        ]  # fmt: skip
        for name, old in (self._answer or {}).items():
            if old["state"] not in ("running", "stopping") or {pod["state"] for pod in old["tasks"]} != {"running"}:
                continue
            left = [pod for pod in old["tasks"] if is_bound(pods.get(pod["uid"], {"spec": {}, "status": {}}))]
            if not left:
                continue
            self.counts["groups compared with the last answer"] += 1
            new = said.get(name, {"tasks": []})
            same = all(old[key] == new.get(key) for key in ("kind", "vc", "priority", "gpus", "size"))
            where = {pod["uid"]: (pod["node"], pod["devices"]) for pod in new["tasks"]}
            if not same or any(where.get(pod["uid"]) != (pod["node"], pod["devices"]) for pod in left):
                wrong.append(f"the last one said {old}, this one says {new}")
        return wrong

    # -- an API server that goes away -----------------------------------------------------------------------------

    def outages(self, number: int) -> str:
        """Restart the API server ``number`` times under load; the result in a line."""
        self.start()
        load, slowest = self.work(14), 0.0
        for turn in range(number):
            time.sleep(self.rng.uniform(1.0, 4.0))
            restarts = self.service.metric("hived_watch_restarts_total")
            self.plane.stop_api_server()
            time.sleep(self.rng.choice((0.0, 1.0, 8.0)) * self.rng.random())
            restarted = turn % 3 == 1
            if restarted:
                self._restart_without_api_server()
            else:
                self._check_readiness()
            self.plane.start_api_server()
            if restarted:
                self._wait_for_readiness()
            began, enough = time.monotonic(), load.counts["works that ran"] + 3
            self.wait(lambda: load.counts["works that ran"] >= enough, "they run again")  # noqa: B023
            slowest = max(slowest, time.monotonic() - began)
            self._check_readiness()
            if not restarted and self.service.metric("hived_watch_restarts_total") <= restarts:
                self.found.append("the API server was away, and no watch was restarted")
        self.settle()
        return f"{number} outages, {self.counts['pods created']} pods, works ran again after at most {slowest:.0f} s"

    def _restart_without_api_server(self) -> None:
        """Kill and restart the service while there is no API server: it must not be ready."""
        self.service.kill()
        self.start(ready=False)
        time.sleep(self.rng.uniform(0.0, 4.0))
        if self.service.is_ready():
            self.found.append("it is ready, and has read nothing of the API server")
        self.counts["starts without an API server"] += 1

    def _wait_for_readiness(self) -> None:
        """The API server is back: the service is ready, or has ended with a reason and is restarted."""
        process = self.service.process
        assert process is not None
        give_up = time.monotonic() + PATIENCE_S
        while process.poll() is None and not self.service.is_ready() and time.monotonic() < give_up:
            time.sleep(0.05)
        code = process.poll()
        if code is not None:
            self.counts[ENDED_WITHOUT_API_SERVER] += code == EX_UNAVAILABLE
            if code != EX_UNAVAILABLE:
                self.found.append(f"started without an API server, it ended with {code}:\n{self.service.log()[-1500:]}")
            self.service.kill()
            self.start()

    def _check_readiness(self) -> None:
        """The service runs, and all its endpoints agree about its state."""
        assert self.service.process is not None
        code = self.service.process.poll()
        assert code is None, f"the service ended with {code}:\n{self.service.log()[-3000:]}"

        def agreed() -> bool:
            said = self.service.get("/v1/engine")["ready"]
            return self.service.is_ready() is said is bool(self.service.metric("hived_ready"))

        self.wait(agreed, "its probe, its status and its metric agree about whether it is ready")

    # -- many ---------------------------------------------------------------------------------------------------------

    def many(self, pods: int) -> str:
        """Create so many pods at once, in gangs; the result in a line."""
        self.start()
        load = self.work(0)
        load.creates = load.finishes = False
        began = time.monotonic()
        with load.lock:
            while sum(work.pods for work in load.works.values()) < pods:
                gang = self.rng.choice((1, 2, 4, 8))
                gpus = self.rng.choice((1, 1, 1, 2, 2, 4, 8))
                priority = self.rng.choice(("opportunistic", "0", "0", "0"))
                load.add(self.rng.choice(list(self.vcs)), gang, gpus, priority, self.rng.choice(("labels", "job")))
            wanted = sum(work.pods for work in load.works.values())
        self.wait(lambda: len(load.created) >= wanted, "all pods are created")
        created = time.monotonic() - began
        self.wait(lambda: not self.unsettled(), "who fits is placed")
        last = max(self.witness.bound_at.values()) - began
        bound = [pod for pod in self.witness.living().values() if is_bound(pod)]
        gpus = sum(len(places(pod)) for pod in bound)
        bindings = len(self.witness.bound_at)
        self.settle(delete=True)
        return (
            f"{wanted} pods in {len(load.all)} gangs on {len(self.nodes)} nodes: created in {created:.1f} s, "
            f"{bindings} bound in {last:.1f} s ({bindings / last:.0f} a second), then {len(bound)} on {gpus} GPUs "
            f"of {len(self.nodes) * self.gpus}"
        )

    def crowd(self, waiting: int, tries: int) -> str:
        """How long a pod of one tenant takes besides many waiting pods of another; in a line."""
        self.start()
        load = self.work(0)
        load.creates = load.finishes = False
        alone = [self._latency(f"alone-{number}") for number in range(tries)]
        with load.lock:
            for _ in range(self.vcs["a"] + waiting):
                load.add("a", 1, self.gpus, "0", "labels")
        self.wait(lambda: len(load.created) > waiting / 2, "half of the pods are created")
        storm = [self._latency(f"storm-{number}") for number in range(tries)]
        self.wait(lambda: not self.unsettled(), "who fits is placed")
        quiet = [self._latency(f"quiet-{number}") for number in range(tries)]
        told = self.service.metric('hived_requests_total{result="wait",verb="filter"}')
        self.counts["looks at a waiting pod"] = round(told / waiting)
        self.settle(delete=True)
        times = ((alone, "alone"), (storm, f"while {waiting} others come"), (quiet, f"beside {waiting} that wait"))
        return "; ".join(f"{what}: median {statistics.median(s):.2f} s, worst {max(s):.2f} s" for s, what in times)

    def _latency(self, name: str) -> float:
        """Seconds from creating a pod of tenant b until it is bound."""
        began = time.monotonic()
        uid = self.cluster.create_pod(make_pod(name, "b", 1))["metadata"]["uid"]
        self.wait(lambda: uid in self.witness.bound_at, f"{name} is bound")
        self.cluster.delete_pod(name, force=True)
        self.wait(lambda: uid in self.witness.gone, f"{name} is gone")
        return self.witness.bound_at.get(uid, time.monotonic()) - began
