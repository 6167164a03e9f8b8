"""What Kubernetes adds to explanations: pods that are missing, late or refused, kube-scheduler, foreign pods."""

from __future__ import annotations

from collections.abc import Sequence

from hived.cluster.explain.reasons import BadHardware, NotAsked, NotSuggested, PodsMissing, Reason
from hived.cluster.explain.sentences import MAX_NAMED
from hived.engine.explaining import Explainer
from hived.engine.states import JobState
from hived.engines.kubernetes.pods import keys
from hived.words import plural

from .gang import Gang, PodEntry
from .gang_table import REJECTED_S, GangTable


class GangExplainer(Explainer[Gang]):
    """Explains gangs and pods. Reasons cost O(log gangs): the core's are those of its last answer."""

    def __init__(self, jobs: GangTable) -> None:
        super().__init__(jobs)
        self._jobs: GangTable = jobs

    def say(self, reason: Reason) -> str:
        """See :meth:`Explainer.say`; with the terms of Kubernetes for nodes."""
        match reason:
            case NotSuggested():
                return (
                    f"kube-scheduler takes {reason.suggested:,} of the cluster's nodes for it (taints, selectors, CPU, "
                    "memory), and it does not fit on those alone"
                )
            case BadHardware():
                nodes = ", ".join(f"{name} ({self._why_bad(name)})" for name in reason.nodes[:MAX_NAMED])
                more = f" and {reason.more:,} more nodes" if reason.more else ""
                return f"it would fit if {reason.leaf_cells:,} GPUs were not kept from jobs, on {nodes}{more}"
        return super().say(reason)

    def _why_bad(self, node: str) -> str:
        nodes = self._jobs.nodes
        return nodes.bad_nodes.get(node) or "; ".join(nodes.bad_parts(node)) or "some of its GPUs"

    def _by(self, job: Gang) -> list[str]:
        return []  # who has submitted a pod, Kubernetes does not tell

    def _before_line(self, job: Gang) -> Sequence[Reason]:
        if not job.complete:
            return [PodsMissing(len(job.pods), job.size, job.held_back)]
        if not job.asked:
            pod = next(iter(job.pods.values())).pod
            return [NotAsked(pod.spec.scheduler_name or "default-scheduler", next(iter(pod.turned_down), ""))]
        return ()

    def _waits_on(self, job: Gang, at: float | None) -> list[str]:
        nodes = self._jobs.rejections.get(job.family, {}).items()
        said = [f"{node} is avoided for up to {REJECTED_S:g} s: {why}" for node, (_, why) in nodes]
        if job.part_of is not None and job.barred:
            near = f"the {job.part_of.ask.within}" if job.part_of.ask.within else "nodes of the kind"
            said.append(
                f"it has to be in {near} of the pods of {job.part_of.name} that run; if those are deleted too, all of "
                "it is placed anew"
            )
        return said

    def held_up(self, job: Gang) -> list[str]:
        """See :meth:`Explainer.held_up`: pods that are not on their nodes yet. O(its pods)."""
        lines = []
        if waiting := [entry for entry in job.pods.values() if not entry.bound]:
            lines.append(f"{len(waiting)} of its {len(job.pods)} pods are not on their nodes yet: {_some(waiting)}")
        if job.all_pods < job.size:
            lines.append(f"{job.size - job.all_pods} of its {job.size} pods do not exist (any more)")
        if job.rest is not None:
            late = list(job.rest.pods.values())
            lines.append(f"{len(late)} of its {job.size} pods wait for a place ({_some(late)}):")
            lines += self.shortly(job.rest)
        return lines

    def _beside(self, job: Gang) -> list[str]:
        """Foreign pods that may share GPUs with it. O(its pods)."""
        nodes, foreign = dict.fromkeys(node for node, _ in job.devices()), self._jobs.foreign.on
        here = (pod for node in nodes for pod in foreign.get(node, {}).values() if pod.short)
        return [f"{pod} of {pod.node} and may share some with it: {self._jobs.conflicts[pod.uid]}" for pod in here]

    def _stops(self, job: Gang, at: float | None) -> list[str]:
        """How far its eviction is."""
        at = job.evict_at if at is None else at
        if job.evict_from is None:
            return [f"{job.reason}: its pods are told to go in {max(0.0, job.evict_at - at):.1f} s"]
        stay = [entry for entry in job.pods.values() if entry.bound and not entry.evicted and not entry.terminating]
        if not stay:
            return [f"{job.reason}: its pods are being deleted"]
        refused = f"the eviction of {_some(stay)} was refused (a disruption budget, mostly), and is tried again"
        return [f"{job.reason}: {refused}"]

    def _ended(self, job: Gang) -> list[str]:
        return ["its pods ended by themselves" if job.finished else "its pods were evicted or deleted"]

    def explain_pod(self, entry: PodEntry, at: float | None) -> list[str]:
        """A headline and lines about a pod and its gang."""
        gang = entry.gang
        if gang is None:
            return [f"{entry.key} cannot be scheduled:", str(entry.refused or "it is not known what it asks for")]
        lines = self.explain(gang, at)
        if (place := entry.given) is not None:
            gpus = ", ".join(map(str, place.leaf_cells))
            state = "is" if entry.bound else "is to be"
            lines.append(f"{entry.key} {state} on {place.node}, with {plural(len(place.leaf_cells), 'GPU')} {gpus}")
        elif entry.bound:
            lines.append(
                f"{entry.key} is on {entry.pod.spec.node_name}, on devices that the spec does not have (any more)"
            )
        elif gang.state is JobState.RUNNING:
            why = f"other pods have all {gang.ask.size} places of its group ({_size_source(entry)})"
            if None in gang.slots:
                why = "the GPUs that its group has left are not as many, or a pod of no group may be using them"
            lines.append(f"{entry.key} waits: {why}")
        return lines


def _size_source(entry: PodEntry) -> str:
    """The field that gives the number of pods of a pod's group."""
    if entry.pod.annotation(keys.POD_SPEC) is not None:
        return f"affinityGroup.members of annotation {keys.POD_SPEC}"
    if entry.pod.label(keys.GROUP_SIZE) is not None:
        return f"label {keys.GROUP_SIZE}"
    return f"pods of {entry.ask.title or entry.ask.group}" if entry.ask is not None and entry.ask.owner else "one pod"


def _some(entries: Sequence[PodEntry]) -> str:
    names = ", ".join(entry.key for entry in entries[:MAX_NAMED])
    return names + (f" and {len(entries) - MAX_NAMED} more" if len(entries) > MAX_NAMED else "")
