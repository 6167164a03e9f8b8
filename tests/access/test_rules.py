"""Roles by the spec: every role tries every act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hived.access import NOBODY, Access, Person, Role
from hived.errors import ForbiddenError, SpecError
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec
from hived.spec.subjects import Subject

from ..contract.specs import flat

OWNER = Person("hived", owns=True)
OPERATOR = Person("olga")
ADMIN = Person("carol")
MEMBER = Person("ann")
BY_GROUP = Person("bob", frozenset({"vision-team"}))
STRANGER = Person("eve")
EVERYBODY = (OWNER, OPERATOR, ADMIN, MEMBER, BY_GROUP, STRANGER, NOBODY)
LIMITS = {"maxPriority": 10, "maxJobs": 2, "maxGpus": 4}


def spec(**vision: Any) -> ClusterSpec:
    plain: Any = flat({"vision": 2, "speech": 2})
    who = {"members": ["ann", "group:vision-team"], "admins": ["carol"]}
    plain["virtualClusters"]["vision"] |= who | vision
    return spec_from_dict(plain | {"operators": ["olga"]})


def rules(**vision: Any) -> Access:
    return Access(spec(**vision), "hived")


def allowed(act: Callable[[Access, Person], None], access: Access | None = None) -> set[str]:
    """Who may do it; whoever may not is told who could grant it."""
    found: set[str] = set()
    refused: list[str] = []
    for person in EVERYBODY:
        try:
            act(access or rules(), person)
        except ForbiddenError as error:
            refused.append(str(error))
        else:
            found.add(person.name)
    assert all("ask an " in why and "docs/reference/permissions.md" in why for why in refused)
    return found


def submits(vc: str = "vision", priority: int = 0, jobs: int = 0, gpus: int = 1, number: int = 1) -> Any:
    return lambda access, person: access.check_submission(person, vc, priority, jobs, gpus, number)


def cancels(user: str, vc: str = "vision") -> Any:
    return lambda access, person: access.check_job(person, "cancel", "train-1", user, vc)


MEMBERS = {"hived", "olga", "carol", "ann", "bob"}
TABLE: list[tuple[str, Any, set[str]]] = [
    ("submit", submits(), {"hived", "olga", "carol", "ann", "bob"}),
    ("submit elsewhere", submits("speech"), {"hived", "olga"}),
    ("cancel ann's", cancels("ann"), {"hived", "olga", "carol", "ann"}),
    ("cancel eve's, who was a member", cancels("eve"), {"hived", "olga", "carol", "eve"}),
    ("change a job in vision", lambda access, person: access.check_size(person, "vision", 4), MEMBERS),
    ("change a priority", lambda access, person: access.check_priority(person, "vision", 3), MEMBERS),
    ("cancel nobody's", cancels(""), {"hived", "olga", "carol"}),
    ("cancel elsewhere", cancels("ann", "speech"), {"hived", "olga", "ann"}),
    ("trade", lambda access, person: access.check_trade(person, "vision"), {"hived", "olga", "carol"}),
    ("trade elsewhere", lambda access, person: access.check_trade(person, "speech"), {"hived", "olga"}),
    ("drain", lambda access, person: access.check_operator(person, "drain GPUs"), {"hived", "olga"}),
]


@pytest.mark.parametrize(("act", "who"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_who_may_what(act: Any, who: set[str]) -> None:
    assert allowed(act) == who


def test_a_spec_that_names_nobody_is_its_owners() -> None:
    access = Access(spec_from_dict(flat({"vision": 2, "speech": 2})), "hived")
    for act in (submits(), cancels(""), lambda access, person: access.check_operator(person, "drain GPUs")):
        assert allowed(act, access) == {"hived"}
    assert allowed(cancels("ann"), access) == {"hived", "ann"}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (submits(priority=11), "priority 11 in vision: maxPriority of its members is 10"),
        (submits(jobs=2), "more jobs in vision: 2 have not ended, and maxJobs of a member is 2"),
        (submits(jobs=1, number=3), "have 3 more jobs in vision: 1 have not ended, and maxJobs of a member is 2"),
        (submits(gpus=5), "have 5 GPUs in vision: maxGpus of a member is 4"),
        (lambda access, person: access.check_priority(person, "vision", 11), "give priority 11 in vision"),
        (
            lambda access, person: access.check_size(person, "vision", 5),
            "have 5 GPUs in vision: maxGpus of a member is 4",
        ),
    ],
)
def test_limits_are_of_members(act: Any, words: str) -> None:
    access = rules(**LIMITS)
    assert allowed(act, access) & {"hived", "olga", "carol", "ann", "bob"} == {"hived", "olga", "carol"}
    with pytest.raises(
        ForbiddenError, match=f"ann may not .*{words}.*; ask an admin of vision \\(carol\\) or an operator"
    ):
        act(access, MEMBER)


def test_limits_that_are_met_refuse_nobody() -> None:
    assert "ann" in allowed(submits(priority=-1, gpus=50), rules(**LIMITS)), "a loan takes nothing from anybody"
    assert "ann" in allowed(submits(priority=10, jobs=1, gpus=4), rules(**LIMITS))


def test_a_name_is_more_than_anybody() -> None:
    """Where another virtual cluster was for everybody, a member had to say which one of the two they meant."""
    access = rules(members=["ann", "group:vision-team", "*"])
    named = [person.name for person in EVERYBODY if access.is_named(person, "vision")]
    assert named == ["carol", "ann", "bob"]
    assert not any(access.is_named(person, "speech") for person in EVERYBODY)
    assert not access.is_named(Person("ann", vcs=frozenset({"speech"}), token="3f"), "vision")


@pytest.mark.parametrize("vcs", [frozenset({"vision"}), frozenset({"speech"})])
def test_a_token_limits_and_never_gives(vcs: frozenset[str]) -> None:
    access = rules()
    member = Person("ann", vcs=vcs, token="3f")
    assert access.role(member, "vision") is (Role.MEMBER if "vision" in vcs else Role.VIEWER)
    assert access.role(member, "speech") is Role.VIEWER
    assert access.role(Person("olga", vcs=vcs, token="3f")) is Role.VIEWER
    if "vision" not in vcs:
        with pytest.raises(ForbiddenError, match=r"ann \(by token 3f\) .*the token is for speech alone"):
            access.check_submission(member, "vision", 0, 0, 1)
        with pytest.raises(ForbiddenError, match="it is ann's job"):
            access.check_job(member, "cancel", "train-1", "ann", "vision")


@pytest.mark.parametrize(
    ("text", "user", "groups", "meets"),
    [
        ("ann", "ann", (), True),
        ("ann", "anna", (), False),
        ("ann", "bob", ("ann",), False),
        ("group:ml", "bob", ("ml",), True),
        ("group:ml", "ml", (), False),
        ("*", "", (), True),
        ("namespace:a", "system:serviceaccount:a:x", ("system:serviceaccounts:a",), True),
        ("namespace:a", "system:serviceaccount:a:x", (), False),
        ("serviceaccount:a/x", "system:serviceaccount:a:x", (), True),
        ("serviceaccount:a/x", "a/x", (), False),
        ("system:admin", "system:admin", (), True),
    ],
)
def test_subjects(text: str, user: str, groups: tuple[str, ...], meets: bool) -> None:
    assert Subject.of(text).is_met_by(user, groups) is meets
    assert str(Subject.of(text)) == text


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ({"members": ["grp:ml"]}, "has the prefix `grp:`; it is one of user:, group:, namespace:, serviceaccount:"),
        ({"members": ["group:"]}, "names nobody after `group:`"),
        ({"admins": ["serviceaccount:a"]}, "a service account is serviceaccount:NAMESPACE/NAME"),
        ({"members": [""]}, "must not be empty"),
        ({"members": "ann"}, "expected a list"),
        ({"maxPriority": 1001}, "must be at most 1,000"),
        ({"maxJobs": -1}, "must be at least 0"),
        ({"maxGPUs": 4}, "did you mean `maxGpus`"),
    ],
)
def test_a_wrong_spec_is_refused(who: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**who)
    assert words in str(refused.value)


def test_nobody_is_no_user_without_a_name() -> None:
    """Somebody without a name owns no jobs whose user is not known."""
    with pytest.raises(ForbiddenError, match="who shows no token may not cancel train-1: whose job it is"):
        rules().check_job(NOBODY, "cancel", "train-1", "", "vision")
