"""A policy as the scheduler asks it: every answer is checked, and an error names the policy, the job and the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf, isnan
from typing import Any, TypeAlias

from hived.cells import HostClass, Rank
from hived.cluster.pool import packed
from hived.errors import PolicyError

from .policy import Displaced, GpuSharing, JobView, Policy, Reaction

_SUSPEND = Reaction.SUSPEND
#: questions for a sort key that are asked twice: so many at first, and then every so manyth
_ALL_TWICE, _SOME_TWICE = 1000, 16


class CheckedPolicy:
    """One policy, asked in the engine's unit of time. O(1) more per question."""

    def __init__(self, policy: Policy) -> None:
        # of no type for the compiled form, which would else refuse a wrong answer before it is checked here
        self._policy: Any = policy
        self._asked = 0
        self.name: str = str(policy.name)
        self.preempts: bool = bool(self._attribute("preempts", bool))
        self.clairvoyant: bool = bool(self._attribute("clairvoyant", bool))
        #: seconds
        self.patience: float = float(self._attribute("patience", (int, float)))
        #: whether jobs of one priority are in the order of their submission
        self.by_submission: bool = getattr(policy.order, "__func__", None) is Policy.order
        #: the score of a class of hosts, checked. Its error has no job: the scheduler adds it
        self.rank: Rank = packed if type(policy).rank is Policy.rank else self._rank
        #: whether it has jobs that give up their affinity
        self.relaxes: bool = type(policy).relax is not Policy.relax
        sharing: Any = self._policy.gpu_sharing
        if not isinstance(sharing, GpuSharing | None) or (self.preempts and sharing):
            what = f"gpu_sharing is {sharing!r}; it must be None or a GpuSharing, without preempts"
            raise PolicyError(self.name, what)
        self.gpu_sharing: GpuSharing | None = sharing
        self.resume_s: float = float(self._attribute("resume_s", (int, float)))
        #: seconds; 0: the use of users is not counted
        self.half_life_s: float = float(self._attribute("half_life_s", (int, float)))

    @property
    def always_keeps_work(self) -> bool:
        """Whether every displaced job keeps its work, whoever displaces it."""
        policy = self._policy
        own = getattr(policy, "always_keeps_work", None)  # of a policy that passes on the answers of another
        return own if isinstance(own, bool) else type(policy).react is Policy.react and policy.displaced is _SUSPEND

    @property
    def policy(self) -> Policy:
        """The policy itself."""
        policy: Policy = self._policy
        return policy

    def _attribute(self, name: str, of: Any) -> Any:
        value = getattr(self._policy, name)
        wrong = not isinstance(value, of) or (of is not bool and (isinstance(value, bool) or not value >= 0))
        if wrong or (name == "resume_s" and value == inf):
            need = "True or False" if of is bool else "a number of seconds, at least 0"
            raise PolicyError(self.name, f"{name} is {value!r}; it must be {need}")
        return value

    def order(self, job: JobView, at: float) -> tuple[float, ...]:
        """The sort key of a job at ``at`` seconds."""
        if self.by_submission:  # Policy's own answer
            return (job.submitted,)
        try:
            key: Any = self._policy.order(job)
            again = key
            self._asked += 1
            if self._asked < _ALL_TWICE or not self._asked % _SOME_TWICE:
                again = self._policy.order(job)
        except Exception as error:
            raise self._raised("order", error, job.job, at) from error
        if type(key) is not tuple:
            raise PolicyError(self.name, f"order gives {key!r}; it must give a tuple of numbers", job.job, at)
        for number in key:
            kind = type(number)
            if (kind is not float and kind is not int and not isinstance(number, (int, float))) or number != number:
                what = f"order gives {key!r}, with {number!r}, which is neither an int nor a float with a value"
                raise PolicyError(self.name, what, job.job, at)
        if key != again:
            what = f"order gives {key!r}, and {again!r} for the same job; it must depend on the job alone"
            raise PolicyError(self.name, what, job.job, at)
        checked: tuple[float, ...] = key
        return checked

    def review_after(self, job: JobView, at: float) -> float | None:
        """Seconds until the sort key of a job changes; None: all the time."""
        try:
            after = self._policy.review_after(job)
        except Exception as error:
            raise self._raised("review_after", error, job.job, at) from error
        if after is not None and (not isinstance(after, (int, float)) or not after > 0):
            what = f"review_after gives {after!r}; it must give None, or seconds above 0"
            raise PolicyError(self.name, what, job.job, at)
        checked: float | None = after
        return checked

    def _rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        try:
            score = self._policy.rank(host, gpus)
        except Exception as error:
            raise self._raised("rank", error, "", None) from error
        if score is not None and (
            type(score) is not tuple or any(not isinstance(n, (int, float)) or isnan(n) for n in score)
        ):
            raise PolicyError(self.name, f"rank gives {score!r}; it must give a tuple of numbers, or None")
        checked: tuple[float, ...] | None = score
        return checked

    def keeps_work(self, victim: JobView, by: JobView, at: float) -> bool:
        """Whether a displaced job keeps its work."""
        try:
            reaction = self._policy.react(Displaced(victim, by))
        except Exception as error:
            raise self._raised("react", error, victim.job, at) from error
        if not isinstance(reaction, Reaction):
            raise PolicyError(self.name, f"react gives {reaction!r}; it must give a Reaction", victim.job, at)
        if reaction is not _SUSPEND and self.always_keeps_work:
            what = "react gives Reaction.RESTART, and always_keeps_work says that no displaced job loses its work"
            raise PolicyError(self.name, what, victim.job, at)
        return reaction is _SUSPEND

    def relax(self, job: JobView, at: float) -> bool:
        """Whether a job gives up its affinity."""
        try:
            relaxes = self._policy.relax(job)
        except Exception as error:
            raise self._raised("relax", error, job.job, at) from error
        if not isinstance(relaxes, bool):
            raise PolicyError(self.name, f"relax gives {relaxes!r}; it must give True or False", job.job, at)
        return relaxes

    def displace(self, reaction: Reaction) -> None:
        """Set what displaced jobs keep, unless the policy's own :meth:`~.policy.Policy.react` says otherwise."""
        self._policy.displaced = reaction

    def _raised(self, method: str, error: Exception, job: str, at: float | None) -> PolicyError:
        return PolicyError(self.name, f"{method} raises {type(error).__name__}: {error}", job, at)


def _allowed(policy: CheckedPolicy) -> str:
    return ""


def _only_simulated(policy: CheckedPolicy) -> str:
    return "its jobs share GPUs, which is only simulated so far: hived simulate --policy NAME"


class Policies:
    """The policy of each VC of a cluster."""

    def __init__(self, default: Policy, of: Mapping[str, Policy] | None = None) -> None:
        """``of``: the policy of each VC that has another than the default."""
        self.default = CheckedPolicy(default)
        self._of: dict[str, CheckedPolicy] = {}
        self._forbidden: Callable[[CheckedPolicy], str] = _allowed
        #: for a :class:`~hived.cluster.Cluster`: the rank of the default, and of the VCs that have another
        self.rank = self.default.rank
        self.ranks: dict[str, Rank] = {}
        self.assign(of or {})

    def assign(self, of: Mapping[str, Policy]) -> None:
        """Change the policies of VCs; :meth:`~hived.scheduling.Scheduler.reconfigured` has to follow.

        Raises as :meth:`check`, and has changed nothing then.
        """
        self._of = self.check(of)
        self.ranks.clear()
        self.ranks.update({vc: policy.rank for vc, policy in self._of.items()})

    def only(self, vcs: Collection[str]) -> Policies:
        """Those of some VCs alone."""
        of = {vc: self[vc].policy for vc in sorted(vcs)}
        return Policies(next(iter(of.values()), self.default.policy), of)

    def replaced(self, of: Mapping[str, Policy]) -> Policies:
        """The same policies, with others for some VCs. Raises as :meth:`check`."""
        again = Policies(self.default.policy, of)
        again._of = self._of | again._of
        again._forbidden = self._forbidden
        return again

    def forbid_sharing(self, why: Callable[[CheckedPolicy], str] | None = None) -> None:
        """Refuse policies under which jobs share GPUs, now and later. Raises :class:`~hived.errors.PolicyError`.

        ``why``: of one such policy, "" where it is allowed; None: of any.
        """
        self._forbidden = why or _only_simulated
        self._check(self.all)

    def check(self, of: Mapping[str, Policy]) -> dict[str, CheckedPolicy]:
        """The policies of VCs, checked. Raises :class:`~hived.errors.PolicyError`, also for one that shares GPUs where
        the engine cannot.
        """
        checked: dict[int, CheckedPolicy] = {}  # VCs with one policy share its ranks
        found = {vc: checked.setdefault(id(policy), CheckedPolicy(policy)) for vc, policy in of.items()}
        self._check([*checked.values()])
        return found

    def _check(self, policies: list[CheckedPolicy]) -> None:
        for policy in policies:
            if policy.gpu_sharing and (what := self._forbidden(policy)):
                raise PolicyError(policy.name, what)

    @property
    def name(self) -> str:
        """For results: the default's name, and those of the VCs that have another."""
        return ", ".join([self.default.name, *(f"{vc}={policy.name}" for vc, policy in sorted(self._of.items()))])

    def __getitem__(self, vc: str) -> CheckedPolicy:
        return self._of.get(vc, self.default)

    @property
    def all(self) -> list[CheckedPolicy]:
        """Each policy once."""
        return list(dict.fromkeys([self.default, *self._of.values()]))


#: the policies of a cluster, or the one of all its VCs
SomePolicies: TypeAlias = Policies | Policy
