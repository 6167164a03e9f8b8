"""Random walks: state, usage counts and bound pods stay consistent, and a restart moves no running gang."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.engine.sentences import event_text
from hived.spec import load_spec
from hived.spec.compiled import EXACT

from .pods import flat_spec, with_vcs
from .walking import Walk

SPECS = Path(__file__).parents[3] / "shared" / "specs"
#: small clusters, each a new spec for the others
SMALL = (
    flat_spec(a=2, b=1, c=1),
    flat_spec(a=2, b=2, spare=1),
    flat_spec(a=1, c=2),
    flat_spec(a=3, b=0, gpus=2),
)


#: some of them with all tenants of exact safety
SOME_EXACT = (*(with_vcs(SMALL[number], safety=EXACT) for number in (0, 1, 3)), SMALL[2])


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


def walks(fast: int, *slow: int, steps: int) -> pytest.MarkDecorator:
    """Parametrize a walk by its seed and steps: a short one is of the fast tier."""
    longer = [pytest.param(seed, steps, marks=pytest.mark.slow) for seed in slow]
    return pytest.mark.parametrize(("seed", "steps"), [(fast, 50), *longer])


@walks(0, *range(12), steps=120)
def test_any_events(seed: int, steps: int) -> None:
    go(Walk(SMALL[seed % 3], seed, rough=False), steps)


@walks(1, *range(12), steps=120)
def test_any_events_and_new_specs(seed: int, steps: int) -> None:
    go(Walk(SMALL[seed % 4], seed, SMALL, rough=False), steps)


@walks(3, *range(12), steps=150)
def test_other_clients_interfere(seed: int, steps: int) -> None:
    go(Walk(SMALL[seed % 3], 1000 + seed, SMALL if seed % 2 else ()), steps)


@walks(4, *range(16), 119, 644, steps=150)
def test_exact_safety(seed: int, steps: int) -> None:
    """Of some tenants, in some specs.

    119: cells that were owed to a gang were reserved by one that went elsewhere.
    644: the turn of a gang that waited for leave to preempt was over, and it could borrow.
    """
    go(Walk(SOME_EXACT[seed % 4], 2000 + seed, SOME_EXACT if seed % 3 else (), rough=seed % 2 == 0), steps)


@pytest.mark.slow
@pytest.mark.skipif(not SPECS.is_dir(), reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize(("before", "after"), [("2", "33"), ("2", "4"), ("2", "7"), ("2", "5"), ("2", "6"), ("1", "8")])
def test_deployed_cluster_changes(before: str, after: str) -> None:
    specs = [load_spec(SPECS / f"hived-config-{name}.yaml") for name in (before, after)]
    go(Walk(specs[0], 7, specs), 120)


@pytest.mark.slow
@pytest.mark.skipif(not SPECS.is_dir(), reason="the specs of deployed clusters are not here")
def test_cluster_with_every_feature() -> None:
    go(Walk(load_spec(SPECS / "design.yaml"), 3), 60)
