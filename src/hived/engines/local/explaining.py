"""What one machine adds to explanations: hardware out of service and its cures, tasks that cannot start, retries."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from operator import itemgetter

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Wait
from hived.cluster.explain.reasons import (
    BadHardware,
    Fragmented,
    NeverFits,
    NothingIdle,
    OutOfService,
    Places,
    Reason,
    VcExhausted,
    WaitingForGang,
    WaitingForPreemption,
)
from hived.cluster.explain.sentences import MAX_NAMED, exhausted
from hived.cluster.requests import Request
from hived.engine.explaining import Explainer, behind
from hived.engine.sentences import place_text
from hived.engine.states import JobState
from hived.policies.antman.guest_scheduler import GuestScheduler
from hived.scheduling import Entry, Status
from hived.scheduling.scheduler import NON_BLOCKING
from hived.spec.compiled import Device
from hived.words import counted, duration

from .job_scheduler import JobScheduler
from .model import DEFAULT_GRACE_S, Job

#: what jobs consist of on Kubernetes
_POD = re.compile(r"\bpod(?=s?\b)")
#: jobs before another, at most, for which its cures are looked for
_MOST_BEFORE = 16
#: devices out of service, at most, of which those that would do alone are looked for
_MOST_TRIED = 16

#: causes by which GPUs are out of service that one sentence names
_CAUSES = 3


class JobExplainer(Explainer[Job]):
    """Explains the jobs of one machine."""

    def __init__(self, jobs: JobScheduler, tasks: int = 1, read_by: Callable[[Job], str] = lambda _: "") -> None:
        """``tasks``: of a request that is planned.

        ``read_by``: who beside its owner may read what a job prints, as a sentence; "": nobody.
        """
        super().__init__(jobs)
        self._read_by = read_by
        self._jobs: JobScheduler = jobs
        self.pod = _by_rank(tasks)

    def say(self, reason: Reason) -> str:
        """See :meth:`Explainer.say`; of a broken or drained GPU also what is wrong with it, and who says so."""
        if isinstance(reason, VcExhausted):
            return self._exhausted(reason)
        if isinstance(reason, WaitingForGang | Fragmented | NeverFits):
            return _POD.sub("task", super().say(reason))
        if isinstance(reason, WaitingForPreemption):
            are = "is" if len(reason.victims) == 1 else "are"
            return f"{super().say(reason)}, which {are} being stopped for it"
        if isinstance(reason, NothingIdle):
            return super().say(reason) + self._without_bad(reason.need)
        if not isinstance(reason, OutOfService) or not (out := reason.broken or reason.drained):
            return super().say(reason)
        whose = self._whose((node, device) for node, devices in out for device in devices)
        if len(whose) == 1:
            return f"{super().say(reason)}: {next(iter(whose))}"
        return super().say(reason) + (f": {_of_each(whose)}" if whose else "")

    def _whose(self, places: Iterable[Device]) -> dict[str, list[Device]]:
        """Devices that take no jobs, by what is wrong with them: ``drained by dana: a fan``."""
        health = self._jobs.health
        found: dict[str, list[Device]] = {}
        for place in places:
            is_drained = place in health.drained and place not in health.bad
            if why := f"drained {health.drained_by(place).text}".rstrip() if is_drained else health.why(place):
                found.setdefault(why, []).append(place)
        return {why: at for why, at in found.items() if why != "drained"}

    def _without_bad(self, need: int) -> str:
        """What is said of a job for which too few GPUs are left while some are drained or broken."""
        bad = sorted(self._jobs.health.bad_devices)
        if not bad or need <= self._jobs.cluster.spec.gpus - len(bad):
            return ""
        takes = "takes" if len(bad) == 1 else "take"
        where = _of_each(self._whose(bad)) or place_text({"pods": _by_node(bad)})
        return f"; not before {counted(len(bad), 'GPU')} that {takes} no jobs now can be used again: {where}"

    def _exhausted(self, reason: VcExhausted) -> str:
        """With the GPUs that cannot be used any more once those who hold them have given them back, and why not."""
        health, by_name = self._jobs.health, self._jobs.scheduler.by_name
        held = [self._jobs.job(by_name[name].number) for name, _ in reason.held_by if name in by_name]
        lost = sorted(place for job in held for place in job.devices() if place in health.bad_devices)
        why = [
            f"drained {health.drained_by(at).text}".rstrip() if at in health.drained else health.why(at) for at in lost
        ]
        where = f"{place_text({'pods': _by_node(lost)})}: {'; '.join(dict.fromkeys(filter(None, why)))}"
        return exhausted(reason, len(lost), where)

    def _of_core(self, job: Job) -> tuple[Reason, ...]:
        """By the code that will start it: a dry run in the core."""
        entry = job.entry
        found = self._jobs.scheduler.diagnose(entry).reasons
        return self.with_cures(entry.awaited, found, lambda other: other.key < entry.key, entry.excluded)

    def _briefly(self, job: Job) -> Sequence[Reason]:
        """A dry run for the head of line only; of any other job its place in line."""
        if job.state is JobState.RESERVED:
            return self.reasons(job)
        return behind(*self._jobs.scheduler.blocking(job.entry, 3)) or self.but_the_line(self._of_core(job))

    def _aside(self, job: Job, at: float | None) -> list[str]:
        if job.held_by_hand:
            why = job.reason if job.reason.startswith("by ") else f": {job.reason}"
            return [
                f"it is kept out of line{' ' * (why[0] != ':')}{why}",
                f"hived release {job.name}{self._by_whom(job)} lets it into line",
            ]
        if job.state is not JobState.BACKOFF or at is None:
            own = "hived cancel or hived requeue, of another guaranteed job of theirs, makes room for it"
            return super()._aside(job, at) + [own] * job.reason.startswith("maxGpus")
        left = max(0.0, (job.retry_at or at) - at)
        tried = f"try {job.retries + 1} of {job.spec.retries + 1}"
        return [f"it failed: {job.reason}", f"it is queued again in {duration(left)} ({tried})"]

    def _by_whom(self, job: Job) -> str:
        """Who may release a job, where somebody else holds it than its owner."""
        return f", by an admin of {job.vc} or an operator," if job.held_by not in ("", job.spec.user) else ""

    def turns(self, job: Job) -> list[str]:
        """See :meth:`Explainer.turns`; before it starts: who is on its GPUs yet."""
        yet = self._jobs.turns.in_the_way(job)
        names = ", ".join(other.name for other in yet[:MAX_NAMED])
        return [f"it starts once {names} {'has' if len(yet) == 1 else 'have'} paused"] if yet else super().turns(job)

    def _to_pause(self, job: Job) -> list[str]:
        """Those of its VC that are to pause for others, and have not yet."""
        turns, jobs = self._jobs.turns, self._jobs.jobs
        names = [jobs[number].name for number in sorted(turns.told_to_pause) if jobs[number].vc == job.vc]
        shown = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
        has = "has" if len(names) == 1 else "have"
        return [f"{shown} {has} been told to pause, and {has} not yet"] if names else []

    def _about(self, job: Job) -> str:
        extension = self._jobs.scheduler.extension
        if not isinstance(extension, GuestScheduler) or not job.entry.guest:
            return super()._about(job)
        busy, memory = extension.obstacles(job.entry)
        why = [f"{counted(busy, 'GPU')} {'is' if busy == 1 else 'are'} used too much, or not measured yet"] * bool(busy)
        why += [f"{counted(memory, 'GPU')} {'has' if memory == 1 else 'have'} too little memory left"] * bool(memory)
        return f"no GPU has room for it as a guest: {', '.join(why)}" if why else super()._about(job)

    def _placed(self, job: Job) -> list[str]:
        left = self._jobs.beyond.get(job.id)
        if self._jobs.takes_turns(job):
            turns = "runs" if self._jobs.guests is not None else f"takes turns on GPUs of {job.vc}"
            return [f"{job.name} {turns}:", *self._on(job), *self._to_pause(job)]
        if left is None:
            return self._jobs.cluster.explained(job.name, _by_rank(job.size))
        assert job.placement is not None
        again = "; it asked to be guaranteed, and is again once a spec has them for its VC"
        asked = "" if job.spec.opportunistic else again
        return [
            f"{job.name} runs on {counted(job.gpus, 'GPU')}:",
            *self._on(job),
            f"opportunistic: the spec of now lacks {place_text({'pods': left})}{asked}",
            "it keeps them, and nobody else is given them while it runs",
        ]

    def _on(self, job: Job) -> list[str]:
        assert job.placement is not None
        return [f"on {place_text({'pods': [pod]})}" for pod in job.placement.pods]

    def held_up(self, job: Job) -> list[str]:
        """See :meth:`Explainer.held_up`: tasks that cannot be started yet."""
        if not self._jobs.held_up or not job.holds:
            return []
        why = {rank: self._jobs.held_up.get((job.id, job.attempt, rank)) for rank in range(job.size)}
        return [
            f"{'it' if job.size == 1 else f'task {rank}'} cannot be started yet, and is tried again ({text})"
            for rank, text in why.items()
            if text is not None
        ][:MAX_NAMED]

    def _keeps(self, victim: Job, vc: str) -> str:
        extension, pauses = self._jobs.scheduler.extension, self._jobs.probe.knows(victim.id)
        if isinstance(extension, GuestScheduler) and pauses and extension.accepts(victim.entry, vc):
            return "it goes on as a guest"
        signal = victim.spec.checkpoint_signal
        return f"it is told by SIG{signal} to save its state" if signal else ""

    def _takes(self, victim: Job) -> list[str]:
        """See :meth:`Explainer._takes`: its grace, where that is longer than most have."""
        grace = self._jobs.grace_s(victim)
        return [f"{victim.name} has up to {duration(grace)} to end"] if grace > DEFAULT_GRACE_S else []

    def _beside(self, job: Job) -> list[str]:
        times = "once" if job.resumes == 1 else f"{job.resumes} times"
        alone = job.entry.alone and job.spec.share is not False
        apart = ["it does not pause for others of its VC, and has its GPUs for itself"] if alone else []
        why = f", last: {job.stopped_why}" if job.stopped_why else ""
        return apart + ([f"it was stopped and queued again {times} before{why}"] if job.resumes else [])

    def _by(self, job: Job) -> list[str]:
        """Who has submitted it, and who else may read what it prints."""
        return [*super()._by(job), *filter(None, (self._read_by(job),))]

    def _stops(self, job: Job, at: float | None) -> list[str]:
        first = self._jobs.first_signal(job)
        saves = "" if first == "TERM" else f", and was told by SIG{first} to save its state"
        return [f"it is being stopped ({job.reason}); it has {self._jobs.grace_s(job):g} s for that{saves}"]

    def _ended(self, job: Job) -> list[str]:
        return [f"it was started {job.attempt} times"] if job.attempt > 1 else []

    def with_cures(
        self,
        request: Request,
        found: Iterable[Reason],
        precedes: Callable[[Entry], bool],
        excluded: Collection[str] = (),
    ) -> tuple[Reason, ...]:
        """The core's reasons of a request, with bad hardware by what it is here: drained, broken, or kept by others.

        Devices are named only if the request would start with them back in service. ``precedes``: whether a waiting job
        of the same VC comes before it. Where hardware is bad it costs a few trials of what would happen.
        """
        others: list[Reason] = [reason for reason in found if not isinstance(reason, BadHardware)]
        if any(isinstance(reason, BadHardware) for reason in found):
            others.append(self._out_of_service(request, self._before(request, precedes), excluded))
        return tuple(others)

    def _before(self, request: Request, precedes: Callable[[Entry], bool]) -> list[Entry]:
        """Jobs that may take the devices that a request waits for first, in the order in which they have their turns.

        Those of its own line before it, and of other VCs those that are looked at earlier: for turns before loans, and
        VC by VC. Of another VC the first in line alone, :data:`_MOST_BEFORE`.
        """
        vcs = {vc.name for vc in self._jobs.cluster.spec.virtual_clusters}
        places = {vc: number for number, vc in enumerate(self._jobs.scheduler.queues) if vc in vcs}
        own = request.opportunistic, places.get(request.vc, -1)
        found: dict[tuple[bool, int], list[Entry]] = {}
        for job in self._jobs.jobs.values():
            entry = job.entry
            on_loan = entry.status in (Status.LENT, Status.MOVING) and entry.place_in is not None
            if (entry.status is Status.WAITING or on_loan) and job.vc in places:
                line = entry.awaited.opportunistic, places[job.vc]
                # which VC has the next loan is a matter of shares
                if precedes(entry) if line == own else line < own or (line[0] and own[0]):
                    found.setdefault(line, []).append(entry)
        for line, entries in found.items():
            entries.sort(key=lambda entry: entry.key)
            if line != own:
                del entries[_MOST_BEFORE:]
        return [entry for line in sorted(found) for entry in found[line]]

    def _out_of_service(self, request: Request, before: Sequence[Entry], excluded: Collection[str]) -> OutOfService:
        health = self._jobs.health
        causes: dict[str, Collection[Device]] = {
            "drained": health.drained,
            "broken": health.bad,
            "kept": health.claimed,
        }
        kept = {place: {cause for cause, places in causes.items() if place in places} for place in health.bad_devices}

        def would_start(places: Collection[Device]) -> bool:
            """Try it with these devices healthy, and once those before it have had their turn."""
            cluster, held_up = self._jobs.cluster, set()
            with cluster.what_if():
                for node, device in places:
                    cluster.set_device_health(node, device, healthy=True)
                for entry in (*(job.entry for job in self._jobs.reserved()), *before):
                    line = entry.vc, entry.awaited.opportunistic
                    if line not in held_up and _blocks(cluster, entry):
                        if line == (request.vc, request.opportunistic):
                            return False
                        held_up.add(line)
                return cluster.plan(request, excluded_nodes=excluded).outcome == "now"

        alike = [entry.name for entry in before if entry.vc == request.vc]
        for number in range(1, len(causes) + 1 if len(alike) <= _MOST_BEFORE else 0):  # the fewest cures first
            for chosen in combinations(causes, number):
                places = sorted(place for place, why in kept.items() if why <= set(chosen))
                if places and would_start(places):
                    for place in list(places) if len(places) <= _MOST_TRIED else ():
                        fewer = [other for other in places if other != place]
                        if would_start(fewer):
                            places = fewer
                    at = {cause: _by_node(place for place in places if cause in kept[place]) for cause in causes}
                    holders = [
                        self._jobs.jobs[number].name
                        for number, pods in self._jobs.beyond.items()
                        if any((pod.node, device) in places for pod in pods for device in pod.leaf_cells)
                    ]
                    return OutOfService(at["drained"], at["broken"], at["kept"], tuple(holders))
        return OutOfService((), (), (), (), tuple(alike[:MAX_NAMED]))


def _blocks(cluster: Cluster, entry: Entry) -> bool:
    """Have a job take its turn, as it would in its line; whether those behind it wait with it, or until it has left."""
    if entry.holds:
        if entry.yields:  # it is being stopped, and the core may have requeued it
            return True
        group = cluster.group(entry.name)
        if entry.status is Status.MOVING or group.preempted_by:
            return True
        if group.guaranteed:  # what it had made room for had its turn elsewhere
            return False
        if (promoted := cluster.promote(entry.request)) is not None:
            return not promoted
        trial = replace(entry.request, group=f"{entry.name} (its turn)")
        found = cluster.plan(trial, excluded_nodes=entry.excluded).reasons
        return not found or not isinstance(found[0], NON_BLOCKING)
    # what it has reserved is of its turn, whatever its VC would be too small for by now
    wanted = entry.request if entry.status is Status.RESERVED else entry.awaited
    decision = cluster.schedule(wanted, excluded_nodes=entry.excluded)
    cluster.commit(decision)
    return isinstance(decision, Wait) and not isinstance(decision.reasons[0], NON_BLOCKING)


def _of_each(whose: Mapping[str, Sequence[Device]]) -> str:
    """Devices with what is wrong with them, as one text."""
    each = [f"{place_text({'pods': _by_node(at)})} {why}" for why, at in whose.items()]
    return "; ".join(each[:_CAUSES]) + ("; ..." if len(each) > _CAUSES else "")


def _by_node(places: Iterable[Device]) -> Places:
    return tuple((node, tuple(device for _, device in of)) for node, of in groupby(places, key=itemgetter(0)))


def _by_rank(tasks: int) -> Callable[[int], str]:
    """The prefix of each pod's place: its rank, or none for a single task."""
    return lambda number: "on " if tasks == 1 else f"task {number - 1}: "
