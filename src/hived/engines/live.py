"""What a spec may ask for that only the simulator has so far."""

from __future__ import annotations

from hived.errors import InputError
from hived.spec.compiled import EXACT, ClusterSpec


def check_live(spec: ClusterSpec) -> None:
    """Raise :class:`~hived.errors.InputError` for what live engines do not have yet."""
    for vc in spec.virtual_clusters:
        if vc.safety == EXACT:
            raise InputError(
                f"{spec.source}: virtualClusters.{vc.name}.safety: exact safety is only simulated so far "
                "(hived simulate --safety exact); leave it out for safety that is work-conserving"
            )
