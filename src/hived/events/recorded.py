"""A cluster whose calls are recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hived.cells import Rank
from hived.cluster.cluster import Cluster, as_records, compiled_spec
from hived.cluster.decisions import Bind, Decision, Placement, Preempt, Record, VirtualLeaves
from hived.cluster.demands import Demand
from hived.cluster.placement_request import PlacementRequest
from hived.cluster.pool import packed
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import Request
from hived.cluster.trade import TradeEffect
from hived.errors import InputError
from hived.spec.compiled import ClusterSpec

from . import journal
from .codec import to_line


class RecordedCluster(Cluster):
    """A :class:`Cluster` that calls ``log`` with one line of JSON for every request and every change.

    Refused calls are logged too. :func:`~hived.events.replay.replay` replays the lines.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        log: Callable[[str], None],
        rank: Rank = packed,
        ranks: Mapping[str, Rank] | None = None,
    ) -> None:
        """``rank``, ``ranks``: the choice of a host for a guaranteed group; a replay needs the same."""
        super().__init__(spec, rank=rank, ranks=ranks)
        self._log = log
        log(to_line(journal.Opened(spec)))

    def _recorded(self, call: journal.Call) -> Any:
        """Apply ``call`` and log it with its answer, or with the error that refused it."""
        try:
            answer = call.apply(super())
        except InputError as error:
            self._log(to_line(journal.Refused.of(call, error)))
            raise
        self._log(to_line(call.answered(answer)))
        return answer

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """What is tried is no event, and not logged."""
        log, self._log = self._log, _unheard
        try:
            with super().what_if():
                yield
        finally:
            self._log = log

    def schedule(
        self,
        request: Request,
        suggested_nodes: Collection[str] | None = None,
        now: float = 0.0,
        excluded_nodes: Collection[str] = (),
    ) -> Decision:
        call = journal.Scheduled.of(request, _in_order(suggested_nodes), now, _in_order(excluded_nodes) or ())
        decision: Decision = self._recorded(call)
        return decision

    def place(self, asked: PlacementRequest, keep: bool = False) -> Bind | Preempt | None:
        if not isinstance(asked, PlacementRequest):
            return super().place(asked, keep)  # which refuses what has no form in a log
        call = journal.Placed.asked(asked, _in_order(asked.excluded_nodes) or (), keep)
        decision: Bind | Preempt | None = self._recorded(call)
        return decision

    def promote(
        self,
        request: Request,
        at: VirtualLeaves | None = None,
        excluded_nodes: Collection[str] = (),
        demand: Demand | None = None,
    ) -> bool | None:
        promoted: bool | None = self._recorded(journal.Promoted.of(request, at, _in_order(excluded_nodes) or ()))
        return promoted

    def hold(self, group: str, loan: bool) -> bool:
        held: bool = self._recorded(journal.Held(group, loan))
        return held

    def commit(self, decision: Decision) -> None:
        self._recorded(journal.Committed(decision))

    def release(self, group: str) -> None:
        self._recorded(journal.Released(group))

    def cancel(self, group: str) -> None:
        self._recorded(journal.Cancelled(group))

    def set_node_health(self, node: str, healthy: bool) -> None:
        self._recorded(journal.NodeHealth(node, healthy))

    def set_device_health(self, node: str, device: int, healthy: bool) -> None:
        self._recorded(journal.DeviceHealth(node, device, healthy))

    def recover(self, records: Iterable[Record | tuple[str, Request, Placement]]) -> Reconfiguration:
        report: Reconfiguration = self._recorded(journal.Recovered(as_records(records)))
        return report

    def reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> Reconfiguration:
        report: Reconfiguration = self._recorded(journal.Reconfigured(compiled_spec(spec)))
        return report

    def trade(self, spec: Mapping[str, Any] | ClusterSpec) -> TradeEffect | None:
        effect: TradeEffect | None = self._recorded(journal.Traded(compiled_spec(spec)))
        return effect

    def spare_work(self, spares: bool) -> None:
        if spares is not self.spares_work:
            self._recorded(journal.Sparing(spares))


def _unheard(line: str) -> None:
    """Log nothing."""


def _in_order(names: Collection[str] | None) -> Collection[str] | None:
    """Names in the order of the log; anything but a collection of names is returned unchanged."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        return tuple(sorted(names, key=str))
    return names
