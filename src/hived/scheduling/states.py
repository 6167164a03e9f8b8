"""The states of a job in the scheduler, as one table.

docs/explanation/architecture.md has the same; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The state of a job; every transition is in :data:`STATUS_TABLE`."""

    NOWHERE = "nowhere"  #: holds nothing and is in no queue
    WAITING = "waiting"
    RESERVED = "reserved"  #: has a reservation and waits for its victims to end
    LENT = "lent"  #: runs on a loan, or as a guest
    MOVING = "moving"  #: runs on a loan, and is being stopped to start elsewhere at its turn
    LEAVING = "leaving"  #: runs on a loan, and is being stopped for good
    GUARANTEED = "guaranteed"
    SHARING = "sharing"  #: has turns on GPUs of other jobs of its VC, and holds none

    __hash__ = str.__hash__  # an enum's own is slow


class StatusEvent(StrEnum):
    """An event of a job."""

    WAIT = "wait"  #: it is queued
    START = "start"  #: it gets free cells of its VC
    LEND = "lend"  #: it gets idle GPUs, or GPUs of others as a guest
    SHARE = "share"  #: it gets turns on GPUs of others of its VC
    RESERVE = "reserve"  #: GPUs on which other jobs run are reserved for it
    LOSE = "lose"  #: its reservation is taken by a higher priority, or its hardware breaks
    PROMOTE = "promote"  #: it gets cells of its VC where it runs
    MOVE = "move"  #: its turn has come on other GPUs than those of its loan
    STOP = "stop"  #: it is being stopped for good
    DOWNGRADE = "downgrade"  #: the core has made a loan of it, or knows it as one
    RESTORE = "restore"  #: the core has made it guaranteed, or knows it so
    LEAVE = "leave"  #: it has left its GPUs or its turns
    WITHDRAW = "withdraw"  #: it is withdrawn before it runs

    __hash__ = str.__hash__


# enum members are slow to look up before Python 3.12, and every step reads them
NOWHERE, WAITING, RESERVED, LENT, MOVING, LEAVING, GUARANTEED, SHARING = Status
WAIT, START, LEND, SHARE, RESERVE, LOSE, PROMOTE, MOVE, STOP, DOWNGRADE, RESTORE, LEAVE, WITHDRAW = StatusEvent

#: next state by state and event; any other pair is a bug
STATUS_TABLE: dict[tuple[Status, StatusEvent], Status] = {
    (NOWHERE, WAIT): WAITING,
    **{(status, START): GUARANTEED for status in (WAITING, RESERVED, SHARING)},
    **{(status, LEND): LENT for status in (WAITING, RESERVED)},
    **{(status, SHARE): SHARING for status in (WAITING, GUARANTEED)},
    **{(status, RESERVE): RESERVED for status in (WAITING, RESERVED)},
    (RESERVED, LOSE): NOWHERE,
    (LENT, PROMOTE): GUARANTEED,
    (LENT, MOVE): MOVING,
    **{(status, STOP): LEAVING for status in (LENT, MOVING)},
    # a job that the core has recovered comes from nowhere
    **{(status, DOWNGRADE): LENT for status in (NOWHERE, LENT, GUARANTEED)},
    **{(status, DOWNGRADE): status for status in (MOVING, LEAVING)},
    **{(status, RESTORE): GUARANTEED for status in (NOWHERE, LENT, MOVING, LEAVING, GUARANTEED)},
    **{(status, LEAVE): NOWHERE for status in (LENT, MOVING, LEAVING, GUARANTEED, SHARING)},
    **{(status, WITHDRAW): NOWHERE for status in (NOWHERE, WAITING, RESERVED)},
}
