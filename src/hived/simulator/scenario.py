"""A scenario: the parameters of a simulation, each stated once, with its type, default, bounds, description and flag.

In Python a :class:`Scenario` takes them by name, a YAML file has them as keys (:meth:`Scenario.load`), and the flags of
``hived simulate`` and ``hived sweep`` are derived from them (:mod:`hived.cli.scenario`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import numpy as np
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError, SpecError
from hived.exchange import ArbiterKind
from hived.policies import DEFAULT, split_policy
from hived.scheduling import Policy
from hived.spec import Document, read_documents
from hived.spec.compiled import EXACT, WORK_CONSERVING, ClusterSpec
from hived.spec.document import KeyPath, located
from hived.spec.form import spec_error, violations

from .models import Models
from .traces import StillRunning, Trace, TraceJob, is_frame, read_window

#: of the synthetic trace; with the cluster sized for it the first look takes a few seconds, and shows sharing anomalies
JOBS, DAYS = 20_000, 30
#: the offered load for which nodes are counted where none are given
LOAD = 0.8
_DAY_MS = 86_400_000


class Preempted(StrEnum):
    """What a preempted job keeps."""

    RESUME = "resume"  #: its work
    RESTART = "restart"  #: nothing; a job that moves to its VC's cells restarts too


class Victims(StrEnum):
    """Which loans make room where ``hived`` binds a cell."""

    FEWEST_GPUS = "fewest-gpus"  #: those of the cell with the fewest GPUs on loan (HiveD, OSDI'20, section 3.3)
    LEAST_WORK = "least-work"  #: those that lose the least work, as in the engines


class Safety(StrEnum):
    """What tenants are promised under ``hived`` when their jobs run before their turn."""

    WORK_CONSERVING = WORK_CONSERVING  #: their cells, and that no job needs another tenant's leave
    EXACT = EXACT  #: that no job ends later than in its tenant's private cluster


class Quotas(StrEnum):
    """What a tenant reserves where no spec is given."""

    DEMAND = "demand"  #: nodes in proportion to the GPU time that its jobs in the trace ask for
    TABLE1 = "table1"  #: nodes in proportion to the quotas of the HiveD paper's Table 1


#: a policy, or its name (:mod:`hived.policies`)
PolicyGiven: TypeAlias = str | Policy


class ParameterError(InputError):
    """Wrong parameters of a simulation: the key path of each, and what is wrong with it."""

    def __init__(self, wrong: list[tuple[KeyPath, str]]) -> None:
        super().__init__("; ".join(located(path, message) for path, message in wrong))
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class Flag:
    """What a parameter's name and type do not say of its flag."""

    name: str = ""  #: instead of the parameter's
    metavar: str = ""
    default: str = ""  #: in words
    path: bool = False  #: a file; in a scenario's file relative to its folder
    several: bool = False  #: takes several values in one simulation
    commas: bool = False  #: a value may have commas, so they separate no list of values


def _is(what: str, holds: Callable[[Any], bool]) -> BeforeValidator:
    """Raises unless a value is None or ``holds``."""

    def check(given: Any) -> Any:
        if given is None or holds(given):
            return given
        raise PydanticCustomError("kind", f"expected {what}, not {type(given).__name__}")

    return BeforeValidator(check)


def _window(given: Any) -> Any:
    """Two days as ``DAY:DAY``."""
    if isinstance(given, tuple | list) and len(given) == 2:
        given = ":".join(map(str, given))
    if isinstance(given, str):
        try:
            read_window(given)
        except InputError:
            raise PydanticCustomError("window", "expected two days, DAY:DAY, for example 10:20") from None
    return given


def _names(given: Any) -> Any:
    """A single name stands for a list of one; one that is there twice counts once."""
    listed = [given] if isinstance(given, str) else given
    return tuple(dict.fromkeys(listed)) if isinstance(listed, list | tuple) else given


def _policies(given: Any) -> Any:
    """One stands for a list of one; one that is there twice counts once."""
    listed = [given] if isinstance(given, str | Policy | Mapping) else given
    if not isinstance(listed, list | tuple) or not all(
        isinstance(one, str | Policy) for _, one in policies_by_tenant(listed)
    ):
        raise PydanticCustomError("policy", "expected a name, a policy, a mapping of tenants to these, or a list")
    return tuple(one for number, one in enumerate(listed) if one not in listed[:number])


def _jobs(given: Any) -> Any:
    """A trace of the jobs in a list."""
    if isinstance(given, list | tuple) and all(isinstance(job, TraceJob) for job in given):
        return Trace("jobs", tuple(given))
    return given


def _some(given: Any) -> Any:
    if not given:
        raise PydanticCustomError("some", "is empty: at least one entry is needed")
    return given


_Names, _Some = BeforeValidator(_names), AfterValidator(_some)
_PATH = (str, os.PathLike)
_Spec = _is(
    "a path, YAML text, a mapping or a ClusterSpec", lambda one: isinstance(one, (*_PATH, Mapping, ClusterSpec))
)
_Trace = _is("a path, a frame, jobs or a Trace", lambda one: isinstance(one, (*_PATH, Trace)) or is_frame(one))
_Jobs = BeforeValidator(_jobs)
_Models = _is("a path or Models", lambda one: isinstance(one, (*_PATH, Models)))


class Scenario(BaseModel):
    """What is simulated, and how. Immutable and valid.

    Raises :class:`ParameterError`, in one line, for unknown parameters and wrong values. Files are read, and policies
    made, only by a simulation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    #: a path, YAML text, plain data of its form, or a compiled spec
    spec: Annotated[Any, _Spec, Flag(metavar="FILE", path=True)] = Field(
        None, description="Cluster spec (YAML). Without one: nodes of 8 GPUs (--nodes, --quotas)."
    )
    #: a path, a frame of Polars or pandas with the columns of a file, a :class:`~.traces.Trace`, or a list of
    #: :class:`~.traces.TraceJob`, in order of submission
    trace: Annotated[Any, _Trace, _Jobs, Flag(metavar="FILE", path=True)] = Field(
        None, description="A trace: our CSV, Philly's JSON or Helios' CSV. Without one: a synthetic trace, by seed."
    )
    skip_bad_rows: StrictBool = Field(False, description="Leave out rows of the trace that are wrong; counted by kind.")
    still_running: StillRunning = Field(
        StillRunning.KEEP, description="Jobs that had not ended when their log did: kept with their time so far."
    )
    schemes: Annotated[tuple[Sharing, ...], _Names, _Some, Flag("scheme", several=True, default="all three")] = Field(
        tuple(Sharing), description="Sharing schemes."
    )
    #: names or policies of runs, a run each; of single tenants ``TENANT=NAME``, or a mapping of them to theirs
    policy: Annotated[Any, BeforeValidator(_policies), _Some, Flag(metavar="POLICY", several=True, default=DEFAULT)] = (
        Field(
            (DEFAULT,),
            description="Policies inside each tenant's cluster, a run each: NAME, module:Class, with :parameter=value; "
            "TENANT=NAME for one tenant in all runs.",
        )
    )
    opportunistic: StrictBool = Field(True, description="Jobs start on idle GPUs before their turn.")
    preempted: Preempted = Field(Preempted.RESUME, description="What a preempted job does when it runs again.")
    until: Annotated[StrictFloat | None, Flag(metavar="DAY")] = Field(
        None, gt=0, le=10**9, description="Stop at this day of the simulation."
    )
    filter: Annotated[StrictStr | None, Flag(metavar="EXPRESSION", commas=True)] = Field(
        None,
        description='Only jobs that meet this, for example "gpus >= 8 and duration > 3600". SQL in job_id, tenant, '
        "user, model, gpus, priority, submit, duration (seconds), status.",
    )
    #: or a pair of days
    window: Annotated[StrictStr | None, BeforeValidator(_window), Flag(metavar="DAY:DAY")] = Field(
        None, description="Only jobs submitted on these days, from the first on."
    )
    sample: Annotated[StrictFloat | None, Flag(metavar="SHARE")] = Field(
        None, gt=0, le=1, description="Each job with this probability, for example 0.04; by seed."
    )
    clock_compression: Annotated[StrictFloat, Flag(metavar="FACTOR")] = Field(
        1.0, gt=0, description="Divide submission times by this; durations stay. Raises the load."
    )
    binding: BindingKind = Field(
        BindingKind.DYNAMIC, description="When hived binds the cells of a tenant: in use, or from the start for good."
    )
    victims: Victims = Field(
        Victims.FEWEST_GPUS,
        description="Which loans make room where hived binds a cell: those on the fewest GPUs, as in the paper; or "
        "those that lose the least work, as live.",
    )
    #: of all tenants under ``hived``, whatever the spec says of each
    safety: Annotated[Safety | None, Flag(default="as the spec says; work-conserving")] = Field(
        None,
        description="What hived promises to tenants whose jobs run before their turn: their cells; or, exact, that no "
        "job ends later than in its tenant's private cluster.",
    )
    exchange: ArbiterKind | None = Field(
        None,
        description="Under hived, have tenants trade idle cells every hour, by this arbiter; writes trades.csv.",
    )
    soft: Annotated[StrictFloat, Flag(metavar="SHARE")] = Field(
        0.0, ge=0, le=1, description="Share of the multi-GPU jobs that accept any GPUs of their tenant; by seed."
    )
    #: a path, or the models; None: jobs run at the rate 1, but by the models of the package where they share GPUs
    models: Annotated[Any, _Models, Flag(metavar="FILE", path=True)] = Field(
        None,
        description="Job models (CSV, docs/reference/models.md): jobs run as fast as affinity and jobs beside them "
        "allow.",
    )
    mix: Annotated[StrictStr | None, Flag(metavar="NAME=WEIGHT,...", commas=True)] = Field(
        None, description="Models of jobs without one, e.g. cv=10,nlp=60,speech=30; by seed."
    )
    seed: StrictInt = Field(1, ge=0, description="Seed of the synthetic trace, of sample, soft and mix.")
    jobs: StrictInt = Field(JOBS, ge=1, description="Jobs of the synthetic trace; the paper has 141950.")
    days: StrictInt = Field(DAYS, ge=1, description="Days of the synthetic trace; the paper has 60.")
    nodes: Annotated[StrictInt | None, Flag(default=f"for a load of {LOAD:.0%}")] = Field(
        None, ge=1, description="Nodes where no spec is given; the paper has 279."
    )
    quotas: Quotas = Field(
        Quotas.DEMAND,
        description="What tenants reserve where no spec is given: nodes in proportion to the GPU time they ask for, "
        "or to the quotas of the paper's Table 1.",
    )
    tenants: Annotated[
        tuple[StrictStr, ...], _Names, Flag("tenant", several=True, default="the three that sharing changes most")
    ] = Field((), description="Tenants to show over time.")

    def __init__(self, **parameters: Any) -> None:
        plain = {name: one.item() if isinstance(one, np.generic) else one for name, one in parameters.items()}
        try:
            super().__init__(**plain)
        except ValidationError as error:
            raise ParameterError(violations(error, lambda path: () if path else tuple(FIELDS))) from None

    @field_validator("nodes", "quotas", "jobs", "days")
    @classmethod
    def _has_effect(cls, value: Any, info: ValidationInfo) -> Any:
        """Raises where a spec or a trace leaves it without effect."""
        instead = _instead(info.data, str(info.field_name))
        if instead and value is not None:
            raise PydanticCustomError("effect", f"has no effect beside `{instead}`: give one of them")
        return value

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scenario:
        """The scenario of a YAML file, whose keys are the parameters; files that it names are relative to its folder.

        Raises :class:`~hived.errors.SpecError` with file, line, key and the likely meant word.
        """
        file = read_scenario(path)
        try:
            return cls(**file.parameters)
        except ParameterError as error:
            raise file.error(error.wrong) from None

    def replace(self, **parameters: Any) -> Scenario:
        """The same with other values of these parameters. Raises as the class."""
        return Scenario(**{name: getattr(self, name) for name in self.model_fields_set} | parameters)

    def effective(self) -> Iterator[tuple[str, Any]]:
        """The parameters and their values; None for those that a spec or a trace leaves without effect."""
        values = {name: getattr(self, name) for name in FIELDS}
        return ((name, None if _instead(values, name) else value) for name, value in values.items())

    def text(self, folder: Path) -> str | None:
        """The scenario as a YAML file in ``folder``; None if it has objects that a file cannot have."""
        plain = {}
        for name, value in self.effective():
            if FIELDS[name].path and isinstance(value, str | os.PathLike) and not is_yaml(value):
                value = os.path.relpath(value, folder)
            if value is not None and not (isinstance(value, tuple) and not value):
                plain[name] = plain_value(value)
        try:
            return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        except yaml.representer.RepresenterError:
            return None

    @property
    def policies(self) -> tuple[PolicyGiven, ...]:
        """The policies of the runs."""
        return tuple(one for tenant, one in policies_by_tenant(self.policy) if not tenant) or (DEFAULT,)

    @property
    def tenant_policies(self) -> dict[str, PolicyGiven]:
        """Policies of single tenants, in every run."""
        return {tenant: one for tenant, one in policies_by_tenant(self.policy) if tenant}

    @property
    def until_ms(self) -> int | None:
        """The end of the simulation; None: when all jobs have ended."""
        return None if self.until is None else round(self.until * _DAY_MS)

    @cached_property
    def job_models(self) -> Models | None:
        """How fast jobs run on their GPUs; None: at the rate 1, but by the package's models where they share GPUs."""
        if isinstance(self.models, Models):
            return self.models
        return None if self.models is None and self.mix is None else Models.load(self.models)

    def exact(self, spec: ClusterSpec) -> frozenset[str]:
        """The tenants of exact safety under ``hived``."""
        return frozenset([vc.name for vc in spec.virtual_clusters if (self.safety or vc.safety) == EXACT])


#: every parameter, and how it is given as a flag
FIELDS: dict[str, Flag] = {
    name: next((one for one in field.metadata if isinstance(one, Flag)), Flag())
    for name, field in Scenario.model_fields.items()
}
_HINTS = get_type_hints(Scenario)


def kind_of(name: str) -> Any:
    """The type of a parameter's value, or of each of several; ``Any`` where it may have several types."""
    hint = _HINTS[name]
    return next((kind for kind in get_args(hint) if kind is not NoneType), hint)


def _instead(values: Mapping[str, Any], name: str) -> str:
    """The parameter in ``values`` beside which ``name`` has no effect, or ``""``."""
    by = "spec" if name in ("nodes", "quotas") else "trace" if name in ("jobs", "days") else ""
    return by if by and values.get(by) is not None else ""


def policies_by_tenant(given: Iterable[PolicyGiven | Mapping[str, PolicyGiven]]) -> Iterator[tuple[str, PolicyGiven]]:
    """Policies as they are given, each with its tenant: ``""`` for a run's, else by ``TENANT=NAME`` or a mapping."""
    for one in given:
        if isinstance(one, Mapping):
            yield from one.items()
        else:
            yield split_policy(one) if isinstance(one, str) else ("", one)


def is_yaml(spec: object) -> bool:
    """Whether a spec given as text is YAML, not a path."""
    return isinstance(spec, str) and ("\n" in spec or spec.lstrip().startswith("{"))


def plain_value(value: Any) -> Any:
    """An enum's value, a path's text, a list of such; any other value as it is."""
    if isinstance(value, tuple | list):
        return [plain_value(one) for one in value]
    if isinstance(value, Mapping):
        return {name: plain_value(one) for name, one in value.items()}
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, os.PathLike) else value


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The parameters in a file; files that it names are relative to the working directory."""

    parameters: Mapping[str, Any]
    document: Document

    def error(self, wrong: list[tuple[KeyPath, str]]) -> SpecError:
        """The error of what is wrong, with file and lines."""
        return spec_error(self.document, wrong)


def read_scenario(path: str | os.PathLike[str]) -> ScenarioFile:
    """The parameters in a file.

    Raises :class:`~hived.errors.InputError`.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from None
    documents = list(read_documents(text, str(file)))
    document = documents[0] if len(documents) == 1 else None
    if document is None or not isinstance(document.data, dict):
        raise InputError(f"{file}: a scenario is one mapping of parameters, such as `trace: t.csv`")
    return ScenarioFile({name: _beside(file, name, value) for name, value in document.data.items()}, document)


def _beside(file: Path, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_beside(file, name, one) for one in value]
    if name in FIELDS and FIELDS[name].path and isinstance(value, str) and not is_yaml(value):
        return os.path.normpath(file.parent / value)
    return value
