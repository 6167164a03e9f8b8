"""What a new spec changes, in words."""

from __future__ import annotations

from dataclasses import replace

from hived.engine.job import Event
from hived.engine.sentences import change_text, event_text
from hived.engines.local.devices import spec_for
from hived.spec.changes import changes
from hived.spec.compiled import AccessSpec

#: of the event
DATA = {"kept": 0, "downgraded": [], "lost": []}
OLD = spec_for("node", 8, "GPU", (("vision", 4), ("speech", 2)))


def test_nothing() -> None:
    assert list(changes(OLD, OLD)) == []


def test_everything() -> None:
    vision, _ = OLD.virtual_clusters
    new = spec_for("node", 4, "GPU", (("vision", 2), ("research", 2)))
    other = replace(
        new.virtual_clusters[0], policy="fair", access=AccessSpec(("ann", "group:gpu"), max_gpus=3, max_priority=0)
    )
    new = replace(new, virtual_clusters=(other, *new.virtual_clusters[1:]), operators=("olga",))
    assert [tuple(change) for change in changes(OLD, new)] == [
        ("", "nodes", 8, 4),
        ("", "operators", (), ("olga",)),
        ("vision", "cells", 4, 2),
        ("vision", "policy", "", "fair"),
        ("vision", "members", (), ("ann", "group:gpu")),
        ("vision", "maxPriority", None, 0),
        ("vision", "maxGpus", None, 3),
        ("research", "new", None, None),
        ("speech", "gone", None, None),
    ]
    said = event_text(Event(1, 0.0, "reconfigured", None, DATA | {"changes": list(map(list, changes(OLD, new)))}))
    assert said == (
        "the cluster has a new spec (the cluster has 4 GPUs (was 8); operators olga (was none); vision: 2 reserved "
        "GPUs (was 4); vision: policy fair (was none); vision: members ann, group:gpu (was none); vision: maxPriority "
        "0 (was none); vision: maxGpus 3 (was none); research is new; speech is no more); 0 jobs went on as before"
    )
    assert [change.key for change in changes(OLD, replace(OLD, virtual_clusters=(vision,)))] == ["gone"]
    (moved,) = changes(OLD, replace(OLD, virtual_clusters=OLD.virtual_clusters[::-1]))
    assert (tuple(moved), change_text(*moved)) == (
        ("", "order", None, None), "the virtual clusters are in another order",
    )  # fmt: skip
    assert "(nothing has changed)" in event_text(Event(1, 0.0, "reconfigured", None, DATA | {"changes": []}))
    assert "spec; 0 jobs" in event_text(Event(1, 0.0, "reconfigured", None, DATA)), "of the version before"
