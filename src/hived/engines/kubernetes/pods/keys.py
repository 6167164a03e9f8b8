"""Names under which pods and nodes say things to HiveD, and HiveD to them: upstream's annotations, and plain labels."""

from __future__ import annotations

_UPSTREAM = "hivedscheduler.microsoft.com"
_OURS = "hived.io"

#: annotation of a pod: what it asks for, as YAML
POD_SPEC = f"{_UPSTREAM}/pod-scheduling-spec"
#: annotation of a bound pod: its device indices, ``0,1``, for NVIDIA_VISIBLE_DEVICES
ISOLATION = f"{_UPSTREAM}/pod-leaf-cell-isolation"
#: the same under its former name, still found on pods that run for long
FORMER_ISOLATION = f"{_UPSTREAM}/pod-gpu-isolation"
#: annotation of a bound pod: where its whole group is, as YAML
BIND_INFO = f"{_UPSTREAM}/pod-bind-info"
#: resource that says "schedule me", without a number of devices
ENABLE = f"{_UPSTREAM}/pod-scheduling-enable"

#: resource that counts devices, of nodes that need not advertise it
GPU = f"{_OURS}/gpu"
#: resources that count devices: the first that a pod has says how many it wants
GPU_RESOURCES = (GPU, "nvidia.com/gpu", "amd.com/gpu")

#: label of a pod: its virtual cluster
VC = f"{_OURS}/vc"
#: label: -1 or ``opportunistic``, 0 (the default) to 1000
PRIORITY = f"{_OURS}/priority"
#: label: name of the gang, within the namespace; without: the pod's owner, if that is a job of known size
GROUP = f"{_OURS}/group"
#: label: pods of the gang; without: as the owner says, else 1
GROUP_SIZE = f"{_OURS}/group-size"
#: label: ``false``: every pod is a group of its own, whatever owns it
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

#: labels by which a pod says what it asks for
LABELS = (
    VC, PRIORITY, GROUP, GROUP_SIZE, GANG, LEAF_CELL_TYPE, PINNED_CELL, WITHIN, LAZY_PREEMPTION, MODE,
)  # fmt: skip
#: what all of them begin with
PREFIX = f"{_OURS}/"

#: labels that the JobSet controller gives all pods of a JobSet
JOBSET, JOBSET_UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"

#: label that HiveD changes on a pod that was told to wait and can go now: kube-scheduler looks at it again
TURN = f"{_OURS}/turn"
#: label of the service's own pod: ``leader`` or ``standby``
ROLE = f"{_OURS}/role"
#: annotation of an Event: what tells it from others for the same reason
SUMMARY = f"{_OURS}/gist"
#: annotation of a node: device indices that are kept from jobs, ``0,3``
BAD_DEVICES = f"{_OURS}/bad-devices"
