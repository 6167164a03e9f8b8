"""Policies by name: those here, those of installed packages, and those of scripts.

tiresias                          a policy of this package, or of an entry point of the group ``hived.policies``
tiresias:limits=1000/5000         with parameters: numbers, lists of numbers with slashes, true and false, or words
my_module:MyPolicy                a class of a module, from the working directory or installed
my_module:MyPolicy:alpha=0.5      with parameters
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from hived.errors import InputError, PolicyError
from hived.scheduling import Policies, Policy
from hived.spec.compiled import ClusterSpec

from .antman import AntMan
from .arrival import FIFO, Greedy, YarnCS
from .duration import SJF, SRTF
from .fair import Fair
from .gandiva import Gandiva
from .tiresias import Tiresias

#: group of entry points by which installed packages offer policies
ENTRY_POINTS = "hived.policies"
DEFAULT = YarnCS.name
_HERE: dict[str, Callable[..., Policy]] = {
    policy.name: policy for policy in (YarnCS, FIFO, Greedy, Fair, SJF, SRTF, Tiresias, Gandiva, AntMan)
}


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def policy_names() -> list[str]:
    """The names of all policies, those of installed packages included."""
    return [*_HERE, *sorted(set(_installed()) - set(_HERE))]


def make_policy(name: str | Policy) -> Policy:
    """Make a policy by name, or a copy of one; a new object per call.

    Raises :class:`~hived.errors.InputError` for a name or parameter that is not known, and
    :class:`~hived.errors.PolicyError` for a class that is not made, or is no policy.
    """
    if isinstance(name, Policy):
        return deepcopy(name)
    first, *rest = name.split(":")
    given = [part for part in rest if "=" in part]
    words = [part for part in rest if "=" not in part]
    if len(words) > 1 or rest[: len(words)] != words:
        raise InputError(f"policy {name!r}: it must be NAME, or module:Class, with :parameter=value after it")
    make = _class(first, words[0]) if words else _named(first)
    parameters = _parameters(name, make, given)
    try:
        policy = make(**parameters)
    except InputError:
        raise
    except Exception as error:
        raise PolicyError(name, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(policy, Policy):
        raise PolicyError(name, f"{policy!r} is no hived.scheduling.Policy; derive its class from that")
    if policy.name == Policy.name:
        policy.name = name
    elif given:
        policy.name = f"{policy.name}:{':'.join(given)}"
    return policy


def _named(name: str) -> Callable[..., Policy]:
    if name in _HERE:
        return _HERE[name]
    point = _installed().get(name)
    if point is None:
        known = policy_names()
        meant = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {meant[0]}?" if meant else "or module:Class for your own"
        raise InputError(f"unknown policy {name!r}; there are {', '.join(known)}: {hint}")
    try:
        return _callable(name, point.load())
    except (ImportError, AttributeError) as error:
        raise PolicyError(name, f"the entry point {point.value} cannot be loaded: {error}") from error


def _class(module: str, name: str) -> Callable[..., Policy]:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        where = f"{module}: {type(error).__name__}: {error}"
        raise PolicyError(f"{module}:{name}", f"its module cannot be imported ({where})") from error
    finally:
        if added:
            sys.path.remove(here)
    if not hasattr(found, name):
        raise InputError(f"policy {module}:{name}: the module has no {name}")
    return _callable(f"{module}:{name}", getattr(found, name))


def _callable(name: str, found: Any) -> Callable[..., Policy]:
    if not callable(found):
        raise PolicyError(name, f"{found!r} is no class of policies")
    return found  # type: ignore[no-any-return]


def _parameters(name: str, make: Callable[..., Policy], given: list[str]) -> dict[str, Any]:
    try:
        known = list(inspect.signature(make).parameters)
    except ValueError:  # some classes of C
        known = []
    parameters: dict[str, Any] = {}
    for part in given:
        key, _, text = part.partition("=")
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"policy {name!r}: no parameter {key!r}; {has}")
        if not text or key in parameters:
            wrong = "is given twice" if text else "has no value"
            raise InputError(f"policy {name!r}: parameter {key!r} {wrong}; write {key}=VALUE once")
        parameters[key] = _value(text)
    return parameters


def _value(text: str) -> Any:
    if "/" in text:
        return [_value(part) for part in text.split("/")]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def split_policy(text: str) -> tuple[str, str]:
    """``TENANT=NAME`` as tenant and name; the tenant is "" for a policy of all: ``tiresias:limits=10/20``."""
    tenant, separator, name = text.partition("=")
    return (tenant, name) if separator and ":" not in tenant else ("", text)


def policies_of(
    spec: ClusterSpec, default: str | Policy = DEFAULT, of: Mapping[str, str | Policy] | None = None
) -> Policies:
    """The policies of a cluster: those of its spec, over ``default``; ``of``: by VC, over both.

    Raises as :func:`make_policy`, and :class:`~hived.errors.InputError` for a VC that the spec does not have.
    """
    return Policies(make_policy(default), by_vc(spec, of))


def by_vc(spec: ClusterSpec, of: Mapping[str, str | Policy] | None = None) -> dict[str, Policy]:
    """The policies of the VCs that have another than the default."""
    known = [vc.name for vc in spec.virtual_clusters]
    names: dict[str, str | Policy] = {vc.name: vc.policy for vc in spec.virtual_clusters if vc.policy}
    for vc, name in (of or {}).items():
        if vc not in known:
            what = name if isinstance(name, str) else name.name
            raise InputError(f"policy {vc}={what}: no tenant {vc!r} in {spec.source}, which has {', '.join(known)}")
        names[vc] = name
    made: dict[str | int, Policy] = {}  # tenants of one policy share it; an object of a user may have no hash
    for name in names.values():
        key = name if isinstance(name, str) else id(name)
        if key not in made:
            made[key] = make_policy(name)
    return {vc: made[name if isinstance(name, str) else id(name)] for vc, name in names.items()}
