"""Random walks: state, usage counts and bound pods stay consistent, and a restart moves no running gang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hived.engines.kubernetes.gangs.explaining import event_text
from hived.spec import load_spec
from hived.spec.compiled import EXACT, ClusterSpec

from .pods import flat_spec
from .walking import Walk

SPECS = Path(__file__).parents[3] / "shared" / "specs"
#: small clusters, each a new spec for the others
SMALL = (
    flat_spec(("a", 2), ("b", 1), ("c", 1)),
    flat_spec(("a", 2), ("b", 2), spare=1),
    flat_spec(("a", 1), ("c", 2)),
    flat_spec(("a", 3), ("b", 0), gpus=2),
)
SOME_EXACT = (
    tuple(
        replace(spec, virtual_clusters=tuple(replace(vc, safety=EXACT) for vc in spec.virtual_clusters))
        for spec in (*SMALL[:2], SMALL[3])
    )
    + SMALL[2:3]
)
#: before and after a change
PAIRS = [("2", "33"), ("2", "4"), ("2", "7"), ("2", "5"), ("2", "6"), ("1", "8")]

needs_specs = pytest.mark.skipif(not SPECS.is_dir(), reason="the specs of deployed clusters are not here")


def deployed(name: str) -> ClusterSpec:
    """A spec of a cluster somewhere."""
    return load_spec(SPECS / f"{name}.yaml")


def go(walk: Walk, steps: int) -> None:
    """What fails shows what had happened."""
    try:
        walk.go(steps)
    except Exception as error:
        error.add_note("\n".join(walk.world.log[-30:]))
        error.add_note(
            "\n".join(f"{e.at} {e.kind} {e.job}: {event_text(e)}" for e in list(walk.world.gang_scheduler.recent)[-40:])
        )
        raise


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen(seed: int) -> None:
    go(Walk(SMALL[seed % 3], seed, rough=False), 120)


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen_under_changing_specs(seed: int) -> None:
    go(Walk(SMALL[seed % 4], seed, SMALL, rough=False), 120)


@pytest.mark.parametrize("seed", [*range(16), 119, 644])
def test_anything_may_happen_under_exact_safety(seed: int) -> None:
    """Of some tenants, in some specs.

    119: cells that were owed to a gang were reserved by one that went elsewhere.
    644: the turn of a gang that waited for leave to preempt was over, and it could borrow.
    """
    go(Walk(SOME_EXACT[seed % 4], 2000 + seed, SOME_EXACT if seed % 3 else (), rough=seed % 2 == 0), 150)


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen_while_other_clients_interfere(seed: int) -> None:
    go(Walk(SMALL[seed % 3], 1000 + seed, SMALL if seed % 2 else ()), 150)


@needs_specs
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_anything_may_happen_on_deployed_clusters_that_change(before: str, after: str) -> None:
    specs = [deployed(f"hived-config-{name}") for name in (before, after)]
    go(Walk(specs[0], 7, specs), 120)


@needs_specs
def test_anything_may_happen_on_a_cluster_with_every_feature() -> None:
    go(Walk(deployed("design"), 3), 60)
