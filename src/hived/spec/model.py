"""The schema of the spec dialect: its keys and their types.

Rules across keys are checked by the modules that compile. Types are strict: ``"2"``, ``2.0`` and ``true`` are not
integers. Names in Python are those of the file in snake case.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from .compiled import GuestsOf, SafetyOf
from .document import KeyPath, shown
from .subjects import Subject

#: the most cells of one entry or cell type, and the most nodes of a cluster: ten times the largest foreseeable number
MAX_CELLS = 2_000_000

#: keys of deployed specs that are ignored, by their place
IGNORED_KEYS: dict[KeyPath, tuple[str, ...]] = {
    (): (
        "kubeApiServerAddress",
        "kubeConfigFilePath",
        "webServerAddress",
        "forcePodBindThreshold",
        "waitingPodSchedulingBlockMilliSec",
    ),
    ("physicalCluster",): ("skuTypes", "leafCellTypes", "gpuTypes"),
}


def _named(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "must not be empty")
    if value.splitlines() != [value]:  # tables, reasons and logs are lines
        raise PydanticCustomError("lines", "must not have line breaks in it")
    return value


def _address(value: object) -> int | str | None:
    match value:
        case bool() | float():
            raise PydanticCustomError("address", "read as a number or a truth value: put the address in quotes")
        case int() if value < 0:
            raise PydanticCustomError("address", "an address is at least 0")
        case None | int():
            return value
        case str():
            return _named(value)
        case list():
            raise PydanticCustomError("address", "read as a list: an address that starts with `[` needs quotes")
    raise PydanticCustomError("address", "an address is a number or text")


def _subject(value: str) -> str:
    try:
        Subject.of(_named(value))
    except ValueError as error:
        raise PydanticCustomError("subject", "{why}", {"why": str(error)}) from None
    return value


def _weight(value: object) -> float | None:
    match value:
        case None:
            return None
        case bool():
            pass
        case int() | float() if 0 < value < math.inf:
            try:
                return float(value)
            except OverflowError:
                pass
    given = {"given": shown(str(value).lower() if isinstance(value, bool) else repr(value))}
    raise PydanticCustomError("weight", "a weight is a number above 0, such as 2 or 0.5, not {given}", given)


Name = Annotated[str, AfterValidator(_named)]
Address = Annotated[int | str | None, PlainValidator(_address)]
Subjects = list[Annotated[str, AfterValidator(_subject)]]
Weight = Annotated[float | None, PlainValidator(_weight)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class CellType(_Form):
    """One entry of ``cellTypes``: what a cell of this type splits into."""

    child_cell_type: Name
    child_cell_number: int = Field(ge=1, le=MAX_CELLS)
    is_node_level: bool = False


class PhysicalCell(_Form):
    """A cell of the cluster below the top: all of it may be left to the defaults."""

    cell_type: Name | None = None
    cell_address: Address = None
    pinned_cell_id: Name | None = None
    cell_children: list[PhysicalCell] | None = None


class TopCell(PhysicalCell):
    """An entry of ``physicalCells``."""

    cell_type: Name


class PhysicalCluster(_Form):
    """The hardware."""

    cell_types: dict[Name, CellType]
    physical_cells: list[TopCell] = Field(min_length=1)


class VirtualCells(_Form):
    """``cell_number`` cells reserved by a VC; 0 is allowed, and the same as no entry."""

    cell_type: Name
    cell_number: int = Field(ge=0)


class PinnedCell(_Form):
    """A physical cell reserved by a VC."""

    pinned_cell_id: Name


class VirtualCluster(_Form):
    """What a tenant reserved, which may be nothing yet; and who may use it."""

    virtual_cells: list[VirtualCells] | None = None
    pinned_cells: list[PinnedCell] | None = None
    opportunistic_weight: Weight = None
    opportunistic_grace_seconds: int | None = Field(default=None, ge=0)
    guests: GuestsOf | None = None
    policy: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    safety: SafetyOf | None = None
    members: Subjects | None = None
    admins: Subjects | None = None
    max_priority: int | None = Field(default=None, ge=-1, le=1000)
    max_jobs: int | None = Field(default=None, ge=0)
    max_gpus: int | None = Field(default=None, ge=0)
    max_grace_seconds: int | None = Field(default=None, ge=0)
    file_group: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class Spec(_Form):
    """A whole file, less the ignored keys."""

    physical_cluster: PhysicalCluster
    virtual_clusters: dict[Name, VirtualCluster | None]
    operators: Subjects | None = None


def keys_allowed(path: KeyPath) -> tuple[str, ...]:
    """The keys that a mapping at ``path`` may have; empty when it may have none or any."""
    form: type[_Form]
    match path:
        case ():
            form = Spec
        case ("physicalCluster",):
            form = PhysicalCluster
        case ("physicalCluster", "cellTypes", _):
            form = CellType
        case ("physicalCluster", "physicalCells", *_):
            form = PhysicalCell
        case ("virtualClusters", _):
            form = VirtualCluster
        case ("virtualClusters", _, "virtualCells", *_):
            form = VirtualCells
        case ("virtualClusters", _, "pinnedCells", *_):
            form = PinnedCell
        case _:
            return ()
    return tuple(map(to_camel, form.model_fields))
