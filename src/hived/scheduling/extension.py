"""The interface of what lets jobs share GPUs: it decides beside the scheduler's turns and loans.

A policy names its extension (:class:`~.policy.GpuSharing`); a scheduler has one or none. It is asked at fixed points,
and acts by the scheduler's methods *for an extension*.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from .queue import Entry, Queue


class TakingTurns(NamedTuple):
    """How a job takes turns with others on the GPUs of a server."""

    share: float  #: of the time, in which it has GPUs
    jobs: int  #: that take turns there, it included
    gpus: int  #: for these
    slice_s: float
    packed_with: tuple[str, ...] = ()  #: names of the jobs that run beside it


class Extension:
    """An extension that shares nothing. Times are in the engine's unit."""

    #: whether running jobs give cells up by themselves, so that any event may change any reservation
    frees_cells = False

    @property
    def next_wake(self) -> float:
        """When :meth:`wake` has something to do; infinity for never."""
        return inf

    # -- jobs that wait -----------------------------------------------------------------------------------------------

    def is_guest(self, entry: Entry) -> bool:
        """Whether a job is a guest before its turn, in place of a loan; its start is decided here."""
        return False

    def backlog(self, entry: Entry) -> Queue | None:
        """The queue in which a guest waits."""
        return entry.backlog

    def queued(self, entry: Entry) -> None:
        """A job has joined its queues."""

    def is_patient(self, entry: Entry, now: float) -> bool:
        """Whether a job waits for its turn for now, and not for a loan."""
        return False

    def start(self, entry: Entry, now: float) -> bool | None:
        """Start a job whose turn has come: whether it runs; None: the scheduler places it."""
        return None

    def may_shrink(self, vc: str) -> bool:
        """Whether running jobs of a VC have GPUs to give up for one whose turn has come."""
        return False

    def before_loans(self, now: float) -> None:
        """GPUs may be idle, and are about to be lent: jobs that share those of others may take them first."""

    # -- jobs that run ------------------------------------------------------------------------------------------------

    def follow(self, entry: Entry, now: float) -> None:
        """A job has GPUs, or has them otherwise than before; the engine does not know yet."""

    def placed(self, entry: Entry, now: float) -> None:
        """A job has got guaranteed GPUs that :meth:`start` has not chosen, and the engine knows."""

    def promote(self, entry: Entry) -> bool | None:
        """Promote a job where it runs, though others have its cells. As ``Cluster.promote``."""
        return False

    def moves(self, entry: Entry) -> bool:
        """Whether a guest whose turn has come, and that cannot be promoted, leaves its GPUs for free cells."""
        return True

    def stays(self, victim: Entry, owner: Entry) -> bool:
        """Whether a victim runs on beside the job that gets its cells."""
        return False

    def reprioritized(self, entry: Entry, now: float) -> bool:
        """A job has another priority among those that share its GPUs; ``False``: none do."""
        return False

    def leaves(self, entry: Entry, now: float) -> None:
        """A job is about to release its cells."""

    def left(self, entry: Entry, now: float) -> bool:
        """A job has left its GPUs, or its turns on those of others; whether its VC is to be looked at."""
        return False

    # -- in a live engine -------------------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """Hardware, the spec, or what jobs hold has changed otherwise than by this scheduler."""

    def succeed(self, before: Extension) -> None:
        """Go on where another extension of this kind was, under a new spec or other policies."""

    def measured(self, entry: Entry, now: float) -> None:
        """What a running job uses of its GPUs is measured to be other than before."""

    def set_elastic(self, entry: Entry, now: float) -> None:
        """A running job has said that it grows and shrinks, or does so no more: as its view has it."""

    def returns(self, entry: Entry, node: str) -> None:
        """A job that waits in line has processes on a node, where it took turns: it does so again if it can."""

    def describe(self, entry: Entry) -> TakingTurns | None:
        """How a job takes turns now; None: it does not."""
        return None

    # -- a dispatch ---------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """A dispatch begins."""

    def settle(self, now: float) -> None:
        """No job gets a turn or a loan any more; the dispatch goes on if this changes that."""

    def publish(self, now: float) -> None:
        """A dispatch ends: tell the engine what has changed for each job."""

    def validate(self) -> None:
        """Check against the jobs of the scheduler. O(jobs)."""
