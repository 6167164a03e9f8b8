"""The states of a job in the scheduler, as one table.

docs/explanation/architecture.md has the same; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hived.errors import InvariantError


class Status(StrEnum):
    """The state of a job; every transition is in :data:`STATUS_EVENTS`."""

    NOWHERE = "nowhere"  #: holds nothing and is in no queue
    WAITING = "waiting"
    RESERVED = "reserved"  #: has a reservation and waits for its victims to end
    LENT = "lent"  #: runs on a loan, or as a guest
    MOVING = "moving"  #: runs on a loan, and is being stopped to start elsewhere at its turn
    LEAVING = "leaving"  #: runs on a loan, and is being stopped for good
    GUARANTEED = "guaranteed"
    SHARING = "sharing"  #: has turns on GPUs of other jobs of its VC, and holds none

    __hash__ = str.__hash__  # an enum's own is slow


# enum members are slow to look up before Python 3.12, and every step reads them
NOWHERE, WAITING, RESERVED, LENT, MOVING, LEAVING, GUARANTEED, SHARING = Status


class StatusEvent(dict[Status, Status]):
    """An event of a job: the next state by state. ``entry.status = START[entry.status]`` is a transition."""

    def __init__(self, name: str, after: Mapping[Status, Status]) -> None:
        super().__init__(after)
        self.name = name

    def __missing__(self, status: Status) -> Status:
        raise InvariantError(f"a job that is {status.value} cannot {self.name}")


def _to(after: Status, *before: Status) -> dict[Status, Status]:
    return dict.fromkeys(before, after)


#: it is queued
WAIT = StatusEvent("wait", {NOWHERE: WAITING})
#: it gets free cells of its VC
START = StatusEvent("start", _to(GUARANTEED, WAITING, RESERVED, SHARING))
#: it gets idle GPUs, or GPUs of others as a guest
LEND = StatusEvent("lend", _to(LENT, WAITING, RESERVED))
#: it gets turns on GPUs of others of its VC
SHARE = StatusEvent("share", _to(SHARING, WAITING, GUARANTEED))
#: GPUs on which other jobs run are reserved for it
RESERVE = StatusEvent("reserve", _to(RESERVED, WAITING, RESERVED))
#: its reservation is taken by a higher priority, or its hardware breaks
LOSE = StatusEvent("lose", {RESERVED: NOWHERE})
#: it gets cells of its VC where it runs
PROMOTE = StatusEvent("promote", {LENT: GUARANTEED})
#: its turn has come on other GPUs than those of its loan
MOVE = StatusEvent("move", {LENT: MOVING})
#: it is being stopped for good
STOP = StatusEvent("stop", _to(LEAVING, LENT, MOVING))
#: the core has made a loan of it, or has recovered it as one
DOWNGRADE = StatusEvent("downgrade", {**_to(LENT, NOWHERE, LENT, GUARANTEED), MOVING: MOVING, LEAVING: LEAVING})
#: the core has made it guaranteed, or has recovered it as such
RESTORE = StatusEvent("restore", _to(GUARANTEED, NOWHERE, LENT, MOVING, LEAVING, GUARANTEED))
#: it has left its GPUs or its turns
LEAVE = StatusEvent("leave", _to(NOWHERE, LENT, MOVING, LEAVING, GUARANTEED, SHARING))
#: it is withdrawn before it runs
WITHDRAW = StatusEvent("withdraw", _to(NOWHERE, NOWHERE, WAITING, RESERVED))

STATUS_EVENTS = (
    WAIT, START, LEND, SHARE, RESERVE, LOSE, PROMOTE, MOVE, STOP, DOWNGRADE, RESTORE, LEAVE, WITHDRAW
)  # fmt: skip
