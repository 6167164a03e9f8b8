"""Explain the state of a job: reasons as data, and sentences for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from operator import itemgetter

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Wait
from hived.cluster.explain.reasons import BadHardware, OutOfService, Places, Reason, WaitingForPreemption
from hived.cluster.explain.sentences import MAX_NAMED, in_lines, say
from hived.cluster.requests import Request
from hived.engine.explaining import behind, but_the_line, cells_taken, early_text, why_it_waits
from hived.engine.sentences import place_text
from hived.engine.states import JobState
from hived.scheduling import Entry, Status
from hived.scheduling.scheduler import NON_BLOCKING
from hived.spec.compiled import Device
from hived.words import counted, duration

from .job_scheduler import JobScheduler
from .model import Job

#: jobs before another, at most, for which its cures are looked for
_MOST_BEFORE = 16
#: devices out of service, at most, of which those that would do alone are looked for
_MOST_TRIED = 16


def reasons(job_scheduler: JobScheduler, job: Job) -> tuple[Reason, ...]:
    """Reasons of a waiting job, the most decisive first; () for any other. Decided by the code that will start it.

    Costs one dry run in the core.
    """
    if job.state is JobState.RESERVED:
        return (WaitingForPreemption(job_scheduler.cluster.group(job.name).victims),)
    if job.state is not JobState.QUEUED:
        return ()
    core, lent = _core_reasons(job_scheduler, job), job_scheduler.usage.lent
    return tuple(why_it_waits(job_scheduler.scheduler, job_scheduler.trading, job, core, lent))


def shortly(job_scheduler: JobScheduler, job: Job) -> list[str]:
    """The same as sentences, for lists: a dry run for the head of line only; for any other job, its place in line."""
    if job.state is JobState.BACKOFF:
        return [job.reason]
    if job.state is JobState.RESERVED:
        return in_words(reasons(job_scheduler, job))
    if line := behind(*job_scheduler.scheduler.ahead(job.entry, 3)):
        return [say(line[0])]
    core = but_the_line(_core_reasons(job_scheduler, job), job_scheduler.usage.lent)
    return in_words(core) or ["its turn is about to come"]


def _core_reasons(job_scheduler: JobScheduler, job: Job) -> tuple[Reason, ...]:
    entry = job.entry
    found = job_scheduler.scheduler.awaits(entry).reasons
    return with_cures(job_scheduler, entry.awaited, found, lambda other: other.key < entry.key, entry.excluded)


def with_cures(
    job_scheduler: JobScheduler,
    request: Request,
    found: Iterable[Reason],
    precedes: Callable[[Entry], bool],
    excluded: Collection[str] = (),
) -> tuple[Reason, ...]:
    """The core's reasons of a request, with bad hardware by what it is here: drained, broken, or kept by other jobs.

    Devices are named only if the request would start with them back in service. ``precedes``: whether a waiting job of
    the same VC comes before it. Where hardware is bad it costs a few trials of what would happen.
    """
    others: list[Reason] = [reason for reason in found if not isinstance(reason, BadHardware)]
    if any(isinstance(reason, BadHardware) for reason in found):
        others.append(_out_of_service(job_scheduler, request, _before(job_scheduler, request, precedes), excluded))
    return tuple(others)


def _before(job_scheduler: JobScheduler, request: Request, precedes: Callable[[Entry], bool]) -> list[Entry]:
    """Jobs that may take the devices that a request waits for first, in the order in which they have their turns.

    Those of its own line before it, and of other VCs those that are looked at earlier: for turns before loans, and VC
    by VC. Of another VC the first in line alone, :data:`_MOST_BEFORE`.
    """
    vcs = {vc.name for vc in job_scheduler.cluster.spec.virtual_clusters}
    places = {vc: number for number, vc in enumerate(job_scheduler.scheduler.queues) if vc in vcs}
    own = request.opportunistic, places.get(request.vc, -1)
    found: dict[tuple[bool, int], list[Entry]] = {}
    for job in job_scheduler.jobs.values():
        entry = job.entry
        on_loan = entry.status in (Status.LENT, Status.MOVING) and entry.place_in is not None
        if (job.state is JobState.QUEUED or on_loan) and job.vc in places:
            line = entry.awaited.opportunistic, places[job.vc]
            # which VC has the next loan is a matter of shares
            if precedes(entry) if line == own else line < own or (line[0] and own[0]):
                found.setdefault(line, []).append(entry)
    for line, entries in found.items():
        entries.sort(key=lambda entry: entry.key)
        if line != own:
            del entries[_MOST_BEFORE:]
    return [entry for line in sorted(found) for entry in found[line]]


def _blocks(cluster: Cluster, entry: Entry) -> bool:
    """Have a job take its turn, as it would in its line; whether those behind it wait with it, or until it has left."""
    if entry.holds:
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


def _out_of_service(
    job_scheduler: JobScheduler, request: Request, before: Sequence[Entry], excluded: Collection[str]
) -> OutOfService:
    health = job_scheduler.health
    causes: dict[str, Collection[Device]] = {"drained": health.drained, "broken": health.bad, "kept": health.claimed}
    kept = {place: {cause for cause, places in causes.items() if place in places} for place in health.bad_devices}

    def would_start(places: Collection[Device]) -> bool:
        """Try it with these devices healthy, and once those before it have had their turn."""
        cluster, held_up = job_scheduler.cluster, set()
        with cluster.what_if():
            for node, device in places:
                cluster.set_device_health(node, device, healthy=True)
            for entry in (*(job.entry for job in job_scheduler.reserved()), *before):
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
                    job_scheduler.jobs[number].name
                    for number, pods in job_scheduler.beyond.items()
                    if any((pod.node, device) in places for pod in pods for device in pod.leaf_cells)
                ]
                return OutOfService(at["drained"], at["broken"], at["kept"], tuple(holders))
    return OutOfService((), (), (), (), tuple(alike[:MAX_NAMED]))


def _by_node(places: Iterable[Device]) -> Places:
    return tuple((node, tuple(device for _, device in of)) for node, of in groupby(places, key=itemgetter(0)))


def in_words(found: Iterable[Reason]) -> list[str]:
    """Reasons as sentences."""
    return [say(reason) for reason in found]


def explain(job_scheduler: JobScheduler, job: Job, at: float) -> str:
    """The state of a job at time ``at``, as lines for people."""
    if job.state.ended:
        return ended_text(job)
    if job.state.holds:
        return in_lines(_running(job_scheduler, job))
    if job.state is JobState.BACKOFF:
        left = max(0.0, (job.retry_at or at) - at)
        tried = f"try {job.retries + 1} of {job.spec.retries + 1}"
        return in_lines([f"{job.name} failed: {job.reason}", f"it is queued again in {duration(left)} ({tried})"])
    lines = in_words(reasons(job_scheduler, job)) or ["its turn is about to come"]
    if job.reason and job.state is JobState.QUEUED and job.displaced_by is None:
        lines.append(job.reason)
    return in_lines([f"{job.name} waits, for {duration(at - job.since)} now:", *lines])


def _running(job_scheduler: JobScheduler, job: Job) -> list[str]:
    if job.id in job_scheduler.beyond:
        lines = _beyond(job_scheduler, job)
    else:
        lines = job_scheduler.cluster.explained(job.name, by_rank(job.spec.tasks))
        if job.state is JobState.RUNNING and not job.guaranteed and not job.spec.opportunistic:
            if job.reason:
                lines.append(f"why: {job.reason}")
            if job.spec.early or job.entry.place_in is not None:
                lines.append(early_text(job_scheduler.scheduler, job.entry))
    if job.guaranteed:
        lines += cells_taken(job_scheduler.trading, job.vc)
    lines += held_up(job_scheduler, job)
    if job.state is JobState.STOPPING:
        lines.append(f"it is being stopped ({job.reason}); it has {job_scheduler.grace_s(job):g} s for that")
    if job.resumes:
        times = "once" if job.resumes == 1 else f"{job.resumes} times"
        lines.append(f"it was preempted {times} before")
    return lines


def held_up(job_scheduler: JobScheduler, job: Job) -> list[str]:
    """Why a job that has its GPUs does not run yet, or not all of it, as sentences."""
    if not job_scheduler.held_up:
        return []
    why = {rank: job_scheduler.held_up.get((job.id, job.attempt, rank)) for rank in range(job.spec.tasks)}
    return [
        f"{'it' if job.spec.tasks == 1 else f'task {rank}'} cannot be started yet, and is tried again ({text})"
        for rank, text in why.items()
        if text is not None
    ][:MAX_NAMED]


def _beyond(job_scheduler: JobScheduler, job: Job) -> list[str]:
    """The placement of a job that holds devices which the core cannot attribute to it."""
    assert job.placement is not None
    kept = place_text({"pods": job_scheduler.beyond[job.id]})
    own = "" if job.spec.opportunistic else "; it asked to be guaranteed, and is again once a spec has them for its VC"
    return [
        f"{job.name} runs on {counted(job.gpus, 'GPU')}:",
        *(f"on {place_text({'pods': [pod]})}" for pod in job.placement.pods),
        f"opportunistic: the spec of now lacks {kept}{own}",
        "it keeps them, and nobody else is given them while it runs",
    ]


def by_rank(tasks: int) -> Callable[[int], str]:
    """The prefix of each pod's place: its rank, or none for a single task."""
    return lambda number: "on " if tasks == 1 else f"task {number - 1}: "


def ended_text(job: Job) -> str:
    """The sentence about a job that has ended."""
    ran = f" after {duration(job.ended_at - job.submitted_at)}" if job.ended_at is not None else ""
    why = f": {job.reason}" if job.reason and job.reason != job.state.value else ""
    again = f"; it was started {job.attempt} times" if job.attempt > 1 else ""
    return f"{job.name} {'was ' if job.state.value == 'cancelled' else ''}{job.state.value}{ran}{why}{again}"
