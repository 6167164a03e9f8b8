"""What pods ask for: upstream's annotation, plain labels; and that nothing they can write does any harm."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace as with_fields

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hived.cluster.requests import Member
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Container, Owner, PodSpec, Resources
from hived.engines.kubernetes.pods.pod_request import (
    PodRequest,
    PodRequestError,
    check_grace,
    concerns,
    gang_owner,
    read_request,
    read_yaml,
)

from .pods import Limits, annotated, labelled, on, pod, with_limits

JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid="job-1", controller=True)
FULL = """
virtualCluster: research
priority: 5
pinnedCellId: PIN
leafCellType: K80
leafCellNumber: 2
gangReleaseEnable: false
lazyPreemptionEnable: true
ignoreK8sSuggestedNodes: false
affinityGroup:
  name: default/group-1
  members: [{podNumber: 3, leafCellNumber: 2}, {podNumber: 1, leafCellNumber: 4}]
"""


def said(**fields: object) -> str:
    """An annotation, otherwise right."""
    found = {"virtualCluster": "a", "leafCellNumber": 1, **fields}
    return yaml.safe_dump({key: value for key, value in found.items() if value != "LEFT OUT"})


def said_group(name: str, pods: object, gpus: object = 1) -> str:
    """An annotation of a group whose pods are equal."""
    return said(affinityGroup={"name": name, "members": [{"podNumber": pods, "leafCellNumber": gpus}]})


# -- upstream's annotation --------------------------------------------------------------------------------------------


def test_every_field_of_the_annotation() -> None:
    """By their former names, too. Beside a pinned cell upstream does not look at the device type."""
    unpinned = read_request(pod("p", said=FULL.replace("pinnedCellId: PIN", "")))
    assert (unpinned.leaf_cell_type, unpinned.pinned_cell_id) == ("K80", None)
    assert read_request(pod("p", said=FULL)) == PodRequest(
        group="t/default/group-1",
        namespace="t",
        vc="research",
        priority=5,
        members=(Member(3, 2), Member(1, 4)),
        leaf_cells=2,
        pinned_cell_id="PIN",
        lazy_preemption=True,
        anywhere=False,
        title="default/group-1",
    )
    former = FULL.replace("leafCellType", "gpuType").replace("leafCellNumber", "gpuNumber")
    assert read_request(pod("p", said=former)) == read_request(pod("p", said=FULL))


def test_defaults_are_upstreams() -> None:
    found = read_request(pod("p", said="virtualCluster: a\nleafCellNumber: 1\naffinityGroup: null"))
    assert found == PodRequest("t/p", "t", "a", 0, (Member(1, 1),), 1, anywhere=True, title="t/p")
    assert not found.whole


def test_kinds_of_pods_in_a_group() -> None:
    """64 of them, and no more."""
    kinds = [{"podNumber": 1, "leafCellNumber": gpus} for gpus in range(1, 66)]
    group = {"name": "g", "members": kinds[:64]}
    assert len(read_request(pod("p", said=said(affinityGroup=group))).members) == 64
    with pytest.raises(PodRequestError, match="members"):
        read_request(pod("p", said=said(affinityGroup=group | {"members": kinds})))


def test_names_are_of_the_own_namespace() -> None:
    """A pod cannot take a name of another."""
    assert read_request(pod("p", said=said_group("victim/train", 1))).group == "t/victim/train"
    own = read_request(pod("p", said=said_group("t/train", 1)))
    assert (own.group, own.title) == ("t/train", "t/train")


WRONG_ANNOTATIONS = [
    ("a: [", "annotation", "YAML:2: not valid YAML"),
    ("", "annotation", "expected keys such as virtualCluster, not nothing"),
    ("- 1", "annotation", "expected keys"),
    ("x" * 40_000, "annotation", "40,000 characters"),
    (said(version="v2"), "annotation", "version 'v2' is not known"),
    (said(virtualCluster="LEFT OUT"), "vc", "virtualCluster: it names none"),
    (said(virtualCluster=True), "annotation", "virtualCluster: a name, not True"),
    (said(leafCellNumber="LEFT OUT"), "annotation", "leafCellNumber: a number from 1 to 1,048,576, not nothing"),
    (said(leafCellNumber=0), "annotation", "leafCellNumber: a number from 1"),
    (said(leafCellNumber=True), "annotation", "not True"),
    (said(priority=-2), "annotation", "priority: a number from -1 to 1,000, not -2"),
    (said(priority=1001), "annotation", "not 1001"),
    (said(priority=1.5), "annotation", "not 1.5"),
    (said(lazyPreemptionEnable="yes"), "annotation", "lazyPreemptionEnable: true or false, not 'yes'"),
    (said(affinityGroup=[1]), "annotation", "affinityGroup: expected keys"),
    (said(affinityGroup={}), "members", "affinityGroup.name: a group needs a name"),
    (said(affinityGroup={"name": "g"}), "members", "members: a list of podNumber and leafCellNumber, not nothing"),
    (said(affinityGroup={"name": "g", "members": []}), "members", "a list of podNumber"),
    (said(affinityGroup={"name": "g", "members": [3]}), "annotation", r"members\[0\]: expected keys, not 3"),
    (said_group("g", 0), "annotation", r"members\[0\]: podNumber: a number from 1 to 1,000, not 0"),
    (said_group("g", 2, 8), "members", r"no member of the group has this pod's leafCellNumber 1 \(8\)"),
    (
        said(affinityGroup={"name": "g", "members": [{"podNumber": 600, "leafCellNumber": 1}] * 2}),
        "members",
        "1,200 pods are too many for one group",
    ),
    # its place does not fit on its pods
    (
        said(affinityGroup={"name": "g", "members": [{"podNumber": 1000, "leafCellNumber": 16}]}, leafCellNumber=16),
        "members",
        r"1000 x 16 GPUs are does not fit on each of its pods .* bytes of 250,000",
    ),
    ("a: 1\n---\nb: 2", "annotation", "2 YAML documents, not one"),
    ("a: 1\na: 2", "annotation", "YAML:2: key `a` is given twice"),
]


@pytest.mark.parametrize(("text", "kind", "message"), WRONG_ANNOTATIONS, ids=range(len(WRONG_ANNOTATIONS)))
def test_wrong_annotation(text: str, kind: str, message: str) -> None:
    with pytest.raises(PodRequestError, match=message) as caught:
        read_request(pod("p", said=text))
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 400


def nine_times(first: str, another: str) -> str:
    """Lines each of which has the one before nine times, ten deep."""
    return first + "".join(
        another.format(name, ",".join([f"*{before}"] * 9)) for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )


#: text made to take a reader down
BOMBS = {
    "brackets": "[" * 30_000,
    "braces": "{a: " * 8_000,
    "dashes": "- " * 16_000,
    "questions": "? " * 16_000,
    "itself": "&a [*a]",
    "laughs": nine_times("a: &a [1,1,1,1,1,1,1,1,1]\n", "{0}: &{0} [{1}]\n"),
    "merges": nine_times("a: &a {k: v}\n", "{0}: &{0} {{<<: [{1}]}}\n"),
    "sexagesimal": "a: " + "1:" * 300 + "1.0",
    "empty int": "a: !!int ''",
    "no time": "a: !!timestamp x",
    "no bool": "a: !!bool x",
    "object": "!!python/object/apply:os.system [x]",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_yaml_bomb(text: str) -> None:
    """An honest alias is none."""
    assert read_yaml("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(PodRequestError):
        read_request(pod("p", said=text))


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text("[]{}:,-?&*!#|>'\"%@`<= \n\tab01.~xnov", max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        ).map(yaml.safe_dump),
        st.fixed_dictionaries(
            {"virtualCluster": st.just("a"), "leafCellNumber": st.just(1)},
            optional={
                key: st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
                for key in ("priority", "pinnedCellId", "leafCellType", "affinityGroup", "version", "gpuNumber")
            },
        ).map(yaml.safe_dump),
    )
)
def test_any_text(text: str) -> None:
    """It is a request, or an error in words."""
    with suppress(PodRequestError):  # the tests above check its message
        found = read_request(pod("p", said=text))
        assert found.request().members
        assert found.vc


# -- labels -----------------------------------------------------------------------------------------------------------


def test_every_label() -> None:
    assert read_request(pod("p", 2, "a")) == PodRequest("t/p", "t", "a", 0, (Member(1, 2),), 2, whole=True)
    more = {"priority": "7", "leaf_cell_type": "V100", "pinned_cell": "PIN", "within": "RACK"}
    found = read_request(pod("p", 4, "a", group="g", group_size="3", lazy_preemption="true", more=more))
    assert found == PodRequest(
        "t/g", "t", "a", 7, (Member(3, 4),), 4, "V100", "PIN", True, "RACK", whole=True, counted=3
    )


@pytest.mark.parametrize(
    ("labels", "priority", "early"),
    [
        ({"priority": "opportunistic"}, -1, False),
        ({"mode": "guaranteed", "priority": "3"}, 3, False),
        ({"mode": "opportunistic"}, -1, False),
        ({"mode": "opportunistic", "priority": "-1"}, -1, False),
        ({"mode": "either"}, 0, True),
        ({"mode": "either", "priority": "7"}, 7, True),
    ],
)
def test_mode_and_priority(labels: dict[str, str], priority: int, early: bool) -> None:
    asked = read_request(pod("p", more=labels))
    assert (asked.priority, asked.early) == (priority, early)


def test_early_gang_has_the_grace_of_a_loan() -> None:
    early = read_request(pod("p", mode="either"))
    check_grace(pod("p"), early, 30)
    with pytest.raises(PodRequestError, match="a pod that may run on a loan"):
        check_grace(pod("p"), early, 10)


WRONG_LABELS = [
    ({"group": "g"}, "members", "group needs hived.io/group-size beside it"),
    ({"group_size": "2"}, "members", "group-size needs hived.io/group beside it"),
    ({"group": "g", "group_size": "0"}, "labels", "group-size: a number from 1 to 1,000, not '0'"),
    ({"group": "g", "group_size": "1001"}, "labels", "not '1001'"),
    ({"group": "g", "group_size": "many"}, "labels", "not 'many'"),
    ({"group": "g", "group_size": "9" * 50}, "labels", "a number from 1"),
    ({"priority": "-2"}, "labels", "priority: a number from -1 to 1,000, not '-2'"),
    ({"priority": "high"}, "labels", "not 'high'"),
    ({"lazy_preemption": "yes"}, "labels", "lazy-preemption: true or false, not 'yes'"),
    ({"mode": "both"}, "labels", "label hived.io/mode: one of guaranteed, opportunistic, either, not 'both'"),
    ({"mode": "either", "priority": "opportunistic"}, "labels", "give one of them"),
    ({"mode": "opportunistic", "priority": "0"}, "labels", "give one of them"),
    ({"mode": "guaranteed", "priority": "-1"}, "labels", "give one of them"),
]


@pytest.mark.parametrize(("labels", "kind", "message"), WRONG_LABELS, ids=range(len(WRONG_LABELS)))
def test_wrong_labels(labels: dict[str, str], kind: str, message: str) -> None:
    with pytest.raises(PodRequestError, match=message) as caught:
        read_request(pod("p", more=labels))
    assert caught.value.kind == kind


def test_pod_without_a_vc_or_gpus() -> None:
    with pytest.raises(PodRequestError, match="names no virtual cluster; give it the label hived"):
        read_request(pod("p", vc=None))
    bare = replace(pod("p"), spec=PodSpec(containers=[Container(name="main")]))
    with pytest.raises(PodRequestError, match="put a number under resources"):
        read_request(bare)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["group", "group_size", "priority", "gang", "within", "lazy_preemption", "pinned_cell"]),
        st.text("abc019-._", max_size=6) | st.sampled_from(["true", "false", "3", "-1"]),
    ),
    st.sampled_from([None, (Member(1, 1),), (Member(2, 1), Member(1, 2))]),
    st.booleans(),
)
def test_any_labels(labels: dict[str, str], members: tuple[Member, ...] | None, owned: bool) -> None:
    """They are a request, or an error in words."""
    with suppress(PodRequestError):  # the tests above check its message
        found = read_request(pod("p", more=labels, owner=JOB if owned else None), members)
        assert found.size >= 1
        assert any(member.leaf_cells == found.leaf_cells for member in found.members)


# -- owners -----------------------------------------------------------------------------------------------------------


def test_job_is_a_gang() -> None:
    """Of known size: by its owner, or by a label alone."""
    one = pod("train-0", 2, owner=JOB)
    assert gang_owner(one) == JOB
    found = read_request(one, (Member(4, 2),))
    assert (found.group, found.owner, found.members) == ("t/train", "job-1", (Member(4, 2),))
    found = read_request(pod("train-0", 2, owner=JOB, group_size="3"))
    assert (found.group, found.owner, found.members) == ("t/train", "job-1", (Member(3, 2),))


def test_job_that_is_no_gang() -> None:
    """Of single pods; a Job of one pod is one, since it may grow."""
    one, single = pod("train-0", 2, owner=JOB), pod("train-0", 2, owner=JOB, gang="false")
    assert (read_request(one, (Member(1, 2),)).group, read_request(single).group) == ("t/train", "t/train-0")
    assert gang_owner(single) is None
    assert gang_owner(with_limits(one, {"nvidia.com/gpu": "0"})) is None, "a Job without GPUs was read, and refused"
    assert read_request(single, (Member(4, 2),)).members == (Member(1, 2),)
    for owner in (replace(JOB, controller=None), replace(JOB, api_version="apps/v1", kind="ReplicaSet")):
        assert gang_owner(pod("p", owner=owner)) is None


def test_jobs_of_a_jobset_are_one_gang() -> None:
    """The controller of a pod is one of several Jobs, and the size is that of all of them."""
    sizes = (Member(2, 4), Member(1, 1))
    asks = []
    for number, gpus in ((0, 4), (1, 4), (2, 1)):
        job = replace(JOB, name=f"set-{number}", uid=f"job-{number}")
        one = pod(f"set-{number}-0", gpus, owner=job)
        assert one.metadata.labels is not None
        one.metadata.labels[keys.JOBSET] = "set"
        asks.append(read_request(one, sizes))
    assert {found.group for found in asks} == {"t/set"}
    assert len({found.owner for found in asks}) == 1
    assert all(found.disagrees(asks[0]) is None for found in asks)


@pytest.mark.parametrize(
    ("gpus", "members", "message"),
    [
        (3, (Member(4, 2),), "its 3 GPUs are not those of any pod of its group: 4 x 2"),
        (1, (Member(1001, 1),), "Job train: 1,001 pods are too many"),
    ],
)
def test_wrong_size_of_a_job(gpus: int, members: tuple[Member, ...], message: str) -> None:
    with pytest.raises(PodRequestError, match=message):
        read_request(pod("train-0", gpus, owner=JOB), members)


def test_pods_of_a_group_that_differ() -> None:
    one = read_request(pod("p", group="g", group_size="2"))
    assert one.disagrees(with_fields(one, leaf_cells=9)) is None
    assert one.disagrees(with_fields(one, namespace="x")) == "namespace: t here, x there"
    assert one.disagrees(with_fields(one, vc="b")) == "vc: 'a' here, 'b' there"
    assert one.disagrees(with_fields(one, within="RACK")) == "within: nothing here, 'RACK' there"
    assert one.disagrees(with_fields(one, early=True)) == "mode: 'guaranteed' here, 'either' there"
    assert one.disagrees(with_fields(one, members=(Member(3, 1),), counted=3)) == "members: 2 x 1 here, 3 x 1 there"


# -- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "first", "gpus"),
    [
        ([{"hived.io/gpu": "2"}, {"hived.io/gpu": 1}], [], 3),
        ([{"hived.io/gpu": 1}], [{"hived.io/gpu": 4}], 4),
        ([{"nvidia.com/gpu": "8"}], [], 8),
        ([{"amd.com/gpu": "8"}, {}], [], 8),
        ([{"hived.io/gpu": "1", "nvidia.com/gpu": "8"}], [], 8),
        ([{"hived.io/gpu": "1"}, {"nvidia.com/gpu": "8"}], [], 8),
        ([{"nvidia.com/gpu": "1k"}], [], 1000),
        ([{"nvidia.com/gpu": "7000m"}], [], 7),
        ([{"nvidia.com/gpu": "1009000m"}], [], 1009),
        ([{"nvidia.com/gpu": "2.0"}], [], 2),
    ],
)
def test_gpus_of_containers(limits: list[Limits], first: list[Limits], gpus: int) -> None:
    """Those of all of them, or of the largest that runs first."""
    assert read_request(with_limits(pod("p"), *limits, first=first)).leaf_cells == gpus


@pytest.mark.parametrize(
    ("first", "gpus"),
    [([("Always", 1)], 3), ([("Always", 1), (None, 4)], 5), ([(None, 4), ("Always", 1)], 4), ([("Always", 4)], 6)],
)
def test_gpus_of_sidecars(first: list[tuple[str | None, int]], gpus: int) -> None:
    # a sidecar stays beside what runs later; its GPUs were not counted, and given to others
    def container(number: int, policy: str | None = None) -> Container:
        return Container(resources=Resources(limits={"nvidia.com/gpu": number}), restart_policy=policy)

    init = [container(number, policy) for policy, number in first]
    one = replace(pod("p"), spec=PodSpec(containers=[container(2)], init_containers=init))
    assert read_request(one).leaf_cells == gpus


def test_annotation_asks_for_too_few() -> None:
    one = with_limits(pod("p", said="{virtualCluster: a, leafCellNumber: 1}"), {keys.ENABLE: 1, "nvidia.com/gpu": 8})
    with pytest.raises(PodRequestError, match="leafCellNumber 1, and its containers ask for 8 GPUs"):
        read_request(one)


@pytest.mark.parametrize("value", ["500m", "-1", "nan", "inf", "1e400", "some", "", "0x2", "1048577", 1.5])
def test_no_whole_number_of_gpus(value: str | float) -> None:
    with pytest.raises(PodRequestError, match=r"container main: nvidia\.com/gpu: a whole number of GPUs"):
        read_request(with_limits(pod("p"), {"nvidia.com/gpu": value}))


def test_pods_that_concern_hived() -> None:
    """With a VC, an annotation or a wish for its devices; on GPUs of its own without labels too."""
    assert concerns(pod("p"))
    assert concerns(pod("p", said="x"))
    assert concerns(pod("p", vc=None))
    bare = with_limits(pod("p", vc=None), {"nvidia.com/gpu": 1})
    assert not concerns(bare)
    runs = labelled(on(with_limits(pod("p"), {"nvidia.com/gpu": 1}), "n0", {keys.BIND_INFO: "x"}), vc=None)
    assert concerns(runs)
    assert not concerns(annotated(runs, BIND_INFO=None))
