"""Labels, annotations and resources that HiveD reads and writes: upstream's annotations, and plain labels."""

from __future__ import annotations

_UPSTREAM = "hivedscheduler.microsoft.com"
_OURS = "hived.io"

#: annotation of a pod: its request, as YAML
POD_SPEC = f"{_UPSTREAM}/pod-scheduling-spec"
#: annotation of a bound pod: its device indices, ``0,1``, for NVIDIA_VISIBLE_DEVICES
ISOLATION = f"{_UPSTREAM}/pod-leaf-cell-isolation"
#: prefix of annotations of a bound pod of several containers with GPUs, with the name of each: its share, ``0``
CONTAINER_DEVICES = f"devices.{_OURS}/"
#: the former name of the isolation, still found on long-running pods
FORMER_ISOLATION = f"{_UPSTREAM}/pod-gpu-isolation"
#: annotation of a bound pod: the placement of its whole group, as YAML
BIND_INFO = f"{_UPSTREAM}/pod-bind-info"
#: resource that asks for HiveD, without a number of devices
ENABLE = f"{_UPSTREAM}/pod-scheduling-enable"

#: resource that counts devices, of nodes that need not advertise it
GPU = f"{_OURS}/gpu"
#: resources that count devices; of several, the largest number counts
GPU_RESOURCES = (GPU, "nvidia.com/gpu", "amd.com/gpu")

#: label of a pod: its virtual cluster
VC = f"{_OURS}/vc"
#: label: -1 or ``opportunistic``, 0 (the default) to 1000
PRIORITY = f"{_OURS}/priority"
#: label: name of the gang, within the namespace; default: the pod's owner, if that is a job of known size
GROUP = f"{_OURS}/group"
#: label: number of pods of the gang; default: as the owner defines it, else 1
GROUP_SIZE = f"{_OURS}/group-size"
#: label: ``false``: every pod is a group of its own, whatever its owner
GANG = f"{_OURS}/gang"
#: label: device type
LEAF_CELL_TYPE = f"{_OURS}/leaf-cell-type"
#: label: id of a pinned cell
PINNED_CELL = f"{_OURS}/pinned-cell"
#: label: cell type that has to hold the whole gang
WITHIN = f"{_OURS}/within"
#: label: ``true``: when preempted by its own VC, runs on as opportunistic while it can
LAZY_PREEMPTION = f"{_OURS}/lazy-preemption"

#: label: ``guaranteed``, ``opportunistic``, or ``either``: guaranteed at its turn, and on a loan before that
MODE = f"{_OURS}/mode"

#: labels of a pod's request
LABELS = (
    VC, PRIORITY, GROUP, GROUP_SIZE, GANG, LEAF_CELL_TYPE, PINNED_CELL, WITHIN, LAZY_PREEMPTION, MODE,
)  # fmt: skip
#: their common prefix
PREFIX = f"{_OURS}/"

#: labels that the JobSet controller gives all pods of a JobSet
JOBSET, JOBSET_UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"

#: label that HiveD changes on a waiting pod that can be bound now, so that kube-scheduler retries it
TURN = f"{_OURS}/turn"
#: label of the service's own pod: ``leader`` or ``standby``
ROLE = f"{_OURS}/role"
#: annotation of an Event: distinguishes it from others for the same reason
SUMMARY = f"{_OURS}/gist"
#: annotation of a node: device indices that are kept from jobs, ``0,3``
BAD_DEVICES = f"{_OURS}/bad-devices"
