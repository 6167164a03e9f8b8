"""What the gang scheduler wants done in Kubernetes. Each can be done again; none of them has to succeed for safety."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _OfPod:
    """Something about a pod."""

    uid: str
    key: str  #: ``namespace/name``


@dataclass(frozen=True, slots=True)
class Evict(_OfPod):
    """Have a pod end: its gang has to go."""

    why: str
    grace: int | None = None  #: seconds that it has for it; None: what it asks for
    delete: bool = False  #: evictions have had their time: delete it, whatever its disruption budget says


@dataclass(frozen=True, slots=True)
class Wake(_OfPod):
    """Have kube-scheduler look at a pod again: it was told to wait, and can go now."""


@dataclass(frozen=True, slots=True)
class Bind(_OfPod):
    """Bind a pod although kube-scheduler would not take the node: the pod asked for that."""


@dataclass(frozen=True, slots=True)
class Annotate(_OfPod):
    """A bound pod stands in other cells than its annotations say."""

    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tell(_OfPod):
    """Make an Event of a pod."""

    reason: str
    message: str
    warning: bool = False
    gist: str = ""  #: what tells it from others for this reason; "": its message


@dataclass(frozen=True, slots=True)
class Binding(_OfPod):
    """The answer to kube-scheduler's bind: what to write, in one call."""

    node: str
    notes: dict[str, str]


Instruction = Evict | Wake | Bind | Annotate | Tell
