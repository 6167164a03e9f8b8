"""``hived serve kubernetes`` as a process of its own, with the rights of ``deploy/`` only."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import yaml

from .cluster import Api, RefusedError
from .deployed import deployed
from .plane import ControlPlane
from .warm import WarmProcess

PATIENCE_S = 120.0
TOKEN = "a-token-that-everybody-knows-0123456789"


def grant(api: Api, users: Iterable[str] = ("hived", "hived-standby")) -> None:
    """Give these users the rights that the manifests give the service's account, and no others."""
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in users]
    for document in deployed():
        kind, metadata = document["kind"], document["metadata"]
        if not document["apiVersion"].startswith("rbac.") or metadata["name"] != "hived":
            continue  # the other rights are kube-scheduler's
        if kind.endswith("Binding"):
            document["subjects"] = subjects
        home = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
        if home:
            _make(api, "/api/v1/namespaces", {"metadata": {"name": metadata["namespace"]}})
        plural = f"{kind.lower()}s"
        _make(api, f"/apis/rbac.authorization.k8s.io/v1/{home}{plural}", document)


def _make(api: Api, path: str, body: Any) -> None:
    try:
        api("POST", path, body)
    except RefusedError as error:
        if error.reason != "AlreadyExists":
            raise


class Service:
    """The process of the service. Its port stays the same across starts, so that kube-scheduler finds it again."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        spec: dict[str, Any],
        user: str = "hived",
        port: int = 0,
        authority: Path | None = None,
        warm: bool = False,
    ) -> None:
        """``port`` 0: a free one. ``authority``: the CA of its certificate. ``warm``: see :mod:`.warm`."""
        self.plane = plane
        self.warm = warm
        self.token = TOKEN
        self.spec_file = folder / "spec.yaml"
        self.write_spec(spec)
        (folder / "token").write_text(TOKEN)
        self._token_file = folder / "token"
        self._log = folder / f"{user}.log"
        self._user = user
        with socket.socket() as at:
            at.bind(("127.0.0.1", port))
            self.port: int = at.getsockname()[1]
        self.url = f"http{'s' if authority is not None else ''}://127.0.0.1:{self.port}"
        self.extender = f"{self.url}/v1/extender"
        self.process: subprocess.Popen[bytes] | WarmProcess | None = None
        self.expected: set[str] = set()  #: substrings of errors that are provoked
        self._options: tuple[str, ...] = ()
        self.http = httpx.Client(
            base_url=self.url,
            trust_env=False,
            timeout=PATIENCE_S,
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=ssl.create_default_context(cafile=authority) if authority is not None else True,
        )

    def write_spec(self, spec: dict[str, Any] | str) -> None:
        """Replace the spec atomically, as a mounted ConfigMap does."""
        new = self.spec_file.with_suffix(".new")
        new.write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec))
        new.rename(self.spec_file)

    def start(self, *options: str, ready: bool = True, environment: dict[str, str] | None = None) -> Service:
        """Start it; without options, with those of its last start. ``ready``: wait until it is ready."""
        assert self.process is None
        self._options = options or self._options
        command = ["serve", "kubernetes", "--kubeconfig"]
        command += [str(self.plane.kubeconfig(self._user)), "--listen", f"127.0.0.1:{self.port}"]
        command += ["--token-file", str(self._token_file), "--log-format", "json"]
        if not any(option.startswith("--spec") for option in self._options):
            command += ["--spec", str(self.spec_file)]
        command += self._options
        if self.warm:
            self.process = WarmProcess(command, self._log, environment or {})
        else:
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "hived", *command],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **(environment or {})},
                )
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until it is ready."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.is_ready():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"the service does not get ready:\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def is_ready(self) -> bool:
        """The result of a readiness probe."""
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill it, and start it as it was started."""
        self.kill()
        self.start()

    def stop(self) -> int:
        """Stop it as Kubernetes does; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def get(self, path: str, **query: Any) -> Any:
        """An answer of the API."""
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def groups(self) -> dict[str, Any]:
        """All groups by name."""
        found: dict[str, Any] = {}
        following: dict[str, str] = {}
        while True:
            page = self.get("/v1/jobs", limit=1000, **following)
            found |= {group["name"]: group for group in page["jobs"]}
            if page["next"] is None:
                return found
            following = {"page": page["next"]}

    def metric(self, name: str) -> float:
        """The sum over all labels; or the one with all of its labels, ``name{label="value"}``."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def cli(self, *arguments: str, stdin: str = "", token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        """Run ``hived ...`` against it."""
        command = [sys.executable, "-m", "hived", *arguments, "--engine", self.url]
        environment = {**os.environ, "HIVED_TOKEN": token, "COLUMNS": "200"}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)

    def log(self) -> str:
        """Its log."""
        return self._log.read_text(errors="replace")

    def bugs(self) -> list[str]:
        """Unexpected error lines of its log."""
        found = []
        for line in self.log().splitlines():
            try:
                level = json.loads(line)["level"]
            except (ValueError, KeyError):
                level = "error" if line.strip() else ""
            if level in ("error", "critical") and not any(words in line for words in self.expected):
                found.append(line)
        return found

    def close(self) -> None:
        """Remove everything."""
        self.kill()
        self.http.close()
