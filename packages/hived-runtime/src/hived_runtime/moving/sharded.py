"""Tensors that are sharded over ranks, as those of FSDP2: each rank hands its own shards over, without a collective.

A ``DTensor`` has the mesh of its process. In a file it is a :class:`LocalShard`, and a copy of that is a ``DTensor``
again, on the mesh of the process that takes it over.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is sharded: to be the same in both processes of a rank."""

    shape: tuple[int, ...]  #: of the whole
    stride: tuple[int, ...]
    placements: tuple[Any, ...]
    mesh: str

    @classmethod
    def of(cls, tensor: Any) -> Layout:
        """That of a ``DTensor``."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.placements, _mesh_name(tensor.device_mesh))

    def __str__(self) -> str:
        return f"{self.shape} as {self.placements} over {self.mesh}"


@dataclass(frozen=True, slots=True)
class LocalShard:
    """What a rank has of a ``DTensor``."""

    local: torch.Tensor
    layout: Layout

    def __deepcopy__(self, memo: dict[Any, Any]) -> torch.Tensor:
        """A ``DTensor``, on a mesh that the memo holds: see :func:`meshes`."""
        from torch.distributed.tensor import DTensor

        layout = self.layout
        if layout.mesh not in memo:
            raise ValueError(f"it is sharded over {layout.mesh}, and no module or optimizer that is named here is")
        local, mesh = copy.deepcopy(self.local, memo), memo[layout.mesh]
        shape = torch.Size(layout.shape)
        return DTensor.from_local(local, mesh, layout.placements, shape=shape, stride=layout.stride)


class Pickler(pickle.Pickler):
    """In its files a ``DTensor`` is a :class:`LocalShard`."""

    def reducer_override(self, value: Any) -> Any:
        """As :mod:`pickle` calls it."""
        if not isinstance(value, _kind()):
            return NotImplemented
        return LocalShard, (value.detach().to_local(), Layout.of(value))


def layouts(named: dict[str, Any]) -> dict[str, Layout]:
    """Of the sharded tensors of objects, by their names."""
    return {name: Layout.of(each) for name, each in _sharded(named)}


def meshes(named: dict[str, Any]) -> dict[Any, Any]:
    """The meshes over which objects and values are sharded, as a :class:`Layout` calls them."""
    return {_mesh_name(each.device_mesh): each.device_mesh for _, each in _sharded(named)}


def awaits_reduction(module: torch.nn.Module) -> bool:
    """Whether FSDP2 has accumulated gradients that are not reduced yet: no shard has them. O(parameters)."""
    states = [each._get_fsdp_state() for each in module.modules() if hasattr(each, "_get_fsdp_state")]
    groups = chain.from_iterable(vars(each).get("_fsdp_param_groups") or [each._fsdp_param_group] for each in states)
    return any(
        each._partial_reduce_output is not None or any(map(_has_gradient, each.fsdp_params))
        for each in groups
        if each is not None  # all its parameters are those of modules within
    )


def _has_gradient(parameter: Any) -> bool:
    """Whether the whole of a parameter has one; the first forward pass makes that."""
    whole = getattr(parameter, "_unsharded_param", None)
    return parameter.unsharded_accumulated_grad is not None or (whole is not None and whole.grad is not None)


def _kind() -> Any:
    """``DTensor``, whose import takes a second; if nobody has imported it, nothing is one."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def _mesh_name(mesh: Any) -> str:
    """Equal for equal meshes."""
    dimensions = "" if mesh.mesh_dim_names is None else f" ({', '.join(mesh.mesh_dim_names)})"
    return f"ranks {mesh.mesh.tolist()}{dimensions} on {mesh.device_type}"


def _sharded(value: Any, name: str = "state") -> Iterator[tuple[str, Any]]:
    """The sharded tensors of modules, optimizers, and values; of an optimizer parameters: its state may come later."""
    if isinstance(value, _kind()):
        yield name, value
    elif isinstance(value, torch.nn.Module):
        yield from _sharded(value.state_dict(), name)  # FSDP2 puts shards in the place of whole parameters first
    elif isinstance(value, torch.optim.Optimizer):
        yield from _sharded(value.param_groups, name)
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _sharded(each, f"{name}.{key}")
