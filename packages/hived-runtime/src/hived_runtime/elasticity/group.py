"""The process group of a team: made anew for every number of workers, and what goes through it.

All of it is within one machine: gloo over the loopback, NCCL for gradients on GPUs where every worker has its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CONNECT_S = 30.0  #: for all workers to meet in a new group, and for each step of taking in new ones
_TRAIN = timedelta(minutes=30)  #: that a worker waits for another in a mini-batch: as PyTorch's default
_CHUNK = 32 << 20  #: bytes that are flattened and sent at once


def store_file(stem: str, number: int) -> Path:
    """The file by which the workers of the ``number``-th group meet. A file each: nothing of a former one is read."""
    return Path(f"{stem}-{number}")


def backend(device: torch.device, workers: int) -> str:
    """The backend for so many workers. NCCL refuses two workers on one GPU; gloo takes tensors of GPUs too."""
    own = device.type == "cuda" and torch.cuda.device_count() >= workers and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if own else "gloo"


def connect(stem: str, number: int, rank: int, workers: int, backend: str) -> None:
    """Make the process group, with all its workers; ``backend`` is rank 0's, the others are told.

    Raises what PyTorch does when one of them does not come within :data:`CONNECT_S`.
    """
    limit = timedelta(seconds=CONNECT_S)
    store = dist.FileStore(str(store_file(stem, number)))
    store.set_timeout(limit)
    if rank == 0:
        store.set("backend", backend)
    else:
        backend = store.get("backend").decode()
    with _loopback():
        dist.init_process_group(backend, store=store, rank=rank, world_size=workers, timeout=limit)


def confirm() -> None:
    """Return when every worker of a new group is here, with all it needs; from now on they wait longer for another."""
    dist.all_reduce(torch.zeros(1, device="cpu"))
    for backend in (torch.device("cpu"), torch.device("cuda")):
        with contextlib.suppress(Exception):  # no backend for such a device
            dist.group.WORLD._get_backend(backend)._set_default_timeout(_TRAIN)


def disconnect() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Within, gloo binds to the loopback: the name of a machine need not resolve, nor to an address of its own."""
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ:
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]


# -- state


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for a tensor in a state that is sent."""

    place: int
    shape: tuple[int, ...]
    dtype: Any
    device: str  #: type alone: workers may see their devices by other numbers
    size: int  #: bytes


def send_state(state: Any) -> None:
    """Rank 0: broadcast a state, as of ``state_dict``: tensors as bytes in chunks, all else pickled."""
    tensors: list[Any] = []
    outline = _outlined(state, tensors)
    dist.broadcast_object_list([outline, [_described(each, place) for place, each in enumerate(tensors)]], src=0)
    with torch.no_grad():
        for chunk in _chunks(tensors, lambda each: each.device.type):
            parts = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in chunk]
            dist.broadcast(torch.cat(parts), src=0)


def receive_state(device: Any) -> Any:
    """The others: the state that rank 0 broadcasts, its GPU tensors on ``device``."""
    box: list[Any] = [None, None]
    dist.broadcast_object_list(box, src=0)
    outline, described = box
    tensors: list[Any] = []
    for chunk in _chunks(described, lambda each: each.device):
        place = torch.device("cpu") if chunk[0].device == "cpu" else device
        flat = torch.empty(sum(each.size for each in chunk), dtype=torch.uint8, device=place)
        dist.broadcast(flat, src=0)
        for each, part in zip(chunk, flat.split([each.size for each in chunk]), strict=True):
            # a copy: the bytes of a part need not be aligned for its type
            tensors.append((each.place, part.clone().view(each.dtype).reshape(each.shape)))
    return _filled(outline, dict(tensors))


def _described(tensor: Any, place: int) -> _Tensor:
    size = tensor.numel() * tensor.element_size()
    return _Tensor(place, tuple(tensor.shape), tensor.dtype, tensor.device.type, size)


def _outlined(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Tensor(len(tensors) - 1, (), None, "", 0)
    if isinstance(value, dict):
        return {key: _outlined(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outlined(each, tensors) for each in value)
    return value


def _filled(value: Any, tensors: dict[int, Any]) -> Any:
    if isinstance(value, _Tensor):
        return tensors[value.place]
    if isinstance(value, dict):
        return {key: _filled(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(each, tensors) for each in value)
    return value


def _chunks(items: list[Any], kind: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """The items of a kind, at most :data:`_CHUNK` bytes together, or one that is larger."""
    of_kind: dict[Any, list[Any]] = {}
    for item in items:
        of_kind.setdefault(kind(item), []).append(item)
    for same in of_kind.values():
        chunk: list[Any] = []
        size = 0
        for item in same:
            more = item.size if isinstance(item, _Tensor) else item.numel() * item.element_size()
            if chunk and size + more > _CHUNK:
                yield chunk
                chunk, size = [], 0
            chunk.append(item)
            size += more
        yield chunk


# -- gradients


def average(parameters: list[Any], weight: float, batch: int, wish: int) -> int:
    """Replace every gradient by the sum of all workers' gradients, each times its weight; return the sum of wishes.

    The weights of all workers add up to 1. A gradient that was averaged before, and accumulated upon since, is right
    too: the part that all have in common comes out as it went in. A parameter without gradients at all workers keeps
    none (its optimizer state must not move); a worker of weight 0 adds nothing, whatever it has computed.
    ``batch`` is the number of the mini-batch: :class:`RuntimeError` if workers are at different ones.
    """
    counts = weight > 0
    head = [float(counts and each.grad is not None) for each in parameters]
    # on the CPU, by gloo: the host must read it at every mini-batch, and would have to wait for the GPU
    header = torch.tensor([*head, float(batch), float(wish)], dtype=torch.float64, device="cpu")
    dist.all_reduce(header)
    *present, batches, wishes = header.tolist()
    if batches != batch * dist.get_world_size():
        raise RuntimeError(f"a worker of this elastic job is at mini-batch {batch} of its epoch, and others are not")
    there = []
    for parameter, found in zip(parameters, present, strict=True):
        if found:
            there.append(parameter)
        else:
            parameter.grad = None
    sent = []
    for chunk in _chunks(there, lambda each: (each.dtype, each.device)):
        flat = torch.cat([_weighted(each, weight) for each in chunk])
        sent.append((chunk, flat, dist.all_reduce(flat, async_op=True)))
    for chunk, flat, work in sent:
        work.wait()
        for parameter, part in zip(chunk, flat.split([each.numel() for each in chunk]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view(parameter.shape))
    return int(wishes)


def _weighted(parameter: Any, weight: float) -> Any:
    if parameter.grad is None or not weight:  # not times 0: what has no weight may be infinite
        return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    if parameter.grad.layout is not torch.strided:
        raise RuntimeError("an elastic job of several workers cannot average sparse gradients: use sparse=False")
    return parameter.grad.detach().reshape(-1) * weight
