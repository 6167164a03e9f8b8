"""The engine on Kubernetes: the I/O around the gang scheduler, which makes the decisions.

    watches of pods and nodes  ->  updates      ->  gang scheduler  ->  actions  ->  the API server
    kube-scheduler's requests  ->  updates, answers

One event loop. A replica that does not lead has no state and decides nothing; a new leader lists all pods and nodes
first, so that it begins with the observed state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from hived.cluster.cluster import Cluster
from hived.engine.job import after
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path
from hived.engines.kubernetes.client.leader_election import LeaderElector, LeaderLabel
from hived.engines.kubernetes.gangs.extender_answers import Answer, MetaVictims, answer, preemption, refusal
from hived.engines.kubernetes.gangs.extender_answers import Victims as VictimsAnswer
from hived.engines.kubernetes.gangs.gang import Bind
from hived.engines.kubernetes.gangs.gang_scheduler import PATIENCE_S, GangScheduler, policies_of_pods
from hived.engines.kubernetes.pods.objects import Node, Pod
from hived.engines.kubernetes.pods.owners import Owners
from hived.engines.kubernetes.pods.pod_request import PodRequestError, may_concern
from hived.errors import HivedError, InputError, InvariantError, NotFoundError, PolicyError, UnavailableError
from hived.events.recorded import RecordedCluster
from hived.exchange import Arbiter, Balanced
from hived.policies import YarnCS
from hived.scheduling import Policies
from hived.spec.compiled import ClusterSpec

from .action_runner import ActionRunner
from .config_map import ConfigMapRecord
from .counters import Counts
from .informers import Informers, Sized
from .spec_source import SpecSource, parsed_spec
from .stored_accounts import StoredAccounts, stored_accounts
from .stored_market import RecordConflictError, StoredMarket

_log = logging.getLogger("hived.kubernetes")
_TICK_S = 0.25
_COLLECT_S = 600.0  #: between two full garbage collections
_STARTUP_S = 15.0  #: of retries while the API server starts
T = TypeVar("T")


def _steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, by a monotonic clock: setting the system clock moves no deadline."""
    first = time.time() - time.monotonic()
    return lambda: first + time.monotonic()


@dataclass(eq=False)
class Engine:
    """One replica of the service, from :meth:`start` to :meth:`stop`."""

    api: KubeApi
    source: SpecSource
    _: KW_ONLY
    identity: str
    evict_after: float = 0.0
    evict_patience: float = PATIENCE_S
    #: makes the candidate for leadership; None: this is the only replica
    elect: Callable[[Callable[[bool], None]], LeaderElector] | None = None
    own_pod: tuple[str, str] | None = None
    #: where trades are kept, None: nowhere; and how offers are matched with requests
    trade_record: ConfigMapRecord | None = None
    arbiter: Arbiter = field(default_factory=Balanced)
    #: where accounts are kept: namespace and name of a ConfigMap; None: nowhere
    accounts_in: tuple[str, str] | None = None
    counts: Counts = field(default_factory=Counts)
    event_log: Callable[[str], None] | None = None  #: gets the lines of the core's event log while it leads
    #: None until it leads and has listed pods and nodes
    gang_scheduler: GangScheduler | None = field(init=False, default=None)
    spec: ClusterSpec = field(init=False)
    spec_text: str = field(init=False, default="")  #: of the spec in force, as it was read
    spec_loaded_at: float = field(init=False, default=0.0)
    spec_problem: str = field(init=False, default="")
    clock: Callable[[], float] = field(init=False, default_factory=_steady_clock)
    failed: asyncio.Future[HivedError] | None = field(init=False, default=None)  #: why it cannot go on

    def __post_init__(self) -> None:
        self.spec_source = self.source.name
        self.started_at = self.clock()
        self._roles = LeaderLabel(self.api, self.own_pod)
        self._leader = self.elect(self._leadership_changed) if self.elect is not None else None
        self._owners = Owners(self.api)
        self._writer = ActionRunner(self.api, self.counts, self.clock, self._spawn, self._preempted, self._evict_failed)
        self._market = StoredMarket(self.trade_record, self.arbiter, self.clock)
        self._accounts = None if self.accounts_in is None else stored_accounts(self.api, *self.accounts_in, self.clock)
        self._tasks: list[asyncio.Task[Any]] = []
        #: once it leads
        self._informers: Informers | None = None
        self._unresolvable = False
        self._dispatch_due = False
        self._changed = asyncio.Event()
        self._logged = 0

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start; returns once the spec is read and Kubernetes answers. Raises the error of either."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        self.spec_text = await _with_retries(self.source.read)
        self.spec = parsed_spec(self.spec_text, self.source.name)
        policies_of_pods(self.spec)
        self.spec_loaded_at = self.clock()
        # kube-scheduler's own preemption sees no lack of GPUs: from 1.22 on it fails where it finds no victims
        self._unresolvable = await _with_retries(self.api.version) >= (1, 22)
        self._writer.policy = "policy/v1" if self._unresolvable else "policy/v1beta1"
        self._spawn(self.source.follow(self._new_spec, self._refuse_spec))
        if self._leader is None:
            self._lead()
        else:
            await self._roles.set("standby")
            self._spawn(self._leader.run())

    async def stop(self) -> None:
        """Stop answering, let running actions end, hand leadership over."""
        gang_scheduler, self.gang_scheduler = self.gang_scheduler, None
        if self._accounts is not None and gang_scheduler is not None and not self._accounts.problem:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._accounts.write(gang_scheduler), 2.0)
        self._wake_watchers()
        await self._writer.stop(2.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a task of the engine; its failure is the engine's."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.remove(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("the engine cannot go on", exc_info=error)
            self._fail(error if isinstance(error, HivedError) else InvariantError(f"a bug of hived: {error!r}"))

    def _fail(self, error: HivedError) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(error)

    def _leadership_changed(self, leads: bool) -> None:
        if leads:
            _log.info("%s leads", self.identity)
            self._lead()
        else:
            self.gang_scheduler = None
            self._fail(UnavailableError("leadership was lost; another replica decides now"))

    def _lead(self) -> None:
        self._spawn(self._listen())
        self._spawn(self._ticking())

    async def _listen(self) -> None:
        await self._writer.recall()
        await _with_retries(self._market.load)
        if self._accounts is not None:
            await self._accounts.load()
        self._informers = Informers(
            self.api, self._owners, self.counts, self.clock, self._spawn, self._begin, self._dispatch_soon
        )
        self._informers.start()

    def _begin(self, nodes: list[Node], pods: list[Sized]) -> GangScheduler:
        """Make the gang scheduler from all nodes and pods, and begin to decide."""
        policies, log = Policies(YarnCS(), policies_of_pods(self.spec)), self.event_log
        rank, ranks = policies.rank, policies.ranks
        trading = self._market.restored(self.spec)
        if log is None:
            cluster = Cluster(trading.in_force(), rank=rank, ranks=ranks)
        else:
            cluster = RecordedCluster(trading.in_force(), log, rank, ranks)
        gang_scheduler = GangScheduler(cluster, policies, self.evict_after, self.evict_patience, trading)
        if self._accounts is not None:
            self._accounts.attach(gang_scheduler)
        gang_scheduler.start(nodes, pods, self.clock())
        gang_scheduler.holdings.count_from(self.clock())  # what was before, the process before has counted
        if self._accounts is not None and not self._accounts.problem:
            self._accounts.begin(gang_scheduler)
        self.install(gang_scheduler)
        _log.info("ready: %d groups, %d pods", len(gang_scheduler.gangs), len(gang_scheduler.pods))
        self._spawn(self._roles.set("leader"))
        return gang_scheduler

    def install(self, gang_scheduler: GangScheduler) -> None:
        """Use ``gang_scheduler`` from now on."""
        self.gang_scheduler = gang_scheduler
        # the objects of now live long: garbage collections that traverse them would delay requests
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 1_000_000)

    @property
    def leader(self) -> bool:
        """Whether this replica decides."""
        return self._leader is None or self._leader.is_leader

    @property
    def holder(self) -> str:
        """Identity of the leader; "" without an election."""
        return "" if self._leader is None else self._leader.holder

    @property
    def problem(self) -> str:
        """Why the lease or a watch fails at the moment; "" if none does."""
        informers = self._informers
        sources = (self._leader, *(() if informers is None else (informers.pods, informers.nodes)))
        return next((str(one.problem) for one in sources if one is not None and one.problem is not None), "")

    @property
    def ready(self) -> bool:
        """Whether it leads and has listed pods and nodes, or is a standby that sees a leader."""
        if self._leader is not None and not self._leader.is_leader:
            return self._leader.problem is None and bool(self._leader.holder)
        return self.gang_scheduler is not None

    def active_scheduler(self) -> GangScheduler:
        """The gang scheduler. Raises :class:`UnavailableError` while this replica does not decide."""
        if not self.leader:
            raise UnavailableError(f"this replica stands by; {self.holder or 'nobody yet'} leads")
        if self.gang_scheduler is None:
            raise UnavailableError("pods and nodes are being listed; ask again in a moment")
        return self.gang_scheduler

    @property
    def cluster(self) -> Cluster:
        """The core. Raises :class:`UnavailableError` while this replica does not decide."""
        return self.active_scheduler().cluster

    async def changed(self, seq: int) -> None:
        """Return once there is an event after number ``seq``, or another gang scheduler."""
        gang_scheduler = self.gang_scheduler
        while self.gang_scheduler is gang_scheduler and (gang_scheduler is None or gang_scheduler.seq <= seq):
            await self._changed.wait()

    # -- updates --------------------------------------------------------------------------------------------------

    def _new_spec(self, text: str) -> None:
        """Apply a new spec, or refuse it; once a trade that is being stored is."""
        if self._market.busy:
            self._spawn(self._market.when_stored(lambda: self._apply_spec(text)))
        else:
            self._apply_spec(text)

    def _apply_spec(self, text: str) -> None:
        try:
            spec = parsed_spec(text, self.source.name)
            policies_of_pods(spec)
            if self.gang_scheduler is not None:
                report = self.gang_scheduler.reconfigure(spec, self.clock())
                self._market.spec_changed()
                _log.info("a new spec: %d groups as before, %d not", len(report.kept), len(report.downgraded))
        except InputError as error:
            self._refuse_spec(error)
            return
        self.spec, self.spec_text, self.spec_loaded_at, self.spec_problem = spec, text, self.clock(), ""
        self.counts.spec_reloads["ok"] += 1
        self._dispatch_soon()
        self._wake_watchers()

    def _refuse_spec(self, error: InputError) -> None:
        self.spec_problem = str(error)
        self.counts.spec_reloads["refused"] += 1
        _log.error("the new spec is refused, the old one stays: %s", error)

    async def _ticking(self) -> None:
        collected = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            if self.gang_scheduler is not None:
                self.gang_scheduler.due(self.clock())
                if self._market.tick(self.gang_scheduler):
                    self._spawn(self._trades_due())
                self._dispatch()
                if self._accounts is not None and self._accounts.due:
                    self._spawn(self._accounts.write(self.gang_scheduler))
            if time.monotonic() - collected >= _COLLECT_S:
                collected = time.monotonic()
                gc.collect()

    # -- trades of cells ------------------------------------------------------------------------------------------

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read. Raises :class:`UnavailableError` while this replica does not decide."""
        gang_scheduler = self.active_scheduler()
        if self._market.problem:
            raise UnavailableError(self._market.problem)
        return gang_scheduler.trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market by ``act``; it is stored when this returns. Raises as :meth:`.StoredMarket.change`."""
        try:
            answer = await self._market.change(self.active_scheduler, act)
        except RecordConflictError as error:
            self._fail(error)  # the next process goes by what is written
            raise
        self._dispatch_soon()
        return answer

    async def _trades_due(self) -> None:
        """Begin the trades whose time has come."""
        try:
            await self.trade(LiveTrading.advance)
        except InvariantError:
            raise
        except HivedError as error:
            _log.warning("trades are not written down, and none begins: %s", error)

    # -- accounts -------------------------------------------------------------------------------------------------

    @property
    def accounts(self) -> StoredAccounts | None:
        """Who has had GPUs; None: they are kept nowhere. Raises :class:`UnavailableError` for one that stands by."""
        self.active_scheduler()
        return self._accounts

    # -- requests of kube-scheduler -------------------------------------------------------------------------------

    async def filter(self, pod: Pod, offered: Iterable[str]) -> tuple[str, Answer]:
        """The result label and the filter answer for ``pod``, of the nodes ``offered``."""
        nodes = offered if isinstance(offered, list) else list(offered)
        # from 1.22 on it filters the node that it has nominated alone, and then all
        partial = nodes == [pod.status.nominated_node_name]
        try:
            known = await self._known(pod)
            if known is None:
                return "other", Answer(NodeNames=nodes)
            gang_scheduler = self.active_scheduler()
            entry = gang_scheduler.asked(*known, nodes, self.clock(), partial)
        except PodRequestError as error:
            self.active_scheduler().unreadable(pod, error, self.clock())
            self._dispatch_soon()
            return "refused", refusal(str(error), nodes, self._unresolvable)
        except NotFoundError as error:
            return "gone", Answer(Error=str(error))
        found = answer(gang_scheduler, entry, nodes, self._unresolvable, partial)
        self._dispatch_soon()
        return found

    async def preempt(self, pod: Pod, offered: Mapping[str, MetaVictims | None]) -> tuple[str, VictimsAnswer]:
        """The result label and the victims for ``pod``.

        ``offered``: nodes that are usable once pods have left them; the victims of a pod that is not HiveD's.
        """
        try:
            known = await self._known(pod)
            if known is None:
                return "other", VictimsAnswer({node: pods or MetaVictims() for node, pods in offered.items()})
            gang_scheduler = self.active_scheduler()
            entry = gang_scheduler.asked(*known, frozenset(offered), self.clock(), emptied=True)
        except (PodRequestError, NotFoundError):
            return "refused", VictimsAnswer({})
        found = preemption(gang_scheduler, entry)
        self._dispatch_soon()
        return "victims" if found.NodeNameToMetaVictims else "none", found

    async def _known(self, pod: Pod) -> Sized | None:
        """``pod`` as the API server has it, and the gang as its owner defines it; None: it asks for no GPUs.

        kube-scheduler asks about a pod with a limit of 0 GPUs, too.

        Raises :class:`PodRequestError`, :class:`NotFoundError`, :class:`UnavailableError`.
        """
        gang_scheduler = self.active_scheduler()
        found = pod if self._informers is None else await self._informers.confirm(gang_scheduler, pod)
        if found is None:
            raise NotFoundError(f"there is no pod {pod.key} with the uid {pod.metadata.uid} (any more)")
        if found.metadata.uid not in gang_scheduler.pods and not may_concern(found):
            return None
        return found, await self._owners.members(found)

    async def bind(self, uid: str, node: str, key: str = "") -> None:
        """Bind a pod, with its annotations, in one call. ``key``: its namespace and name, if it may not be HiveD's.

        Raises :class:`NotFoundError`, :class:`ConflictError` if it is refused or its outcome is unknown, and
        :class:`UnavailableError` while this replica does not decide.
        """
        gang_scheduler = self.active_scheduler()
        if key and uid not in gang_scheduler.pods and await self._writer.bind_other(uid, key, node):
            return
        await self._writer.bind(gang_scheduler, gang_scheduler.binding(uid, node))
        self._dispatch_soon()

    async def cordon(self, node: str, unschedulable: bool) -> None:
        """Keep pods off a node, or let them come again. Raises :class:`NotFoundError`, :class:`UnavailableError`."""
        try:
            await self.api.patch(api_path("nodes", name=node), {"spec": {"unschedulable": unschedulable or None}})
        except ApiError as error:
            if error.status == 404:
                raise NotFoundError(f"Kubernetes has no node {node!r}") from None
            raise

    # -- carrying out decisions -----------------------------------------------------------------------------------

    def _dispatch_soon(self) -> None:
        """Dispatch once the updates of this iteration of the event loop are in."""
        if not self._dispatch_due:
            self._dispatch_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_due = False
        gang_scheduler = self.gang_scheduler
        if gang_scheduler is None:
            return
        try:
            gang_scheduler.dispatch(self.clock())
        except PolicyError as error:
            _log.error("the engine cannot go on: %s", error)
            self._fail(error)
            return
        for instruction in gang_scheduler.turn():
            if isinstance(instruction, Bind):
                self._spawn(self._bind_refused(gang_scheduler, instruction))
            else:
                self._writer.carry_out(instruction)
        if gang_scheduler.seq != self._logged:
            self._check(gang_scheduler)
            for event in after(gang_scheduler.recent, self._logged):
                group = event.job or ""
                _log.info("%s", event_text(event, group), extra={"fields": {"kind": event.kind, "group": group}})
            self._logged = gang_scheduler.seq
            self._wake_watchers()

    def _check(self, gang_scheduler: GangScheduler) -> None:
        """Check sharing safety; count and log a violation. O(levels)."""
        try:
            gang_scheduler.cluster.check_safety()
        except InvariantError as error:
            self.counts.safety_violations += 1
            _log.critical("%s", error)

    def _wake_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _bind_refused(self, gang_scheduler: GangScheduler, instruction: Bind) -> None:
        """Bind a pod to a node that kube-scheduler refuses."""
        entry = gang_scheduler.pods.get(instruction.uid)
        if entry is None or entry.given is None or entry.holds:
            return
        try:
            await self.bind(instruction.uid, entry.given.node)
        except HivedError as error:
            _log.warning("pod %s was not bound: %s", instruction.key, error)

    def _preempted(self, uid: str) -> bool:
        entry = self.gang_scheduler.pods.get(uid) if self.gang_scheduler is not None else None
        return entry is not None and entry.gang is not None and entry.gang.state is JobState.STOPPING

    def _evict_failed(self, uid: str) -> None:
        if self.gang_scheduler is not None:
            self.gang_scheduler.evict_failed(uid, self.clock())


async def _with_retries(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry ``ask`` while the API server starts: it is away then, or forbids everything at first."""
    give_up = time.monotonic() + _STARTUP_S
    while True:
        try:
            return await ask()
        except ApiError as error:
            if error.status in (401, 404) or time.monotonic() >= give_up:
                raise
            _log.warning("%s (tried again for %d s)", error, max(0, round(give_up - time.monotonic())))
        await asyncio.sleep(1.0)
