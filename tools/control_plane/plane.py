"""A real control plane on loopback, without kubelets: etcd, kube-apiserver, kube-scheduler, controllers."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .binaries import Binaries
from .deployed import find

PATIENCE_S = 120.0
#: our name for each user, the user's own name there, and the user's groups
USERS = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "kcm": ("system:kube-controller-manager", ""),
    "hived": ("hived", ""),
    "standby": ("hived-standby", ""),
    "stranger": ("stranger", ""),
}
#: not run: what would need kubelets, a cloud, or volumes; and who would taint nodes that no kubelet keeps alive
CONTROLLERS = (
    "*,-nodelifecycle,-nodeipam,-route,-service,-cloud-node-lifecycle,-attachdetach,"
    "-persistentvolume-binder,-persistentvolume-expander,-ttl"
)
#: ends what is left once this process is gone, however it ended: reads the programs' numbers until then
GUARD = """
while read -r pid; do pids="$pids $pid"; done
for pid in $pids; do
    case $(readlink "/proc/$pid/exe") in */etcd | */kube-*) kill -KILL "$pid" ;; esac
done
rm -rf "$1"
"""


class ControlPlane:
    """Starts and stops the programs. Before the start nothing runs, and nothing is on disk."""

    def __init__(
        self, binaries: Binaries, extender_url: str | None = None, controller_manager: bool = False, authz: str = "RBAC"
    ) -> None:
        """``extender_url``: starts a kube-scheduler that calls it; without: :meth:`start_scheduler` does, any time."""
        self.binaries = binaries
        self._extender_url = extender_url
        self._controller_manager = controller_manager
        self._authz = authz
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._schedulers: dict[str, tuple[str, Mapping[str, Any] | None]] = {}  # how each was started

    # --- all of it

    def start(self) -> ControlPlane:
        """Start it, and wait until it answers: 5 to 7 seconds."""
        self.folder = Path(tempfile.mkdtemp(prefix="hived-control-plane-"))
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", self.folder], stdin=subprocess.PIPE, start_new_session=True
        )
        self.port = _free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        try:
            self._start_etcd()
            key = self.folder / "service-accounts.key"
            subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
            rows = (f'{_token(user)},{name},{user},"{groups}"\n' for user, (name, groups) in USERS.items())
            (self.folder / "tokens.csv").write_text("".join(rows))
            self.start_api_server()
            if self._controller_manager:
                self.start_controller_manager()
            if self._extender_url is not None:
                self.start_scheduler(self._extender_url)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop and remove everything. Idempotent."""
        for name in reversed(list(self._running)):
            self._stop(name)
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubeconfig(self, user: str = "admin") -> Path:
        """Of one of :data:`USERS`. ``admin`` has all rights; ``hived`` and ``standby`` have those of RBAC objects."""
        path = self.folder / f"{user}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": _token(user)}}],
            "contexts": [{"name": user, "context": {"cluster": "local", "user": user}}],
            "current-context": user,
        }
        path.write_text(json.dumps(config))
        return path

    @property
    def ca(self) -> Path:
        """The CA of the API server's certificate."""
        return self.folder / "api-server" / "apiserver.crt"

    @property
    def admin_token(self) -> str:
        """The token of the admin."""
        return _token("admin")

    def log(self, name: str) -> str:
        """The log of a program: ``kube-scheduler`` (or ``kube-scheduler-NAME``), ``kube-apiserver``, ..."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def cpu_s(self, name: str) -> float:
        """Seconds of processor time that a program has used."""
        return cpu_s(self._running[name].pid)

    # --- the API server

    def start_api_server(self) -> None:
        """Start the API server with its former port and data. Does nothing while it runs."""
        if "kube-apiserver" in self._running:
            return
        minor = self.binaries.version[1]
        key = self.folder / "service-accounts.key"
        issuer = "https://kubernetes.default.svc"
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            *(["--insecure-port=0"] if minor < 24 else []),
            "--advertise-address=10.254.254.254",  # loopback is refused; nobody asks there
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.ca.parent}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-issuer={issuer}",
            f"--api-audiences={issuer}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--authorization-mode={self._authz}",
            # nobody gives accounts to namespaces unless controllers run, nor takes a new node's taint away
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--allow-privileged=true",
            "--profiling=false",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={self.folder / 'audit.log'}",
        )
        self._wait("kube-apiserver", f"{self.url}/readyz", self.admin_token)

    def _audit_policy(self) -> Path:
        """What creates, binds, deletes or evicts pods is written to ``audit.log``: a line of JSON each."""
        pods = {"resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/eviction"]}]}
        rules = [
            {"level": "Request", "verbs": ["create"], **pods},
            {"level": "RequestResponse", "verbs": ["delete"], **pods},  # the answer says which pod had the name
            {"level": "None"},
        ]
        path = self.folder / "audit-policy.yaml"
        path.write_text(json.dumps({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules,
        }))  # fmt: skip
        return path

    def requests_about(self, namespace: str, name: str) -> list[str]:
        """Who has asked the API server to create, bind, delete or evict a pod of this name, in words."""
        found = []
        for who, what, uid, event in self._audited(namespace):
            if event["objectRef"].get("name") == name:
                when = f"{event['requestReceivedTimestamp']} to {event['stageTimestamp']}"
                code = event.get("responseStatus", {}).get("code")
                found.append(f"{when} {who}: {what} of {uid or 'any uid'}: {code}")
        return found

    def deleted_by_scheduler(self, namespace: str) -> set[str]:
        """The uids of the pods that kube-scheduler has deleted, as the API server answered it."""
        return {
            uid for who, what, uid, event in self._audited(namespace)
            if (who, what, event.get("responseStatus", {}).get("code")) == ("kube-scheduler", "delete", 200)
        }  # fmt: skip

    def _audited(self, namespace: str) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Who asked for what (a verb or a subresource), the pod's uid ("": not said), and the event."""
        for line in self.log("audit").splitlines():
            event = json.loads(line)
            what = event["objectRef"]
            if what.get("namespace") == namespace:
                asked, answer = event.get("requestObject", {}), event.get("responseObject", {})
                options = asked.get("deleteOptions", asked)
                said = answer.get("details", answer.get("metadata", {})), asked.get("metadata", {})
                uids = (*said, options.get("preconditions", {}))
                uid = next((str(one["uid"]) for one in uids if "uid" in one), "")
                yield event["userAgent"].split("/")[0], what.get("subresource", event["verb"]), uid, event

    def stop_api_server(self) -> None:
        """Stop the API server until :meth:`start_api_server`."""
        self._stop("kube-apiserver")

    def restart_api_server(self) -> None:
        """Break every watch, so that it cannot be resumed (410)."""
        self.stop_api_server()
        self.start_api_server()

    def compact(self) -> None:
        """Compact the history, as happens every 5 minutes: further pages of an older list have expired (410)."""
        state = self._etcd_call("kv/range", {"key": base64.b64encode(b"/").decode()})
        self._etcd_call("kv/compaction", {"revision": state["header"]["revision"], "physical": True})

    # --- the others

    def start_controller_manager(self) -> None:
        """Jobs get pods, owners' pods are collected, namespaces can be deleted."""
        port = _free_port()
        key = self.folder / "service-accounts.key"
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('kcm')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            *self._no_plain_port(),
            f"--cert-dir={self.folder / 'controllers'}",
            "--leader-elect=false",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials=true",
            f"--controllers={CONTROLLERS}",
            f"--root-ca-file={self.ca}",
        )
        self._wait("kube-controller-manager", f"https://127.0.0.1:{port}/healthz")

    def stop_controller_manager(self) -> None:
        """Stop it, if it runs."""
        self._stop("kube-controller-manager")

    def start_scheduler(
        self, extender_url: str, scheduler_name: str = "hived", extender: Mapping[str, Any] | None = None
    ) -> None:
        """A kube-scheduler for pods of that ``schedulerName``, instead of the one that there was for them.

        ``extender_url`` is what verbs are added to, ``http://127.0.0.1:1/v1/extender``; ``extender`` replaces fields
        of the extender's part of the configuration.
        """
        self.stop_scheduler(scheduler_name)
        self._schedulers[scheduler_name] = extender_url, extender
        config = self.folder / f"scheduler-{scheduler_name}.yaml"
        config.write_text(json.dumps(self._scheduler_config(extender_url, scheduler_name, extender or {})))
        port = _free_port()
        kubeconfig = self.kubeconfig("scheduler")
        name = _scheduler(scheduler_name)
        self._spawn(
            name,
            f"--config={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            *self._no_plain_port(),
            f"--cert-dir={self.folder / name}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--v=4",
        )
        self._wait(name, f"https://127.0.0.1:{port}/healthz")

    def restart_scheduler(self, scheduler_name: str = "hived") -> None:
        """End it, if it still runs, and start it as it was started."""
        extender_url, extender = self._schedulers[scheduler_name]
        self.start_scheduler(extender_url, scheduler_name, extender)

    def stop_scheduler(self, scheduler_name: str = "hived") -> None:
        """Stop it, if it runs."""
        self._stop(_scheduler(scheduler_name))

    def scheduler_has_ended(self) -> bool:
        """Whether kube-scheduler has ended by itself: no kubelet restarts it."""
        process = self._running.get("kube-scheduler")
        return process is not None and process.poll() is not None

    def pods_kept_for_nothing(self) -> list[str]:
        """The uids of pods on kube-scheduler's books that are gone, by its own comparison with what it was told.

        Meaningful while no pod is removed. What it misses does not count: a pod that it is about to place is nowhere.
        """
        before = len(self.log("kube-scheduler"))
        self._running["kube-scheduler"].send_signal(signal.SIGUSR2)
        end, said = time.monotonic() + 10.0, ""
        while "cache comparer finished" not in said.lower() and time.monotonic() < end:
            time.sleep(0.1)
            said = self.log("kube-scheduler")[before:]
        found = re.search(r"redundant ?pods[:=] ?\[([^]]*)\]", said, re.IGNORECASE)
        return [] if found is None else re.findall(r"[0-9a-f-]{36}", found[1])

    def _scheduler_config(self, url: str, name: str, extender: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of ``deploy/``, except for the addresses."""
        config: dict[str, Any] = yaml.safe_load(find("ConfigMap", "hived-scheduler")["data"]["config.yaml"])
        minor = self.binaries.version[1]
        if minor < 23:  # else it is 10251, which another may have
            config["healthzBindAddress"] = config["metricsBindAddress"] = f"127.0.0.1:{_free_port()}"
        config["apiVersion"] = f"kubescheduler.config.k8s.io/{config_version(minor)}"
        config["leaderElection"] = {"leaderElect": False}
        config["clientConnection"]["kubeconfig"] = str(self.kubeconfig("scheduler"))
        (profile,), (shipped,) = config["profiles"], config["extenders"]
        return {
            **config,
            "profiles": [{**profile, "schedulerName": name}],
            "extenders": [{**shipped, "urlPrefix": url, **extender}],
        }

    def _no_plain_port(self) -> list[str]:
        return ["--port=0"] if self.binaries.version[1] < 24 else []

    def _start_etcd(self) -> None:
        self._etcd = f"http://127.0.0.1:{_free_port()}"
        peers = f"http://127.0.0.1:{_free_port()}"
        self._spawn(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        )
        self._wait("etcd", f"{self._etcd}/health")

    def _etcd_call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._etcd}/v3/{verb}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    # --- processes

    def _spawn(self, name: str, *arguments: str) -> None:
        program = self.binaries.path("kube-scheduler" if name.startswith("kube-scheduler") else name)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, start_new_session=True)
        self._running[name] = process
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{process.pid}\n".encode())
        self._guard.stdin.flush()

    def _stop(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:  # it waits for its clients, who are ours
            process.kill()
            process.wait()

    def _wait(self, name: str, url: str, token: str = "") -> None:
        """Wait until it answers; raises with the end of its log if it ends or takes too long."""
        give_up = time.monotonic() + PATIENCE_S
        insecure = ssl.create_default_context()
        insecure.check_hostname = False
        insecure.verify_mode = ssl.CERT_NONE
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5, context=insecure):
                    return
            except OSError as error:  # refused, or not ready yet
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                ended = self._running[name].poll()
                if ended is not None or time.monotonic() > give_up:
                    state = "does not get ready" if ended is None else f"ended with {ended}"
                    raise RuntimeError(f"{name} {state}: {error}\n{self.log(name)[-3000:]}") from None
            time.sleep(0.05)


def config_version(minor: int) -> str:
    """The API version of kube-scheduler's configuration in Kubernetes 1.``minor``."""
    return "v1beta1" if minor < 22 else "v1beta2" if minor < 23 else "v1beta3" if minor < 25 else "v1"


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _token(user: str) -> str:
    return f"token-of-{user}"


def _scheduler(scheduler_name: str) -> str:
    return "kube-scheduler" if scheduler_name == "hived" else f"kube-scheduler-{scheduler_name}"


def _free_port() -> int:
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        port: int = at.getsockname()[1]
        return port
