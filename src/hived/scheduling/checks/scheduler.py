"""The check of a scheduler."""

from __future__ import annotations

from math import inf

from hived.cluster.states import GroupState
from hived.errors import ensure
from hived.scheduling.exact.scheduler import ExactScheduler
from hived.scheduling.exact.timeline import VirtualTimeline
from hived.scheduling.queue import Entry, Key, Queue
from hived.scheduling.scheduler import Scheduler
from hived.scheduling.states import GUARANTEED, LENT, MOVING, RESERVED, WAITING

from .indexes import check_heads, check_running


def check_scheduler(scheduler: Scheduler) -> None:
    """Check a scheduler against the statuses of its jobs, its cluster, and its timeline. O(jobs + cluster)."""
    _check_queues(scheduler)
    if isinstance(scheduler, ExactScheduler) and scheduler.timeline is not None:
        _check_timeline(scheduler.timeline)
        _check_following(scheduler, scheduler.timeline)


def _check_queues(scheduler: Scheduler) -> None:
    scheduler.cluster.validate()
    groups = set(scheduler.cluster.groups())
    if scheduler._running is not None:
        entries = [entry for entry in scheduler.jobs.values() if entry.holds]
        check_running(scheduler._running, {e for e in entries if e.policy is not None and e.policy.preempts})
    if scheduler._extension is not None:
        scheduler._extension.validate()
    ensure(sum(map(len, scheduler._of_vc.values())) == len(scheduler.jobs), "jobs by VC")
    _check_use(scheduler)
    lines: dict[str, list[Entry]] = {vc: [] for vc in scheduler.queues}
    backlogs: dict[Queue, list[Entry]] = {q: [] for qs in scheduler.queues.values() for q in (qs.backlog, qs.outsized)}
    for number, entry in scheduler.jobs.items():
        ensure(entry.number == number and scheduler.by_name[entry.name] is entry, f"{entry} by number and name")
        ensure(scheduler._of_vc[entry.vc].get(number) is entry, f"{entry} among the jobs of its VC")
        if entry.name in scheduler.evicted:
            ensure(entry.holds and entry.yields and entry.name not in groups, f"{entry} is being stopped")
        elif entry.holds:
            core = scheduler.cluster.group(entry.name)
            ensure(core.guaranteed is (entry.status is GUARANTEED), f"{entry} holds what its status says")
            ensure(core.state is not GroupState.PREEMPTING, f"{entry} waits for nobody")
            at = [placement and placement.pods for placement in (core.placement, entry.placement)]
            ensure(at[0] == at[1], f"{entry} is where it is")
        elif not scheduler._explains:
            ensure(entry.name not in groups, f"{entry} holds nothing")
        ensure((number in scheduler.reserved) is (entry.status is RESERVED), f"{entry} is among those reserved")
        if entry.status is RESERVED and not scheduler._regains:
            ensure(not scheduler._reservation_changed(entry), f"{entry} waits for its victims where it does")
        if entry.status is WAITING:
            if entry.line is not None:
                lines[entry.vc].append(entry)
            if entry.backlog is not None and not entry.guest:
                backlogs[entry.backlog].append(entry)
        elif entry.status in (LENT, MOVING) and entry.place_in is not None:
            lines[entry.vc].append(entry)
    for vc, entries in lines.items():
        line = scheduler.queues[vc].line
        ensure(sorted(entries, key=_by_key) == list(line), f"the line of {vc}: {entries} {list(line)}")
        ensure(line.gpus == sum(entry.view.gpus for entry in entries), f"GPUs in the line of {vc}")
        if line.first is not None and scheduler.cluster.within_quota(line.first.request):
            ensure(vc in scheduler._await_others, f"the first in line of {vc} may wait for others")
    for backlog, entries in backlogs.items():
        entries.sort(key=_by_key)
        ensure(entries == list(backlog), f"a backlog: {entries}")
        first = backlog.first
        # those that it lets pass, and itself
        of_classes = {
            entry.equivalence_class: entry for entry in reversed(entries) if first is None or entry.key <= first.key
        }
        for entry in of_classes.values():
            free = entry.early and not entry.excluded and not scheduler._held_back(entry)
            idle = free and scheduler.cluster.can_lend(entry.loan)
            ensure(not idle, f"{entry} could borrow, and waits")
    takers = sum(entry.queued and not entry.early for entry in scheduler.jobs.values())
    ensure(scheduler._takers == takers, "opportunistic jobs that wait")
    scheduler._update_shares()
    check_heads(scheduler._heads, {backlog.first for backlog in backlogs if backlog.first is not None})


def _check_use(scheduler: Scheduler) -> None:
    """Check what is counted of users where the policy of their VC has a half-life, and that their jobs are by it."""
    for vc, use in scheduler._use.items():
        entries = scheduler._of_vc.get(vc, {}).values()
        known = [entry for its in use.jobs.values() for entry in its.values()]
        ensure(sorted(known, key=_by_number) == sorted(entries, key=_by_number), f"jobs of {vc} by user")
        held: dict[str, int] = {}
        for entry in entries:
            if entry.holds and entry.placement is not None and entry.placement.gpus:
                held[entry.view.user] = held.get(entry.view.user, 0) + entry.placement.gpus
            if entry.status in (WAITING, LENT):
                ensure(entry.view.use_rank == use.rank(entry.view.user), f"{entry} is in line by the use of its user")
        ensure(use.held() == held, f"GPUs by user in {vc}: {use.held()}, not {held}")


def _check_timeline(timeline: VirtualTimeline) -> None:
    """Check the private clusters, and the counts of ghosts."""
    check_scheduler(timeline._scheduler)
    held = dict.fromkeys(timeline.vcs, 0)
    for job in timeline._jobs.values():
        if job.since is not None and job.work < inf:
            held[job.entry.vc] += job.entry.view.gpus
    ensure(held == timeline.ghost_gpus, f"GPUs of ghosts: {timeline.ghost_gpus}, not {held}")


def _check_following(scheduler: ExactScheduler, timeline: VirtualTimeline) -> None:
    """A job whose virtual job runs has its cells, or they are owed to it."""
    for entry in scheduler.jobs.values():
        if not scheduler.follows(entry) or entry.name in scheduler._moved:
            continue
        leaves = timeline.runs_on(entry.name)
        has = entry.status is GUARANTEED and not entry.yields
        right = not has if leaves is None else has and scheduler.is_in_place(entry)
        ensure(right or (leaves is not None and entry.name in scheduler._owed), f"{entry} follows its virtual job")


def _by_number(entry: Entry) -> int:
    return entry.number


def _by_key(entry: Entry) -> Key:
    return entry.key
