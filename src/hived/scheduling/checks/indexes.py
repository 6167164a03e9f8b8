"""The checks of a scheduler's indexes: the running jobs of policies that preempt, and the heads of the backlogs."""

from __future__ import annotations

from hived.errors import ensure
from hived.scheduling.loan_heads import LoanHeads
from hived.scheduling.queue import Entry
from hived.scheduling.running import RunningJobs
from hived.scheduling.states import GUARANTEED, LEAVING


def check_running(running: RunningJobs, holding: set[Entry]) -> None:
    """The jobs that are followed are those that hold GPUs, by VC and kind in their order. O(jobs)."""
    ensure(running._counted.keys() == holding, "jobs whose attained service is counted")
    held = all(entry.placement is not None and entry.held == entry.placement.gpus for entry in holding)
    ensure(held, "GPUs that jobs hold")
    placed = {entry for order in running._orders.values() for _, entry in order}
    ensure(placed == {entry for entry in holding if entry.status is not LEAVING}, "jobs that run, in their order")
    for (vc, guaranteed), order in running._orders.items():
        ensure(order == sorted(order), f"running jobs of {vc} in their order")
        right = all(e.vc == vc and (e.status is GUARANTEED) is guaranteed for _, e in order)
        ensure(right, f"running jobs of {vc} by kind")
    ensure(running._review_at.keys() <= holding, "only jobs that run are reviewed")


def check_heads(index: LoanHeads, heads: set[Entry]) -> None:
    """Check these against the heads of the backlogs, and their shares. O(heads)."""
    ensure(index._items.keys() == heads, "heads of backlogs")
    ensure({entry for entries in index._of_vc.values() for entry in entries} == heads, "heads of backlogs by VC")
    for of_class, items in index._by_class.items():
        ensure(items == sorted(items), f"heads of class {of_class} in their order")
        ensure(
            all(item[2].loan_class == of_class and item[1] == item[2].key for item in items),
            f"heads of class {of_class}",
        )
        ensure(all(item[0] == index._share_of(item[2].vc) for item in items), f"shares of heads of class {of_class}")
