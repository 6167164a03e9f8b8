"""Which replica decides, as a label of its pod: the Service leads to that one."""

from __future__ import annotations

import asyncio
import logging

from hived.engines.kubernetes.pods import labels as keys
from hived.engines.kubernetes.pods.objects import Pod

from .api import ApiError, KubeApi
from .paths import api_path

_log = logging.getLogger("hived.kubernetes")


class LeaderLabel:
    """Labels the own pod, given by namespace and name; None: there is none, and nothing is done."""

    def __init__(self, api: KubeApi, own_pod: tuple[str, str] | None) -> None:
        self._api, self._pod = api, own_pod

    async def say(self, role: str) -> None:
        """Label the own pod, so that the Service leads to who decides."""
        if self._pod is None:
            return
        while True:
            try:
                if role == "leader":
                    await self._depose(*self._pod)
                await self._label(*self._pod, role)
            except ApiError as error:
                _log.warning("the own pod cannot be labelled: %s", error)
                await asyncio.sleep(1.0)
            else:
                return

    async def _label(self, namespace: str, pod: str, role: str) -> None:
        await self._api.patch(api_path("pods", namespace, pod), {"metadata": {"labels": {keys.ROLE: role}}})

    async def _depose(self, namespace: str, own: str) -> None:
        """Pods that led before us and could not say any more that they do not."""
        former, _ = await self._api.list(api_path("pods", namespace), Pod, {"labelSelector": f"{keys.ROLE}=leader"})
        for pod in former:
            if pod.metadata.name != own:
                await self._label(namespace, pod.metadata.name, "standby")
