"""Gang members by owner: the pods of a Job, a JobSet or a PyTorchJob, for pods without a group label."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from typing import Any

import msgspec

from hived.cluster.requests import Member
from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path

from .objects import Container, Object, Owner, Pod
from .pod_request import GANG_OWNERS, PodRequestError, gang_owner, gpus_of

_KEPT = 10_000
_FRESH_S = 10.0
_AT_ONCE = 16  #: reads
_PLURALS = {"Job": "jobs", "JobSet": "jobsets", "PyTorchJob": "pytorchjobs"}
_VERSION = re.compile(r"[a-z0-9.-]+/v[0-9]+((alpha|beta)[0-9]+)?")
_JobOwner = ("jobset.x-k8s.io", "JobSet")


#: a namespace, and an owner reference of a pod in it
_Named = tuple[str, Owner]


class Owners:
    """Gang members by owner, cached for a while. Concurrent callers share one read."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        #: members, and when they expire
        self._known: OrderedDict[_Named, tuple[tuple[Member, ...], float]] = OrderedDict()
        #: reads in flight
        self._reads: dict[_Named, asyncio.Task[tuple[Member, ...]]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def known(self, pod: Pod) -> tuple[bool, tuple[Member, ...] | None]:
        """Whether :meth:`members` needs no read, and its answer then."""
        owner = gang_owner(pod)
        if owner is None:
            return True, None
        found = self._fresh((pod.metadata.namespace, owner))
        return found is not None, found

    async def members(self, pod: Pod) -> tuple[Member, ...] | None:
        """The gang of ``pod`` as its owner defines it; None: it has no such owner. Raises :class:`PodRequestError`."""
        owner = gang_owner(pod)
        return None if owner is None else await self._members((pod.metadata.namespace, owner))

    async def _members(self, named: _Named) -> tuple[Member, ...]:
        found = self._fresh(named)
        if found is not None:
            return found
        read = self._reads.get(named)
        if read is None:
            read = self._reads[named] = asyncio.get_running_loop().create_task(self._read(*named))
            read.add_done_callback(lambda _: self._reads.pop(named))
        return await asyncio.shield(read)  # a cancelled caller does not cancel it for others

    def _fresh(self, named: _Named) -> tuple[Member, ...] | None:
        members, until = self._known.get(named, (None, 0.0))
        return members if time.monotonic() < until else None

    async def _read(self, namespace: str, owner: Owner) -> tuple[Member, ...]:
        what = f"{owner.kind} {namespace}/{owner.name}"
        thing = await self._get(namespace, owner, what)
        for above in (thing.get("metadata") or {}).get("ownerReferences") or ():
            if (str(above.get("apiVersion")).partition("/")[0], above.get("kind")) == _JobOwner:
                of = Owner(api_version=above["apiVersion"], kind=above["kind"], name=above["name"], uid=above["uid"])
                found = await self._members((namespace, of))
                break
        else:
            found = members_of(thing, what)
        self._known[namespace, owner] = found, time.monotonic() + _FRESH_S
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    async def _get(self, namespace: str, owner: Owner, what: str) -> Object:
        if not _VERSION.fullmatch(owner.api_version):
            raise PodRequestError("owner", f"{what}, its owner, is of no API version: {owner.api_version[:60]!r}")
        path = api_path(_PLURALS[owner.kind], namespace, owner.name, of=owner.api_version)
        try:
            async with self._gate:
                found: Object = msgspec.json.decode(await self._api.get(path))
        except ApiError as error:
            way_out = "give its pods the labels hived.io/group and hived.io/group-size"
            raise PodRequestError("owner", f"{what}, its owner, cannot be read ({error.reason}); {way_out}") from None
        if (found.get("metadata") or {}).get("uid") != owner.uid:
            raise PodRequestError("owner", f"{what} is another one by now than the one that owns it")
        return found


def members_of(thing: Object, what: str) -> tuple[Member, ...]:
    """The pods with GPUs that an object runs at a time. Raises :class:`PodRequestError`."""
    try:
        return _members(thing, what)
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise PodRequestError("owner", f"{what} has a form that is not known: {error}") from None


def is_gang(thing: Object) -> bool:
    """Whether the pods of an object form a gang."""
    return (str(thing.get("apiVersion")).partition("/")[0], thing.get("kind")) in GANG_OWNERS


def pods_at_once(thing: Object) -> list[tuple[int, Object]]:
    """Number and template of the pods that a Job, a JobSet or a PyTorchJob makes at a time, part by part.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` for an object of another form.
    """
    spec, status = thing["spec"], thing.get("status") or {}
    if thing.get("kind") == "JobSet":
        done = {job["name"]: _count(job.get("succeeded"), 0) for job in status.get("replicatedJobsStatus") or ()}
        jobs = [(job, job["template"]["spec"]) for job in spec["replicatedJobs"]]
        return [
            (_left(_count(job.get("replicas")), done.get(job.get("name"), 0)) * _at_once(inner, 0), inner["template"])
            for job, inner in jobs
        ]
    if thing.get("kind") == "PyTorchJob":
        # the master first, as rank 0
        roles = sorted(spec["pytorchReplicaSpecs"].items(), key=lambda role: (role[0] != "Master", role[0]))
        replicas: Object = status.get("replicaStatuses") or {}
        return [
            (
                _left(_count(role.get("replicas")), _count((replicas.get(name) or {}).get("succeeded"), 0)),
                role["template"],
            )
            for name, role in roles
        ]
    return [(_at_once(spec, _count(status.get("succeeded"), 0)), spec["template"])]


def starts_in_order(thing: Object) -> bool:
    """Whether a JobSet starts its jobs one after another."""
    spec = thing["spec"]
    order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder")
    return order == "InOrder" or any(job.get("dependsOn") for job in spec.get("replicatedJobs") or ())


def _members(thing: Object, what: str) -> tuple[Member, ...]:
    found = pods_at_once(thing)
    if starts_in_order(thing):
        _check_together([template_gpus(template) for pods, template in found if pods], what)
    sizes = [(pods, template_gpus(template)) for pods, template in found]
    members = tuple(Member(pods, gpus) for pods, gpus in sizes if pods and gpus)
    if not members:
        raise PodRequestError("owner", f"{what} makes no pods with GPUs at the moment")
    return members


def template_gpus(template: Object) -> int | None:
    """GPUs of one pod of a template."""
    spec = template["spec"]
    containers = msgspec.convert(spec.get("containers") or [], list[Container])
    return gpus_of(containers, msgspec.convert(spec.get("initContainers") or [], list[Container]))


def _check_together(gpus: list[int | None], what: str) -> None:
    """Refuse jobs that start one after another: a gang is placed only once all of its pods exist."""
    if len([number for number in gpus if number]) > 1:
        raise PodRequestError(
            "owner",
            f"{what} starts its jobs one after another, so they are no gang; give the pods of each the labels "
            "hived.io/group and hived.io/group-size",
        )


def _at_once(spec: Object, succeeded: int) -> int:
    """Number of pods that a Job runs at a time after ``succeeded`` pods have succeeded."""
    parallelism = _count(spec.get("parallelism"))
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, _left(_count(completions), succeeded))


def _left(number: int, done: int) -> int:
    """Number of pods still to run; at least one, as a pod of them asks."""
    return max(min(number, 1), number - done)


def _count(value: Any, default: int = 1) -> int:
    """A number of pods, or ``default`` if it is not given."""
    value = default if value is None else value
    if type(value) is not int or value < 0:
        raise ValueError(f"a number of pods, not {value!r}")
    return value
