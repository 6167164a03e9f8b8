"""How many GPUs pods ask for, by their resources."""

from __future__ import annotations

from collections.abc import Iterable

from . import labels as keys
from .objects import Container, Pod
from .untrusted import PodRequestError, word


def uses(pod: Pod) -> tuple[bool, int | None]:
    """Whether a pod can be using devices that HiveD gave it, and how many, by what nobody can change: its resources.

    None: it does not say how many.
    """
    if any(positive(value) for _, value in limits(pod, (keys.ENABLE,))):
        return True, None
    try:
        number = pod_gpus(pod)
    except PodRequestError:
        return True, None
    return number is not None, number


def named_devices(pod: Pod, number: int | None) -> tuple[int, ...] | None:
    """The devices that a pod's annotations name, if they are as many as its resources (None: any number)."""
    words = (pod.annotation(keys.ISOLATION) or pod.annotation(keys.FORMER_ISOLATION) or "").split(",")
    if all(word.strip().isdecimal() and len(word) < 8 for word in words) and number in (None, len(words)):
        return tuple(int(word) for word in words)
    return None


def pod_gpus(pod: Pod) -> int | None:
    """Devices that a pod asks for: the most that may be in use at a time, as Kubernetes counts."""
    return gpus_of(pod.spec.containers or (), pod.spec.init_containers or ())


def gpus_of(containers: Iterable[Container], init_containers: Iterable[Container] = ()) -> int | None:
    """The same of the containers of a template; None: they ask for none.

    Of several kinds of GPU resources the largest counts, since all of them mean devices of the one node.
    """
    running, first = tuple(containers), tuple(init_containers)
    return max(_at_a_time(resource, running, first) for resource in keys.GPU_RESOURCES) or None


def _at_a_time(resource: str, containers: tuple[Container, ...], init_containers: tuple[Container, ...]) -> int:
    """Init containers run one after another, but for those that are restarted always: these stay (sidecars)."""
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
    """A quantity of Kubernetes, where it is a whole number."""
    text = str(value).strip()
    scale = {"k": 1000, "m": 0.001}.get(text[-1:], 0)
    try:
        number = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        return None
    return int(number) if number == number // 1 and abs(number) < 2**53 else None


def limits(pod: Pod, resources: tuple[str, ...]) -> list[tuple[str, object]]:
    """What containers of a pod ask for of some resources: name and quantity."""
    containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
    found = [c.resources.limits or {} for c in containers if c.resources is not None]
    return [(name, of[name]) for of in found for name in resources if name in of]


def positive(value: object) -> bool:
    """Whether a quantity is more than nothing; one that cannot be read is taken to be."""
    number = _whole(value)
    return number is None or number > 0
