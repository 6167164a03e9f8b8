"""The request of a pod: from upstream's annotation, or else from its labels, GPU limits and owner.

Input is untrusted: YAML is read with the limits of a spec, and errors name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from hived.cluster.requests import HIGHEST, OPPORTUNISTIC, Member, Request
from hived.errors import InputError, SpecError
from hived.spec import read_documents

from . import keys
from .objects import Container, Node, Owner, Pod

#: pods of a gang: each is annotated with the placement of all
MOST_PODS = 1000
#: upper bounds of a placement as an annotation, and the limit for an object
_BYTES_A_POD, _BYTES_A_DEVICE, _MOST_BYTES = 200, 4, 250_000
_LONGEST = 8_192  #: characters of the annotation
_LONGEST_YAML = 262_144  #: characters: more than all annotations of an object may have
_MOST_MEMBERS = 64  #: kinds of pods in a group
#: API group and kind of owners whose pods form a gang
GANG_OWNERS = {("batch", "Job"), ("jobset.x-k8s.io", "JobSet"), ("kubeflow.org", "PyTorchJob")}
#: who binds pods that name no scheduler, or are created on their node
_DEFAULT_SCHEDULER = "default-scheduler"
#: former names of annotation keys
_FORMER = {"gpuType": "leafCellType", "gpuNumber": "leafCellNumber"}
_MODES = ("guaranteed", "opportunistic", "either")
_YES = {"true": True, "false": False}


class PodRequestError(InputError):
    """The request of a pod is invalid or impossible. ``kind``: label for metrics."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_yaml(text: str) -> Any:
    """The value of one YAML document; None: empty. Raises :class:`ValueError` with a readable message. O(text)."""
    if len(text) > _LONGEST_YAML:
        raise ValueError(f"{len(text):,} characters; at most {_LONGEST_YAML:,}")
    try:
        documents = list(read_documents(text, "YAML"))
    except SpecError as error:
        raise ValueError(str(error)) from None
    if len(documents) > 1:
        raise ValueError(f"{len(documents)} YAML documents, not one")
    return documents[0].data if documents else None


def word(value: object) -> str:
    """A value as it was given, shortened for messages."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The request of one pod and of its group. Pods of a group differ only in ``leaf_cells``."""

    group: str  #: name of the group, unique in the cluster
    namespace: str
    vc: str
    priority: int
    members: tuple[Member, ...]
    leaf_cells: int  #: of this pod
    leaf_cell_type: str | None = None
    pinned_cell_id: str | None = None
    lazy_preemption: bool = False
    within: str | None = None
    owner: str = ""  #: uid of the owner whose pods form the gang
    anywhere: bool = False  #: its cells alone decide, whatever nodes kube-scheduler offers
    whole: bool = False  #: placed only once all of its pods exist
    early: bool = False  #: it may start on a loan before its turn
    title: str = ""  #: the group's name in its pods, which need not be unique; "": as ``group``
    counted: int = 0  #: number of its pods by label, those without GPUs among them; 0: by owner or annotation

    @property
    def size(self) -> int:
        """Pods of the group."""
        return sum(member.pods for member in self.members)

    @property
    def gpus(self) -> int:
        """GPUs of the group."""
        return sum(member.pods * member.leaf_cells for member in self.members)

    @property
    def mode(self) -> str:
        """``guaranteed``, ``opportunistic`` or ``either``."""
        return "either" if self.early else "opportunistic" if self.priority < 0 else "guaranteed"

    def request(self) -> Request:
        """The group's request to the core."""
        return Request(
            self.group,
            self.vc,
            self.priority,
            self.members,
            self.leaf_cell_type,
            self.pinned_cell_id,
            self.lazy_preemption,
            self.within,
        )

    def disagrees(self, other: PodRequest) -> str | None:
        """How two requests that name one group differ, in words; None: they are of one group."""
        if self.namespace != other.namespace:
            return f"namespace: {self.namespace} here, {other.namespace} there"
        for name in ("vc", "priority", "leaf_cell_type", "pinned_cell_id", "lazy_preemption", "within", "mode"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name.replace('_', ' ')}: {word(mine)} here, {word(theirs)} there"
        if self.members != other.members and not self.changes_to(other):
            what = f"members: {_members(self.members)} here, {_members(other.members)} there"
            if self.counted and self.counted == other.counted:
                what += f"; pods of several sizes are said by the annotation {keys.POD_SPEC}, in affinityGroup.members"
            return what
        return None

    def changes_to(self, other: PodRequest) -> bool:
        """Whether two requests are of one group whose number of pods changes.

        An owner may define others by now; a label counts pods without GPUs, and not all of these may have been known.
        """
        if self.counted:
            return (self.counted, self.leaf_cells) == (other.counted, other.leaf_cells)
        return bool(self.owner) and self.owner == other.owner and not other.counted


def concerns(pod: Pod) -> bool:
    """Whether HiveD schedules ``pod``: by its resources, label or annotation, or since it was bound with a placement.

    A pod without GPUs is not HiveD's, whatever its labels. A bound pod may have lost its labels, but still uses its
    devices; without a placement it is HiveD's only if neither another scheduler nor a device plugin has given it some.
    """
    bound = bool(pod.spec.node_name)
    if bound and pod.annotation(keys.BIND_INFO) is None and pod.spec.scheduler_name == _DEFAULT_SCHEDULER:
        return False
    return (
        pod.annotation(keys.POD_SPEC) is not None
        or (bound and pod.annotation(keys.BIND_INFO) is not None)
        or any(positive(value) for _, value in limits(pod, (keys.ENABLE, keys.GPU)))
        or (not bound and pod.label(keys.VC) is not None and _asks_for_gpus(pod))
    )


def helps(pod: Pod) -> str | None:
    """The group that a pod without GPUs is counted in by its labels, such as a launcher; None: no group."""
    group = pod.label(keys.GROUP)
    if group is None or pod.label(keys.VC) is None or pod.ended or concerns(pod) or _asks_for_gpus(pod):
        return None
    return f"{pod.metadata.namespace}/{group}"


def _asks_for_gpus(pod: Pod) -> bool:
    return any(positive(value) for _, value in limits(pod, keys.GPU_RESOURCES))


def may_concern(pod: Pod) -> bool:
    """Whether kube-scheduler may ask about ``pod``: it requests devices of any kind."""
    return concerns(pod) or _asks_for_gpus(pod)


def gang_owner(pod: Pod) -> Owner | None:
    """The owner that has to be read before :func:`read_request` of ``pod``; None: none."""
    if pod.annotation(keys.POD_SPEC) is not None or pod.label(keys.VC) is None or not _asks_for_gpus(pod):
        return None
    if pod.label(keys.GANG) == "false" or pod.label(keys.GROUP) is not None:
        return None
    for owner in pod.metadata.owner_references or ():
        if owner.controller and (owner.api_version.partition("/")[0], owner.kind) in GANG_OWNERS:
            return owner
    return None


def family(pod: Pod, group: str) -> str:
    """What the pods that replace each other have in common: their group, or the owner of a group of one pod."""
    owners = (owner.uid for owner in pod.metadata.owner_references or () if owner.controller)
    return next(owners, group) if group == pod.key else group


def read_request(pod: Pod, members: tuple[Member, ...] | None = None) -> PodRequest:
    """The request of ``pod``. ``members``: its gang as its owner defines it. Raises :class:`PodRequestError`."""
    text = pod.annotation(keys.POD_SPEC)
    if text is not None:
        return _from_annotation(pod, text)
    vc = pod.label(keys.VC)
    if vc is None:
        what = f"label {keys.VC} or annotation {keys.POD_SPEC}"
        unknown = _unknown_label(pod)
        more = f" ({unknown})" if unknown else ""
        raise PodRequestError("vc", f"it asks for GPUs and names no virtual cluster; give it the {what}{more}")
    return _from_labels(pod, vc, members)


def check_labels(pod: Pod) -> None:
    """Raise :class:`PodRequestError` if a pod has an unknown label with HiveD's prefix, which would have no effect."""
    if pod.annotation(keys.POD_SPEC) is None and (unknown := _unknown_label(pod)):
        raise PodRequestError("labels", unknown)


def _unknown_label(pod: Pod) -> str:
    """An error about an unknown label with HiveD's prefix, with the likely meant one; "" if there is none."""
    known = {*keys.LABELS, keys.TURN, keys.ROLE}
    for label in sorted(pod.metadata.labels or ()):
        if label.startswith(keys.PREFIX) and label not in known:
            words = [one.removeprefix(keys.PREFIX) for one in keys.LABELS]
            meant = get_close_matches(label.removeprefix(keys.PREFIX), words, 1)
            way_out = f"is {keys.PREFIX}{meant[0]} meant?" if meant else f"there are {', '.join(keys.LABELS)}"
            return f"label {word(label)} is not known; {way_out}"
    return ""


def check_grace(pod: Pod, ask: PodRequest, most: int) -> None:
    """Raise :class:`PodRequestError` if a pod on loan has a grace period of more than ``most`` seconds."""
    if ask.mode != "guaranteed" and pod.grace_s > most:
        kind = "a pod that may run on a loan" if ask.early else "an opportunistic pod"
        raise PodRequestError(
            "grace",
            f"terminationGracePeriodSeconds: {pod.grace_s:,}, and {kind} of {ask.vc} has at most "
            f"{most:,} s to end (opportunisticGraceSeconds of its virtual cluster), as its GPUs are others'; "
            "ask for no more",
        )


# -- upstream's annotation --------------------------------------------------------------------------------------------


def _from_annotation(pod: Pod, text: str) -> PodRequest:
    said = _parsed(text)
    if (asked := pod_gpus(pod) or 0) > said.leaf_cells:
        cells = f"leafCellNumber {said.leaf_cells}"
        raise PodRequestError("gpus", f"annotation {keys.POD_SPEC}: {cells}, and its containers ask for {asked} GPUs")
    # names are scoped to the namespace, so no namespace can take a name of another
    home, name = f"{pod.metadata.namespace}/", said.title or pod.key
    group = name if name.startswith(home) else home + name
    return replace(said, group=group, namespace=pod.metadata.namespace, title=name)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> PodRequest:
    """The request of the annotation alone; ``title``: the group that it names, "" for none.

    Cached, as all pods of a gang have the same annotation.
    """
    where = f"annotation {keys.POD_SPEC}"
    if len(text) > _LONGEST:
        raise PodRequestError("annotation", f"{where}: {len(text):,} characters; at most {_LONGEST:,}")
    try:
        value = read_yaml(text)
    except ValueError as error:
        raise PodRequestError("annotation", f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise PodRequestError("annotation", f"{where}: expected keys such as virtualCluster, not {word(value)}")
    fields = _Fields(where, value)
    if fields.values.get("version") not in (None, "v1"):
        raise PodRequestError("annotation", f"{where}: version {word(fields.values['version'])} is not known, v1 is")
    title, members = None, None
    if fields.values.get("affinityGroup") is not None:
        inner = fields.inside("affinityGroup", fields.values["affinityGroup"])
        title = inner.text("name")
        if not title:
            raise PodRequestError("members", f"{inner.where}.name: a group needs a name")
        members = inner.members()
    vc = fields.text("virtualCluster")
    if not vc:
        raise PodRequestError("vc", f"{where}: virtualCluster: it names none")
    priority = fields.number("priority", 0, OPPORTUNISTIC, HIGHEST)
    cells = fields.number("leafCellNumber", None, 1, 1_048_576)
    device, pinned = fields.text("leafCellType"), fields.text("pinnedCellId")
    said = PodRequest(
        "",
        "",
        vc,
        priority,
        members or (Member(1, cells),),
        cells,
        None if pinned else device,  # upstream looks at the pinned cell alone
        pinned,
        fields.flag("lazyPreemptionEnable", False),
        anywhere=fields.flag("ignoreK8sSuggestedNodes", True),
        title=title or "",
    )
    if all(member.leaf_cells != cells for member in said.members):
        sizes = ", ".join(str(member.leaf_cells) for member in said.members)
        raise PodRequestError(
            "members", f"{where}: no member of the group has this pod's leafCellNumber {cells} ({sizes})"
        )
    return said


class _Fields:
    """Typed access to the values of one mapping."""

    def __init__(self, where: str, values: Mapping[Any, object]) -> None:
        self.where = where
        self.values = {_FORMER.get(key, key): value for key, value in values.items() if isinstance(key, str)}

    def inside(self, key: str, value: object) -> _Fields:
        """A nested mapping."""
        where = f"{self.where}: {key}"
        if not isinstance(value, dict):
            raise PodRequestError("annotation", f"{where}: expected keys, not {word(value)}")
        return _Fields(where, value)

    def text(self, key: str) -> str | None:
        """A string; None: not set. A number counts as its text."""
        value = self._value(key, "a name", _is_name)
        return None if value is None or value == "" else str(value)

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """An integer within limits."""
        wanted = f"a number from {least} to {most:,}"
        return int(self._value(key, wanted, lambda value: type(value) is int and least <= value <= most, default))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._value(key, "true or false", lambda value: type(value) is bool, default))

    def _value(self, key: str, wanted: str, right: Callable[[Any], bool], default: object = None) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if not right(value):
            raise PodRequestError("annotation", f"{self.where}: {key}: {wanted}, not {word(value)}")
        return value

    def members(self) -> tuple[Member, ...]:
        """The members of a group."""
        value = self.values.get("members")
        if not isinstance(value, list) or not value or len(value) > _MOST_MEMBERS:
            raise PodRequestError(
                "members", f"{self.where}.members: a list of podNumber and leafCellNumber, not {word(value)}"
            )
        found = []
        for position, one in enumerate(value):
            inner = self.inside(f"members[{position}]", one)
            pods = inner.number("podNumber", None, 1, MOST_PODS)
            found.append(Member(pods, inner.number("leafCellNumber", None, 1, 1_048_576)))
        return _checked(tuple(found), self.where)


def _is_name(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
    return value is None or isinstance(value, str) or whole


# -- labels -----------------------------------------------------------------------------------------------------------


def _from_labels(pod: Pod, vc: str, members: tuple[Member, ...] | None) -> PodRequest:
    cells = pod_gpus(pod)
    if cells is None:
        wanted = ", ".join(keys.GPU_RESOURCES)
        raise PodRequestError(
            "gpus", f"it asks for no GPUs; put a number under resources.limits of a container ({wanted})"
        )
    alone = pod.label(keys.GANG) == "false"
    group, size = pod.label(keys.GROUP), pod.label(keys.GROUP_SIZE)
    owner = gang_owner(pod)
    name, uid = pod.key, ""
    if alone or (group is None and owner is None and size is None):
        members = (Member(1, cells),)
    else:
        if group is not None and size is None:
            raise PodRequestError(
                "members", f"label {keys.GROUP} needs {keys.GROUP_SIZE} beside it: how many pods there are"
            )
        if group is None and owner is None:
            raise PodRequestError(
                "members", f"label {keys.GROUP_SIZE} needs {keys.GROUP} beside it: which pods go together"
            )
        job, uid = (str(group), "") if owner is None else _job(pod, owner)
        name = f"{pod.metadata.namespace}/{job}"
        if size is not None:
            members = (Member(_within(keys.GROUP_SIZE, size, 1, MOST_PODS), cells),)
        elif owner is not None:  # with one pod too: it may define more later
            members = _checked(members or (Member(1, cells),), f"{owner.kind} {owner.name}")
    assert members is not None
    if all(member.leaf_cells != cells for member in members):
        raise PodRequestError("members", f"its {cells} GPUs are not those of any pod of its group: {_members(members)}")
    priority, early = _priority(pod)
    return PodRequest(
        name,
        pod.metadata.namespace,
        vc,
        priority,
        members,
        cells,
        pod.label(keys.LEAF_CELL_TYPE),
        pod.label(keys.PINNED_CELL),
        _flag(pod, keys.LAZY_PREEMPTION),
        pod.label(keys.WITHIN),
        uid,
        whole=True,
        early=early,
        counted=sum(member.pods for member in members) if size is not None and not alone else 0,
    )


def _priority(pod: Pod) -> tuple[int, bool]:
    """The priority of a pod, and whether it may start on a loan before its turn."""
    said, mode = pod.label(keys.PRIORITY), pod.label(keys.MODE)
    if mode not in (None, *_MODES):
        raise PodRequestError("labels", f"label {keys.MODE}: one of {', '.join(_MODES)}, not {word(mode)}")
    default = "opportunistic" if mode == "opportunistic" else "0"
    text = default if said is None else said or "0"
    value = OPPORTUNISTIC if text == "opportunistic" else _within(keys.PRIORITY, text, OPPORTUNISTIC, HIGHEST)
    if mode is not None and (value < 0) is not (mode == "opportunistic"):
        raise PodRequestError(
            "labels", f"label {keys.MODE} is {mode}, and label {keys.PRIORITY} {word(text)}; give one of them"
        )
    return value, mode == "either"


def _job(pod: Pod, owner: Owner) -> tuple[str, str]:
    """Name and uid of the owner of a gang: the pods' owner, or the JobSet that owns it."""
    above = pod.label(keys.JOBSET)
    return (owner.name, owner.uid) if above is None else (above, pod.label(keys.JOBSET_UID) or keys.JOBSET)


def _within(key: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text) if len(text) < 12 else most + 1
    except ValueError:
        value = most + 1
    if not least <= value <= most:
        raise PodRequestError("labels", f"label {key}: a number from {least} to {most:,}, not {word(text)}")
    return value


def _flag(pod: Pod, key: str) -> bool:
    text = pod.label(key)
    if text is None:
        return False
    if text not in _YES:
        raise PodRequestError("labels", f"label {key}: true or false, not {word(text)}")
    return _YES[text]


def _checked(members: tuple[Member, ...], where: str) -> tuple[Member, ...]:
    pods = sum(member.pods for member in members)
    written = sum(member.pods * (_BYTES_A_POD + _BYTES_A_DEVICE * member.leaf_cells) for member in members)
    if pods <= MOST_PODS and written > _MOST_BYTES:
        raise PodRequestError(
            "members",
            f"{where}: where {_members(members)} GPUs are does not fit on each of its pods as an annotation (about "
            f"{written:,} bytes of {_MOST_BYTES:,}); make it several groups",
        )
    if pods > MOST_PODS:
        raise PodRequestError(
            "members", f"{where}: {pods:,} pods are too many for one group, at most {MOST_PODS:,} go together"
        )
    return members


def _members(members: tuple[Member, ...]) -> str:
    return " + ".join(f"{member.pods} x {member.leaf_cells}" for member in members[:10])


# -- GPUs, by resources -----------------------------------------------------------------------------------------------


def uses(pod: Pod) -> tuple[bool, int | None]:
    """Whether a pod may use devices, and how many, by its resources, which are immutable.

    None: the number is unknown.
    """
    if any(positive(value) for _, value in limits(pod, (keys.ENABLE,))):
        return True, None
    try:
        number = pod_gpus(pod)
    except PodRequestError:
        return True, None
    return number is not None, number


def named_devices(pod: Pod, number: int | None) -> tuple[int, ...] | None:
    """The devices that a pod's annotations name, if they match the number in its resources (None: any number)."""
    words = (pod.annotation(keys.ISOLATION) or pod.annotation(keys.FORMER_ISOLATION) or "").split(",")
    if all(word.strip().isdecimal() and len(word) < 8 for word in words) and number in (None, len(words)):
        return tuple(int(word) for word in words)
    return None


def pod_gpus(pod: Pod) -> int | None:
    """Devices that a pod requests: the maximum in use at a time, as Kubernetes counts. None: it requests none."""
    return gpus_of(pod.spec.containers or (), pod.spec.init_containers or ())


def shares(pod: Pod, devices: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The devices of each container, where several ask for some: each its own, in the order of the pod.

    Sidecars and containers run at a time. An init container runs before the containers, and has the first devices that
    no sidecar has by then. {}: one container has all devices, or they are not counted by container.
    """
    first, running = pod.spec.init_containers or (), pod.spec.containers or ()
    counts = {one.name: max(_count(one, resource) for resource in keys.GPU_RESOURCES) for one in (*first, *running)}
    if sum(number > 0 for number in counts.values()) < 2:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    taken = 0
    for one in (*first, *running):
        found[one.name] = devices[taken : taken + counts[one.name]]
        if one.restart_policy == "Always" or one in running:
            taken += counts[one.name]
    return {name: share for name, share in found.items() if counts[name]}


def gpus_of(containers: Iterable[Container], init_containers: Iterable[Container] = ()) -> int | None:
    """Devices that the containers of a template request; None: none.

    Of several GPU resources the largest counts, since all of them mean devices of the one node.
    """
    running, first = tuple(containers), tuple(init_containers)
    return max(_at_a_time(resource, running, first) for resource in keys.GPU_RESOURCES) or None


def _at_a_time(resource: str, containers: tuple[Container, ...], init_containers: tuple[Container, ...]) -> int:
    """The maximum in use at a time: init containers run one after another, except sidecars (restartPolicy Always)."""
    beside = most = 0
    for container in init_containers:
        number = _count(container, resource)
        if container.restart_policy == "Always":
            beside += number
        else:
            most = max(most, beside + number)
    return max(most, beside + sum(_count(container, resource) for container in containers))


def _count(container: Container, resource: str) -> int:
    value = (container.resources.limits or {}).get(resource) if container.resources is not None else None
    if value is None:
        return 0
    number = _whole(value)
    if number is None or not 0 <= number <= 1_048_576:
        raise PodRequestError(
            "gpus", f"container {container.name}: {resource}: a whole number of GPUs, not {word(value)}"
        )
    return number


def _whole(value: object) -> int | None:
    """A Kubernetes quantity as an integer; None: it is none."""
    text = str(value).strip()
    scale = {"k": 1000, "m": 0.001}.get(text[-1:], 0)
    try:
        number = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        return None
    return int(number) if number == number // 1 and abs(number) < 2**53 else None


def advertised(node: Node) -> int | None:
    """Devices that a node has for pods, by what its device plugins report; None: it has no such plugin.

    A plugin of each kind of device is added up. The resource of our own names the same devices again.
    """
    given = {name: _whole(value) for name, value in (node.status.allocatable or {}).items()}
    ours = given.get(keys.GPU)
    theirs = [number for name in keys.GPU_RESOURCES if name != keys.GPU and (number := given.get(name)) is not None]
    found = [number for number in (ours, sum(theirs) if theirs else None) if number is not None]
    return min(found, default=None)


def limits(pod: Pod, resources: tuple[str, ...]) -> list[tuple[str, object]]:
    """Name and quantity of each limit on one of ``resources`` in the containers of a pod."""
    containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
    found = [c.resources.limits or {} for c in containers if c.resources is not None]
    return [(name, of[name]) for of in found for name in resources if name in of]


def positive(value: object) -> bool:
    """Whether a quantity is positive, or invalid."""
    number = _whole(value)
    return number is None or number > 0
