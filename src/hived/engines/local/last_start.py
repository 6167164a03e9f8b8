"""What the last start was under: its spec, so that the next one takes jobs over as they were, and then goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hived.errors import InputError, StorageError
from hived.events.codec import from_line, to_line
from hived.events.journal import Opened, Reconfigured
from hived.spec.compiled import ClusterSpec

from .store import Store

#: name and GPUs of each virtual cluster, as ``hived up --vc`` has them
Shares = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LastStart:
    """Of the engine that had the state folder last."""

    spec: ClusterSpec
    #: whether its devices were; None: not known, of a folder that an earlier version has written
    simulated: bool | None = None
    #: what the spec was made of; None: a spec was given
    shares: Shares | None = None

    def values(self) -> dict[str, str]:
        """For the store."""
        more = {"simulated": self.simulated, "shares": self.shares}
        return {"spec": to_line(Opened(self.spec)), "start": json.dumps(more)}


def last_start(store: Store) -> LastStart | None:
    """What the store has of the last start; ``None`` before the first. Raises :class:`StorageError`."""
    line = store.value("spec")
    if line is None:
        return None
    try:
        event = from_line(line)
        more = json.loads(store.value("start") or "{}")
        assert isinstance(event, Opened | Reconfigured)
        shares = more.get("shares")
        return LastStart(
            event.spec,
            more.get("simulated"),
            None if shares is None else tuple((str(name), int(gpus)) for name, gpus in shares),
        )
    except (InputError, ValueError, TypeError, AttributeError, AssertionError) as error:
        message = f"{store.folder}: hived.db is damaged (the last spec: {error}); give another --state"
        raise StorageError(message) from None


def same(one: ClusterSpec, other: ClusterSpec) -> bool:
    """Whether two specs say the same, wherever they came from."""
    return to_line(Opened(replace(one, source="", ignored=()))) == to_line(
        Opened(replace(other, source="", ignored=()))
    )


def new_names(before: ClusterSpec, spec: ClusterSpec) -> dict[str, str]:
    """What a node is called now, by what it was called: this machine is one, however its specs call it."""
    was, now = before.node_names, spec.node_names
    return {was[0]: now[0]} if len(was) == len(now) == 1 and was != now else {}


def renamed(spec: ClusterSpec, names: Mapping[str, str]) -> ClusterSpec:
    """A spec with other ``names`` for its nodes, by those that it has."""
    called = [tuple(names.get(name, name) for name in chain.node_names) for chain in spec.chains]
    chains = zip(spec.chains, called, strict=True)
    return replace(spec, chains=tuple(replace(chain, node_names=nodes) for chain, nodes in chains))
