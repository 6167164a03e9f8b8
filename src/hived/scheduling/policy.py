"""The interface of a scheduling policy: one class, the same object simulated, on one machine and on Kubernetes.

A policy orders the jobs of a virtual cluster; every method has a default, so that a policy writes what it changes:

name, preempts, patience, clairvoyant, resume_s, half_life_s   what it is
order          which of a tenant's jobs is next
review_after   when the order of a running job changes: a timer
rank           which host a job is placed on
react          what a displaced job keeps
relax          whether a job gives up its affinity
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from hived.cells import HostClass
from hived.cluster.pool import packed


class JobView(NamedTuple):
    """What a policy sees of a job. Times are in seconds."""

    job: str  #: its name
    gpus: int
    submitted: float  #: time of submission: of the trace, or since the epoch
    #: the submissions of its tenant before it (on Kubernetes since the service started); breaks ties of ``submitted``
    sequence: int
    tenant: str = ""  #: its virtual cluster
    user: str = ""  #: who submitted it, "" where unknown
    model: str = ""  #: what it trains, "" where unknown
    priority: int = 0  #: -1: opportunistic; 0 to 1000: the higher come first, whatever the policy's order
    #: GPU-seconds: GPUs times the time for which it had them; 0 unless the policy preempts
    attained: float = 0.0
    running: bool = False  #: whether it runs on cells of its VC; always False unless the policy preempts
    reviewed: float = 0.0  #: time of the latest review (:meth:`Policy.review_after`), or of its submission
    duration: float | None = None  #: how long it runs in all; for a clairvoyant policy alone
    remaining: float | None = None  #: of which is left; the duration unless the policy preempts
    elastic: bool = False  #: whether it may run on more GPUs than it asked for, and give them up again
    #: the rank of its user by decayed use of its VC, under a policy with a half-life: of two users, the one with the
    #: smaller number has had less (:mod:`.decayed_use`); minus infinity of one who has had nothing
    use_rank: float = -inf


class GpuSharing(NamedTuple):
    """How jobs share GPUs: an extension of the scheduler, and its parameters."""

    #: makes the :class:`~.extension.Extension` of a :class:`~.scheduler.Scheduler`, None where its cluster has no use
    #: for it. There is one for all VCs, by the parameters of the first policy that has any
    extend: Callable[[Any, Any], Any]
    parameters: Any
    #: whether live engines carry its instructions out, where jobs obey
    live: bool = False


@dataclass(frozen=True, slots=True)
class Displaced:
    """A job loses its GPUs: another job needs them, or its own turn has come elsewhere."""

    victim: JobView
    by: JobView  #: the preemptor; the victim itself if its turn has come on other GPUs


class Reaction(Enum):
    """What becomes of a displaced job."""

    SUSPEND = "suspend"  #: it is requeued and keeps its work
    RESTART = "restart"  #: it is requeued and loses its work


class Policy:
    """A scheduling policy. The defaults: first come, first served, packed, preempted jobs keep their work.

    A method is a function of its arguments alone: asked twice, it answers the same. A policy that raises, or answers
    what is not allowed, ends the run with a :class:`~hived.errors.PolicyError`.
    """

    #: its name in results and messages
    name: str = "unnamed"
    #: whether the first job that waits takes GPUs from running jobs of its VC that are behind it in the order (and on
    #: loan, from loans of its VC); as few of the last ones as suffice are displaced (:meth:`react`)
    preempts: bool = False
    #: for how many seconds after its submission a job that does not fit lets those behind it pass. 0: nobody passes it
    #: (head of line); infinity: it never holds others back
    patience: float = 0.0
    #: whether it is told durations: of the trace; live it is told the time limit, and a job without one is refused
    clairvoyant: bool = False
    #: seconds for which a displaced job that kept its work occupies its GPUs before it goes on (in the simulator; a
    #: live job takes the time that it takes)
    resume_s: float = 0.0
    #: in seconds, after which the GPU time of a user counts half in :attr:`JobView.use_rank`; 0: it is not counted
    half_life_s: float = 0.0
    #: what :meth:`react` answers
    displaced: Reaction = Reaction.SUSPEND
    #: how its jobs share GPUs; None: each has GPUs of its own, and lends none of them. Not with ``preempts``
    gpu_sharing: GpuSharing | None = None

    def order(self, job: JobView) -> tuple[float, ...]:
        """Sort key of a job: the smallest is next. Jobs of a higher priority come first in any case.

        It is computed when a job starts to wait; where the policy preempts, also when it starts, and at its reviews;
        and where it has a half-life, also when its user has had GPUs, every half a minute at most.
        """
        return job.submitted, job.sequence

    def review_after(self, job: JobView) -> float | None:
        """How many seconds a job has to run until its sort key changes; infinity: it does not.

        The key is computed anew then. None: it changes all the time, and is computed anew whenever a job looks for
        victims. Unused unless the policy preempts.
        """
        return inf

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        """Score of a host for ``gpus`` GPUs of a guaranteed job: the smallest is chosen; None: not this host.

        Among hosts of one score, the one with the lowest number is.

        Called once per class of hosts (:class:`~hived.cells.HostClass`), and only for those with enough room. The
        default: fewest GPUs to preempt, then closest together, then tightest fit.
        """
        return packed(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        """Whether a displaced job keeps its work."""
        return self.displaced

    def relax(self, job: JobView) -> bool:
        """Whether the GPUs of a job may be anywhere in its VC, rather than on as few nodes as hold them.

        Asked once, at the submission; in the simulator, where jobs have no gangs of their own.
        """
        return False
