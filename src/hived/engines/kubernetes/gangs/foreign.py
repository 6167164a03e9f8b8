"""Foreign pods: bound ones that use GPUs and that HiveD did not place, and what is known of their GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from hived.cluster.decisions import Placement
from hived.engines.kubernetes.pods import pod_request
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import named_devices, uses
from hived.words import counted


@dataclass(slots=True)
class ForeignPod:
    """A bound pod of which HiveD knows only its request."""

    uid: str
    key: str  #: ``namespace/name``
    version: str  #: resourceVersion
    node: str
    gpus: int | None  #: number that it requests; None: unknown
    named: tuple[int, ...] | None  #: its devices, if its annotations name them
    kept: tuple[int, ...] = ()  #: devices that are kept from jobs for it
    shared: tuple[int, ...] = ()  #: devices in use that it is assumed to share: no other job gets them
    short: int = 0  #: number of its GPUs that gangs are using, as far as is known

    @property
    def guessed(self) -> bool:
        """Whether the kept devices are a guess: it requests a number and names none."""
        return self.gpus is not None and self.named is None

    def __str__(self) -> str:
        number = "its GPUs" if self.gpus is None else f"{self.gpus:,} of its GPUs"
        return f"pod {self.key}, which HiveD did not place, has {number}"

    @property
    def situation(self) -> str:
        """Its GPUs and the consequence, as a sentence."""
        number = "GPUs, and it is not said how many," if self.gpus is None else counted(self.gpus, "GPU")
        which = f" ({', '.join(map(str, self.kept))})" if self.named is not None else ""
        unknown = " (which ones is not known)" if self.guessed else ""
        return (
            f"it has {number}{which} of {self.node}{unknown}, and HiveD did not place it: "
            "as many are kept from others until it is gone"
        )


class ForeignPods:
    """All foreign pods, by uid and by node. O(1) per change."""

    def __init__(self) -> None:
        #: by uid
        self.pods: dict[str, ForeignPod] = {}
        #: the same by node, the earliest first
        self.on: dict[str, dict[str, ForeignPod]] = {}
        #: nodes of foreign pods where pods were added or removed: kept devices may have to be chosen again
        self.dirty: set[str] = set()
        #: nodes that advertise fewer devices than the spec has
        self.lacking: set[str] = set()

    def add(self, pod: ForeignPod) -> None:
        """Add a foreign pod."""
        self.pods[pod.uid] = pod
        self.on.setdefault(pod.node, {})[pod.uid] = pod
        self.dirty.add(pod.node)

    def remove(self, uid: str) -> ForeignPod | None:
        """Remove and return a foreign pod; None: unknown."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            del self.on[pod.node][uid]
            if not self.on[pod.node]:
                del self.on[pod.node]
            self.mark_dirty(pod.node)
        return pod

    def mark_dirty(self, node: str) -> None:
        """Mark ``node`` dirty if it has foreign pods, or lacks devices."""
        if node in self.on or node in self.lacking:
            self.dirty.add(node)

    def mark_placement_dirty(self, placement: Placement | None) -> None:
        """Mark the nodes of a placement dirty: its gang or pods of it have changed. O(its pods)."""
        if (self.on or self.lacking) and placement is not None:
            for pod in placement.pods:
                self.mark_dirty(pod.node)


def of(pod: Pod) -> ForeignPod | None:
    """The foreign pod that ``pod`` is; None: it is not bound, HiveD schedules it, or it uses no GPUs."""
    node = pod.spec.node_name
    if not node or pod.ended or pod_request.concerns(pod):
        return None
    some, gpus = uses(pod)
    version = pod.metadata.resource_version
    return ForeignPod(pod.metadata.uid, pod.key, version, node, gpus, named_devices(pod, gpus)) if some else None
