"""Kubernetes objects, as far as HiveD reads them. msgspec skips the rest of them, which is most."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

#: what Kubernetes gives a pod to end that says nothing of it
GRACE_S = 30


class Owner(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Who controls an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None  #: RFC 3339, UTC, whole seconds
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Event(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What somebody was told about an object."""

    metadata: Metadata = Metadata()
    involved_object: Metadata = Metadata()
    reason: str = ""
    message: str = ""


class Resources(msgspec.Struct, frozen=True):
    """What a container asks for."""

    limits: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A container of a pod."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None  #: of an init container: ``Always`` for a sidecar


class PodSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a pod is to be."""

    node_name: str | None = None
    scheduler_name: str | None = None
    termination_grace_period_seconds: int | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    scheduling_gates: list[Any] | None = None  #: why no scheduler may look at it yet


class Condition(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None  #: RFC 3339


def _met(conditions: list[Condition] | None, kind: str, status: str) -> list[Condition]:
    """Conditions of one kind that stand so."""
    return [condition for condition in conditions or () if (condition.type, condition.status) == (kind, status)]


def _seconds(text: str | None) -> float:
    """Since the epoch; 0 where nothing is said."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return 0.0


class PodStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a pod is."""

    phase: str | None = None
    conditions: list[Condition] | None = None
    nominated_node_name: str | None = None


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        """Whether it holds nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def held_back(self) -> bool:
        """Whether it cannot be bound as it is: it is being deleted, or some controller does not let it go yet."""
        return self.metadata.deletion_timestamp is not None or bool(self.spec.scheduling_gates)

    @property
    def grace_s(self) -> int:
        """Seconds that it has to end, once it is told to."""
        said = self.metadata.deletion_grace_period_seconds
        said = self.spec.termination_grace_period_seconds if said is None else said
        return GRACE_S if said is None else said

    @property
    def created_at(self) -> float:
        """When it was created, in seconds since the epoch; 0 where it does not say."""
        return _seconds(self.metadata.creation_timestamp)

    @property
    def bound_at(self) -> float:
        """When it got its node, in the same way; when it was created, where it does not say that."""
        found = _met(self.status.conditions, "PodScheduled", "True")
        return _seconds(found[0].last_transition_time if found else None) or self.created_at

    @property
    def turned_down(self) -> list[str]:
        """What its scheduler has said of why it has no node."""
        return [found.message for found in _met(self.status.conditions, "PodScheduled", "False") if found.message]

    def annotation(self, key: str) -> str | None:
        """One annotation; None: it has none of that name."""
        return (self.metadata.annotations or {}).get(key)

    def label(self, key: str) -> str | None:
        """One label; None: it has none of that name."""
        return (self.metadata.labels or {}).get(key)


class NodeSpec(msgspec.Struct, frozen=True):
    """What a node is to be."""

    unschedulable: bool | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    """What a node is."""

    conditions: list[Condition] | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so."""
        return bool(_met(self.status.conditions, "Ready", "True"))


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None


#: any other object
Object = dict[str, Any]
