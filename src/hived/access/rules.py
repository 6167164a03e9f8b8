"""Roles by the spec, and what each may do: the table of ``docs/reference/permissions.md``.

    viewer      who reaches the engine: looks
    member      of a virtual cluster: submits there, and does everything to jobs of their own
    admin       of a virtual cluster: everything to all its jobs, and trades its cells
    operator    of the engine: everything

A job is its submitter's, whatever becomes of their role. A refusal names the rule, and who could grant it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from hived.errors import ForbiddenError
from hived.spec.compiled import AccessSpec, ClusterSpec
from hived.spec.subjects import Kind, Subject

from .people import Person

#: subjects named in a message, at most
_NAMED = 5
_NO_ACCESS = AccessSpec()


class Role(IntEnum):
    """What somebody is to a virtual cluster; each may do what those before it may."""

    VIEWER = 0
    MEMBER = 1
    ADMIN = 2
    OPERATOR = 3


class Access:
    """The roles that a spec gives. Raises :class:`~hived.errors.ForbiddenError` for what a role does not allow."""

    def __init__(self, spec: ClusterSpec, owner: str) -> None:
        """``owner``: the user whose the engine is. O(subjects of the spec)."""
        self._owner = owner
        self._operators = tuple(map(Subject.of, spec.operators))
        self._of: dict[str, AccessSpec] = {vc.name: vc.access or _NO_ACCESS for vc in spec.virtual_clusters}
        self._members = {vc: tuple(map(Subject.of, access.members)) for vc, access in self._of.items()}
        self._admins = {vc: tuple(map(Subject.of, access.admins)) for vc, access in self._of.items()}

    @property
    def vcs(self) -> list[str]:
        """The virtual clusters of the spec, in its order."""
        return list(self._of)

    def role(self, person: Person, vc: str | None = None) -> Role:
        """The role of a person in a virtual cluster, or (None) in the engine as a whole. O(subjects)."""
        if person.owns:
            return Role.OPERATOR
        if vc is not None and person.vcs is not None and vc not in person.vcs:
            return Role.VIEWER
        if person.vcs is None and _meets(person, self._operators):
            return Role.OPERATOR
        if vc is None:
            return Role.VIEWER
        if _meets(person, self._admins.get(vc, ())):
            return Role.ADMIN
        return Role.MEMBER if _meets(person, self._members.get(vc, ())) else Role.VIEWER

    def is_named(self, person: Person, vc: str) -> bool:
        """Whether a virtual cluster, of the spec, is a person's rather than for anybody. O(subjects).

        Its members or admins name them or a group of theirs.
        """
        named = [subject for subject in (*self._admins[vc], *self._members[vc]) if subject.kind is not Kind.ANYBODY]
        return self.role(person, vc) is not Role.VIEWER and _meets(person, named)

    def check_submission(self, person: Person, vc: str, priority: int, jobs: int, gpus: int, number: int = 1) -> Role:
        """Whether a person may submit jobs of so many GPUs each to a virtual cluster that exists; what they are there.

        ``jobs``: of theirs there that have not ended; ``number``: that are submitted. The limits are those of members:
        an admin could change them by asking an operator, and an operator does. That all guaranteed jobs of a member
        have ``maxGpus`` at most is seen to later; loans (a priority below 0) take nothing from anybody.
        """
        role = self.role(person, vc)
        if role is Role.VIEWER:
            others = "" if person.vcs is None or vc in person.vcs else f": the token is for {_names(person.vcs)} alone"
            raise self._refused(person, f"submit to {vc}{others or ', of which only members run jobs'}", vc)
        limits = self._of[vc]
        if role is not Role.MEMBER:
            return role
        if limits.max_priority is not None and priority > limits.max_priority:
            what = f"ask for priority {priority} in {vc}: maxPriority of its members is {limits.max_priority}"
            raise self._refused(person, what, vc)
        if limits.max_jobs is not None and jobs + number > limits.max_jobs:
            more = "more jobs" if number == 1 else f"{number:,} more jobs"
            what = f"have {more} in {vc}: {jobs:,} have not ended, and maxJobs of a member is {limits.max_jobs:,}"
            raise self._refused(person, what, vc)
        if priority >= 0:
            self.check_size(person, vc, gpus)
        return role

    def check_pod(self, namespace: str, account: str, vc: str, priority: int, grace_s: int) -> None:
        """Whether pods of a namespace and a service account may ask for a virtual cluster, at this priority and grace.

        Pods have no user that could be trusted. A virtual cluster of which the spec names nobody is for all of them.
        """
        access = self._of.get(vc, _NO_ACCESS)
        if not (access.members or access.admins):
            return
        everybody = "system:serviceaccounts"
        groups = frozenset({everybody, f"{everybody}:{namespace}", "system:authenticated"})
        role = self.role(Person(f"system:serviceaccount:{namespace}:{account}", groups), vc)
        whose = f"pods of namespace {namespace} with the service account {account}"
        if role is Role.VIEWER:
            who = _names([*access.members, *access.admins])
            raise ForbiddenError(f"{whose} may not use {vc}, which is for {who}; ask {self.granters(vc)}")
        most = access.max_priority
        if role is Role.MEMBER and most is not None and priority > most:
            what = f"may not ask for priority {priority} in {vc}: maxPriority of its members is {most}"
            raise ForbiddenError(f"{whose} {what}; ask {self.granters(vc)}")
        most = access.max_grace_seconds
        if role is Role.MEMBER and most is not None and priority >= 0 and grace_s > most:
            what = f"may not have {grace_s:,} s to end (terminationGracePeriodSeconds) in {vc}"
            raise ForbiddenError(f"{whose} {what}: maxGraceSeconds of its members is {most:,}; ask {self.granters(vc)}")

    def check_priority(self, person: Person, vc: str, priority: int) -> None:
        """Whether a person may give a job, of their own or as an admin, this priority."""
        what = f"give priority {priority} in {vc}"
        self._check_limit(person, vc, what, priority, self._of.get(vc, _NO_ACCESS).max_priority, "maxPriority")

    def check_size(self, person: Person, vc: str, gpus: int, is_limited: bool = True) -> None:
        """Whether a person may have a job, of their own or as an admin, ask for so many GPUs.

        ``is_limited``: whether ``maxGpus`` counts it, as of guaranteed jobs; that members ask is so of any.
        """
        what, most = f"have {gpus} GPUs in {vc}", self._of.get(vc, _NO_ACCESS).max_gpus if is_limited else None
        self._check_limit(person, vc, what, gpus, most, "maxGpus")

    def check_grace(self, person: Person, vc: str, grace_s: float) -> None:
        """Whether a person may have a guaranteed job that has so long to end; loans have another bound."""
        what, most = f"have a job with {grace_s:g} s to end in {vc}", self.most_grace_s(vc)
        self._check_limit(person, vc, what, grace_s, most, "maxGraceSeconds")

    def most_grace_s(self, vc: str) -> int | None:
        """How long a guaranteed job of a member may have to end; None: as long as may be asked for."""
        return self._of.get(vc, _NO_ACCESS).max_grace_seconds

    def _check_limit(self, person: Person, vc: str, what: str, asked: float, most: int | None, name: str) -> None:
        """Raise where a member asks for more than the limit of that name, or somebody who is a member no more."""
        role = self.role(person, vc)
        if role is Role.VIEWER:
            raise self._refused(person, f"{what}, which members do", vc)
        if role is Role.MEMBER and most is not None and asked > most:
            raise self._refused(person, f"{what}: {name} of a member is {most}", vc)

    def check_job(self, person: Person, what: str, job: str, user: str, vc: str) -> None:
        """Whether a person may do ``what`` ("cancel") to ``job``, by name, of this user and virtual cluster."""
        role = self.role(person, vc)
        is_own = user != "" and person.name == user and (person.vcs is None or vc in person.vcs)
        if not (is_own or role >= Role.ADMIN):
            whose = f"it is {user}'s job in {vc}" if user else f"whose job it is in {vc} is not known"
            raise self._refused(person, f"{what} {job}: {whose}", vc)

    def check_trade(self, person: Person, vc: str) -> None:
        """Whether a person may trade the cells of a virtual cluster."""
        if self.role(person, vc) < Role.ADMIN:
            raise self._refused(person, f"trade cells of {vc}, which its admins do", vc)

    def check_operator(self, person: Person, what: str) -> None:
        """Whether a person may do what operators alone do."""
        if self.role(person) is not Role.OPERATOR:
            raise self._refused(person, f"{what}, which operators do", None)

    def granters(self, vc: str | None) -> str:
        """Who could grant something in a virtual cluster, or in the engine as a whole, in words."""
        admins = () if vc is None else self._admins.get(vc, ())
        of_engine = _names([*dict.fromkeys([*filter(None, [self._owner]), *map(str, self._operators)])])
        operators = f"an operator ({of_engine})" if of_engine else "an operator"
        return f"an admin of {vc} ({_names(map(str, admins))}) or {operators}" if admins else operators

    def _refused(self, person: Person, what: str, vc: str | None) -> ForbiddenError:
        who = f"{person.name} (by token {person.token})" if person.token else person.name or "who shows no token"
        return ForbiddenError(f"{who} may not {what}; ask {self.granters(vc)}, see docs/reference/permissions.md")


def _meets(person: Person, subjects: Iterable[Subject]) -> bool:
    return any(subject.is_met_by(person.name, person.groups) for subject in subjects)


def _names(of: Iterable[str]) -> str:
    names = sorted(of) if isinstance(of, frozenset) else list(of)
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
