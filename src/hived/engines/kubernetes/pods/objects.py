"""Kubernetes objects, as far as HiveD reads them. msgspec skips all other fields."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

#: reasons of a kubelet that admits no pod, beside ``OutOf...``
_REJECTED = ("UnexpectedAdmissionError", "TopologyAffinityError")
#: default grace period of a pod
GRACE_S = 30


class Owner(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An owner reference of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The metadata of any object."""

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
    """An Event about an object."""

    metadata: Metadata = Metadata()
    involved_object: Metadata = Metadata()
    reason: str = ""
    message: str = ""


class Resources(msgspec.Struct, frozen=True):
    """The resources of a container."""

    limits: dict[str, str | int | float] | None = None


class Container(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A container of a pod."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None  #: of an init container: ``Always`` for a sidecar


class PodSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The desired state of a pod."""

    node_name: str | None = None
    scheduler_name: str | None = None
    termination_grace_period_seconds: int | None = None
    service_account_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    scheduling_gates: list[Any] | None = None  #: why it may not be scheduled yet


class Condition(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None  #: RFC 3339


def _met(conditions: list[Condition] | None, kind: str, status: str) -> list[Condition]:
    """Conditions of one type with this status."""
    return [condition for condition in conditions or () if (condition.type, condition.status) == (kind, status)]


def _seconds(text: str | None) -> float:
    """Seconds since the epoch; 0 if ``text`` is missing or invalid."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return 0.0


class PodStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The observed state of a pod."""

    phase: str | None = None
    reason: str | None = None
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
        """Whether it has succeeded or failed, and holds nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def rejected(self) -> bool:
        """Whether the kubelet of its node did not admit it, as it has fewer devices or other resources."""
        reason = self.status.reason or ""
        return self.status.phase == "Failed" and (reason in _REJECTED or reason.startswith("OutOf"))

    @property
    def held_back(self) -> bool:
        """Whether it cannot be bound as it is: it is being deleted, or has a scheduling gate."""
        return self.metadata.deletion_timestamp is not None or bool(self.spec.scheduling_gates)

    @property
    def grace_s(self) -> int:
        """Its grace period in seconds."""
        said = self.metadata.deletion_grace_period_seconds
        said = self.spec.termination_grace_period_seconds if said is None else said
        return GRACE_S if said is None else said

    @property
    def service_account(self) -> str:
        """The name of its service account, in its namespace."""
        return self.spec.service_account_name or "default"

    @property
    def user(self) -> str:
        """Whose it is: its namespace and service account. Who has made it, Kubernetes does not tell."""
        return f"{self.metadata.namespace}/{self.service_account}"

    @property
    def created_at(self) -> float:
        """When it was created, in seconds since the epoch; 0: unknown."""
        return _seconds(self.metadata.creation_timestamp)

    @property
    def bound_at(self) -> float:
        """When it was bound, in seconds since the epoch; when it was created, if that is unknown."""
        found = _met(self.status.conditions, "PodScheduled", "True")
        return _seconds(found[0].last_transition_time if found else None) or self.created_at

    @property
    def turned_down(self) -> list[str]:
        """Messages of its scheduler about why it is not bound."""
        return [found.message for found in _met(self.status.conditions, "PodScheduled", "False") if found.message]

    def annotation(self, key: str) -> str | None:
        """The value of an annotation; None: not set."""
        return (self.metadata.annotations or {}).get(key)

    def label(self, key: str) -> str | None:
        """The value of a label; None: not set."""
        return (self.metadata.labels or {}).get(key)


class NodeSpec(msgspec.Struct, frozen=True):
    """The desired state of a node."""

    unschedulable: bool | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    """The observed state of a node."""

    conditions: list[Condition] | None = None
    allocatable: dict[str, str | int | float] | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet reports it as ready."""
        return bool(_met(self.status.conditions, "Ready", "True"))


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap."""

    metadata: Metadata
    data: dict[str, str] | None = None


#: any other object
Object = dict[str, Any]
