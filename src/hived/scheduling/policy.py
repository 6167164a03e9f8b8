"""The interface of a scheduling policy: a few functions, the same under every sharing scheme, simulated and live.

order          which of a tenant's jobs is next
preempts       whether the head of line takes GPUs from running jobs of its VC that are behind it in the order
review_after   when the order of a running job changes
rank           which host a job is placed on
react          what a displaced job keeps
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from hived.cells import HostClass


class JobView(NamedTuple):
    """The attributes of a job that a policy may use."""

    job: str  #: its name
    gpus: int
    submitted: int  #: time of submission, in the caller's unit
    sequence: int  #: number of the submission; breaks ties of ``submitted``
    #: attained service: GPUs times the time for which it had them, in GPU-milliseconds in the simulator and in
    #: GPU-seconds in an engine; 0 unless the policy preempts
    attained: float = 0


@dataclass(frozen=True, slots=True)
class Displaced:
    """A job loses its GPUs: another job needs them, or its own turn has come elsewhere."""

    victim: JobView
    by: JobView  #: the preemptor; the victim itself if its turn has come on other GPUs


class Reaction(Enum):
    """What becomes of a displaced job."""

    SUSPEND = "suspend"  #: it is requeued at its place in the order and keeps its work
    RESTART = "restart"  #: it is requeued at its place in the order and loses its work


class Order(Protocol):
    """The order of a tenant's queue: the part of a policy that a queue needs."""

    def order(self, job: JobView) -> tuple[int, ...]:
        """Sort key of a job: the smallest is the head of line.

        After a change of the key of a waiting or running job the caller has to call ``Scheduler.rekey``.
        """


class Policy(Order, Protocol):
    """A scheduling policy: the order of the queue, preemption in a VC, the choice of a host, what a victim keeps."""

    @property
    def name(self) -> str:
        """Its name on the command line and in results."""

    @property
    def preempts(self) -> bool:
        """Whether the head of a VC's line takes GPUs from running jobs of the VC that are behind it in the order.

        As few of the last ones as suffice are suspended or restarted (:meth:`react`), and requeued.
        """

    def review_after(self, job: JobView) -> float | None:
        """How long a job has to run until its sort key changes, in the engine's unit of time; infinity: it does not.

        The key is computed anew then. None: it changes all the time, and is computed anew whenever a head of line looks
        for victims. Unused unless the policy preempts.
        """

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        """Score of a host for ``gpus`` GPUs of a guaranteed job: smaller is better, None if it has too few.

        Called once per class of hosts (:class:`~hived.cells.HostClass`), so it must depend on its arguments alone.
        """

    def react(self, event: Displaced) -> Reaction:
        """Whether the victim keeps its work."""
