"""What the mind wants done in Kubernetes. Each can be done again; none of them has to succeed for safety."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evict:
    """Have a pod end: its gang has to go."""

    uid: str
    key: str  #: ``namespace/name``
    why: str
    grace: int | None = None  #: seconds that it has for it; None: what it asks for
    delete: bool = False  #: evictions have had their time: delete it, whatever its disruption budget says


@dataclass(frozen=True, slots=True)
class Wake:
    """Have kube-scheduler look at a pod again: it was told to wait, and can go now."""

    uid: str
    key: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a pod although kube-scheduler would not take the node: the pod asked for that."""

    uid: str
    key: str


@dataclass(frozen=True, slots=True)
class Annotate:
    """A bound pod stands in other cells than its annotations say."""

    uid: str
    key: str
    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Make an Event of a pod."""

    uid: str
    key: str
    reason: str
    message: str
    warning: bool = False
    gist: str = ""  #: what tells it from others for this reason; "": its message


@dataclass(frozen=True, slots=True)
class Binding:
    """The answer to kube-scheduler's bind: what to write, in one call."""

    uid: str
    key: str
    node: str
    notes: dict[str, str]


Instruction = Evict | Wake | Bind | Annotate | Tell
