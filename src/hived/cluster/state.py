"""The state of a cluster, and the few steps that change it: admit, end, withdraw, downgrade, restore.

Every step logs its inverse (:mod:`.undo`), so a request is decided by carrying it out: :mod:`.guaranteed` and
:mod:`.opportunistic` bind a group's leaves, :meth:`State.admit` allocates them, and all of it is kept or rolled back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import islice, takewhile

from hived.cells import LevelSafety, Rank
from hived.errors import ensure
from hived.spec.compiled import NO_GUESTS, ClusterSpec, GuestsOf

from .demands import Demands
from .doomed import doom, undoom
from .explain.reasons import LostReservation, NeverFits, Reason, Suspended
from .fairness import whole
from .groups import Group, Waiting
from .guests import Guests
from .nodes import Nodes
from .parts import Part
from .pool import Pool, packed
from .requests import OPPORTUNISTIC, Request
from .sharing import BindingKind, Sharing, lay_out
from .sparing import Sparing
from .states import ALLOCATE, BIND, CANCEL, RELEASE, RESERVE, GroupEvent, GroupState, next_group_state
from .undo import Undo
from .virtual import Spots

_STARTED = next_group_state(GroupState.PENDING, GroupEvent.BIND)
_RESERVED = next_group_state(GroupState.PENDING, GroupEvent.PREEMPT)


class State:
    """The groups of a cluster, and every index over them; :mod:`.checks` re-derives all of it."""

    def __init__(
        self,
        spec: ClusterSpec,
        sharing: Sharing = Sharing.HIVED,
        rank: Rank = packed,
        binding: BindingKind = BindingKind.DYNAMIC,
        ranks: Mapping[str, Rank] | None = None,
    ) -> None:
        self.spec = spec
        self.undo = Undo()
        self.sharing = sharing
        #: when cells are bound
        self.binding = binding
        #: the order in which a guaranteed group prefers hosts
        self.rank = rank
        #: of the VCs that have another rank than the default
        self.ranks = ranks
        #: the nodes of each chain (in private clusters: of each pool), and per tenant its pools, unpinned ones first
        self.chain_bindings, self.pools = lay_out(spec, sharing, binding, self.undo)
        self.chains = [chain.nodes for chain in self.chain_bindings]
        #: the time of the caller's last request, in seconds
        self.now = 0.0
        #: the chains in which cells are bound late, and so can be doomed
        self.bound = self.chain_bindings if sharing is Sharing.HIVED and binding is BindingKind.DYNAMIC else []
        self.demands = Demands(spec, [] if sharing is Sharing.PRIVATE else self.chains, self.pools)
        #: names of the tenants; tenants with running groups whose VC was removed come last
        self.tenants = [vc.name for vc in spec.virtual_clusters]
        self.tenant_numbers = {name: number for number, name in enumerate(self.tenants)}
        #: GPUs of each tenant's cells, pinned cells included
        self.sizes = [spec.reserved(vc) for vc in spec.virtual_clusters]
        #: weight of each tenant among opportunistic groups, in proportion
        self.weights = _weights(spec, self.sizes)
        #: per tenant: whose guests its groups accept
        self.guests: list[GuestsOf] = [vc.guests for vc in spec.virtual_clusters]
        #: per chain: the guests on its nodes; None where no VC accepts guests
        self.guests_on: list[Guests | None] = [
            None if set(self.guests) == {NO_GUESTS} else Guests(nodes, self.guests, self.undo) for nodes in self.chains
        ]
        #: guests evicted since the caller last read this list
        self.evicted: list[str] = []
        #: per tenant, by chain: leaf cells that its opportunistic groups use or have reserved
        self.opportunistic_gpus: list[dict[int, int]] = [{} for _ in self.tenants]
        #: tenants whose number of these may have changed since the caller last cleared this
        self.loans_changed: dict[int, None] = {}
        #: per tenant: its opportunistic groups, in the order in which they started
        self.loans: list[dict[Group, None]] = [{} for _ in self.tenants]
        #: groups that run or hold a reservation, by name
        self.groups: dict[str, Group] = {}
        #: groups that wait, by name, in the order of their first requests
        self.waiting: dict[str, Waiting] = {}
        #: guaranteed groups that run as opportunistic for now
        self.downgraded: dict[Group, None] = {}
        #: per demand (with its cap by name): why it would not fit an empty cluster; None where it would
        self.fits_empty: dict[tuple[object, ...], NeverFits | None] = {}
        #: whether hardware was ever bad, so that :meth:`refresh_doomed` may have work
        self.ever_bad = False
        #: number of committed changes
        self.version = 0
        self.sequence = 0
        self._loans_made = 0
        self.undo.commit()

    @property
    def spares_work(self) -> bool:
        """Whether loans that lose the least work make room, rather than those with the fewest GPUs."""
        return any(chain.sparing is not None for chain in self.bound)

    def spare_work(self, spares: bool) -> None:
        """Set :attr:`spares_work`; in vain where no cells are bound late."""
        for chain in self.bound:
            chain.sparing = Sparing(chain.nodes, self._work_of) if spares else None

    def _work_of(self, loan: Group) -> float:
        """GPU seconds that a loan loses if it ends now; a guest goes on beside who gets its leaves."""
        return (
            0.0
            if loan.guest or loan.request.saves_work or not loan.running
            else loan.gpus * max(0.0, self.now - loan.since)
        )

    def rank_of(self, vc: str) -> Rank:
        """How the guaranteed groups of a VC prefer hosts."""
        return self.rank if self.ranks is None else self.ranks.get(vc, self.rank)

    def tenant(self, name: str) -> int:
        """The number of a tenant. A tenant that the spec does not list gets no cells and no weight."""
        number = self.tenant_numbers.get(name)
        if number is None:
            number = self.tenant_numbers[name] = len(self.tenants)
            self.tenants.append(name)
            self.pools.append([])
            self.sizes.append(0)
            self.weights.append(0)
            self.guests.append(NO_GUESTS)
            self.opportunistic_gpus.append({})
            self.loans.append({})
        return number

    def resized(self, spec: ClusterSpec, tenants: Collection[int]) -> None:
        """Follow a new spec in which these tenants have other cells, which their pools have already. O(VCs + pools)."""
        self.spec = spec
        count = len(spec.virtual_clusters)
        self.sizes[:count] = [spec.reserved(vc) for vc in spec.virtual_clusters]
        self.weights[:count] = _weights(spec, self.sizes)
        self.fits_empty = {key: why for key, why in self.fits_empty.items() if key[0] not in tenants}
        self.demands = self.demands.under(spec)

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """A context in which groups, loans and health may change; at its end all of it is as it was.

        Not while a transaction is open. O(groups waiting + doomed cells), and its steps once more.
        """
        waiting = {name: replace(one) for name, one in self.waiting.items()}
        evicted = list(self.evicted)
        doomed = [(of, list(of.doomed), of.doomed_at, of.nodes.allocator.changes) for of in self.bound]
        try:
            with self.undo.what_if():
                yield
        finally:  # what no transaction changes alone is not in the log
            self.waiting, self.evicted = waiting, evicted
            for chain, cells, at, changes in doomed:
                chain.doomed, chain.doomed_at, chain.nodes.allocator.changes = cells, at, changes

    def pool_of(self, group: Group) -> Pool | None:
        """The pool of its VC whose leaves a group has; None: it is opportunistic."""
        return None if group.pool < 0 else self.pools[group.tenant][group.pool]

    def chains_of(self, group: Group) -> list[Nodes]:
        """The chains that a group is in."""
        return [self.chains[chain] for chain in group.chains]

    def refresh_doomed(self) -> None:
        """Bring the doomed cells of every VC up to date. Not while a transaction is open.

        One comparison per chain of late bindings, unless a reserved cell was bound or freed beside bad hardware, or
        the health of hardware changed: then the cost of :func:`~.doomed.doom`.
        """
        for chain in self.bound:
            allocator = chain.nodes.allocator
            if (allocator.bad_leaves or chain.doomed) and chain.doomed_at != allocator.changes:
                doom(chain, [pool for of_tenant in self.pools for pool in of_tenant])
                chain.doomed_at = allocator.changes
                self.undo.commit()

    def forget_doomed(self) -> None:
        """Unbind the doomed cells until the next :meth:`refresh_doomed`: cells of running groups come first.

        Not while a transaction is open. O(doomed cells).
        """
        for chain in self.bound:
            if chain.doomed:
                undoom(chain)
                self.undo.commit()

    def transition(self, group: Group, event: GroupEvent) -> None:
        """Move a group to its next state on ``event``; :class:`InvariantError` where the table has none."""
        self.undo.note((setattr, group, "state", group.state))
        group.state = next_group_state(group.state, event)

    # -- starting and ending ------------------------------------------------------------------------------------------

    def admit(self, group: Group) -> None:
        """Allocate its bound leaves to ``group``: it runs, or reserves the leaves that its victims still use.

        A waiting entry of its name stays until the caller commits.
        """
        undo, pool, parts, nodes = self.undo, self.pool_of(group), group.parts, self.chains[group.chain]
        undo.note((setattr, self, "sequence", self.sequence))
        self.sequence = group.sequence = self.sequence + 1
        for victim in group.victims:
            undo.assign(victim, preempted_by={**victim.preempted_by, group: None})
            self.transition(victim, GroupEvent.CHOOSE)
        for other in group.overtaken:  # its bindings stay until the group has taken its leaves
            self._end_reservation(other)
        group.state = _RESERVED if group.victims else _STARTED
        levels: tuple[int, ...] = ()
        if pool is not None:
            pool.allocate(group)
            levels = pool.reserved_levels(group.spots)
            if len(parts) > 1:
                group.level = pool.level(group.level, parts)
        elif group.guest:
            self.guests_of(group.chain).add(group)
        else:
            self.lend(group)
        group.placement = nodes.placement(parts, levels)
        if group.level:
            group.within = nodes.chain.names[group.level]
        if not group.guest:
            nodes.claim(RESERVE if group.victims else ALLOCATE, group)
            if self.guests_on[group.chain] is not None and not group.victims:
                self.evict(group)
        for other in group.overtaken:
            had = self.pool_of(other)
            if had is not None:
                had.unbind(other.spots)
            self._back_to_waiting(other, (LostReservation(group.name, None),))
        self._put(group)

    def _put(self, group: Group) -> None:
        groups = self.groups
        before = groups.get(group.name)  # the group may replace another of its name
        self.undo.note((groups.pop, group.name) if before is None else (self._put, before))
        groups[group.name] = group

    def _drop(self, group: Group) -> None:
        self.undo.note((self._put, group))
        del self.groups[group.name]

    def by_age(self) -> list[Group]:
        """All groups that run or hold a reservation, in order of arrival. O(groups log groups)."""
        return sorted(self.groups.values(), key=lambda group: group.sequence)

    def bind(self, group: Group) -> None:
        """Start a preempting group whose victims have ended."""
        ensure(not group.victims, f"{group}: its victims are gone")
        self.transition(group, GroupEvent.BIND)
        for _, node, mask in group.parts:
            self.chains[group.chain].apply(BIND, node, mask)
            self.chains[group.chain].mark_dirty(node)  # its leaves can take guests from now on
        self.evict(group)

    def suspend(self, group: Group, why: tuple[Reason, ...]) -> None:
        """Requeue a guest: release its leaf cells, and restore its place in line. O(groups waiting)."""
        self.end(group, GroupEvent.SUSPEND)
        waiting = self.waiting
        later = [name for name, other in waiting.items() if other.sequence > group.sequence]
        waiting[group.name] = Waiting(group.request, why, group.sequence, group.since)
        self.undo.note((waiting.pop, group.name, None))
        for name in later:
            waiting[name] = waiting.pop(name)

    def end(self, group: Group, event: GroupEvent = GroupEvent.END) -> None:
        """End or withdraw ``group``; its leaves go to the group that has reserved them, if any."""
        preempting = not group.running
        if preempting:
            self.give_up_reservation(group)
        else:
            self.vacate(group)
        self._drop(group)
        if self.downgraded:
            self._unmark_downgraded(group)
        self.transition(group, event)
        if preempting:
            self._restore_after(group)

    def set_aside(self, group: Group) -> None:
        """Free the leaves of a running guaranteed group for a trial that is rolled back; its cells stay bound."""
        pool = self.pool_of(group)
        assert pool is not None
        self.chains[group.chain].unclaim(RELEASE, group)
        pool.release(group)

    def put_back(self, group: Group) -> None:
        """The inverse of :meth:`set_aside`, in the same trial."""
        pool = self.pool_of(group)
        assert pool is not None
        pool.reallocate(group)
        self.chains[group.chain].claim_again(ALLOCATE, group)

    def vacate(self, group: Group) -> None:
        """Release the leaves of a running group. It keeps its place in the list of groups."""
        if group.guest:
            self.guests_of(group.chain).remove(group)
            return
        for chain in group.chains:
            self.chains[chain].unclaim(RELEASE, group)
        if group.preempted_by:
            self._drop_victim(group)
        pool = self.pool_of(group)
        if pool is None:
            self._end_loan(group)
            return
        pool.release(group)
        pool.unbind(group.spots)

    def _drop_victim(self, group: Group) -> None:
        """Remove a victim that has ended from its preemptors."""
        for preemptor in group.preempted_by:
            left = {victim: None for victim in preemptor.victims if victim is not group}
            pool = self.pool_of(preemptor)  # in which it counts as running once its only victims are loans
            if not group.guaranteed or any(victim.guaranteed for victim in left):
                pool = None
            if pool is not None:
                pool.release(preemptor)
            self.undo.assign(preemptor, victims=left)
            if pool is not None:
                pool.reallocate(preemptor)
        self.undo.assign(group, preempted_by={})

    def lose_reservation(self, group: Group, why: tuple[Reason, ...]) -> None:
        """Requeue a preempting group without its reservation."""
        self.give_up_reservation(group)
        self._back_to_waiting(group, why)

    def replace(self, group: Group, moved: Group) -> None:
        """Admit ``moved`` in place of the group of its name, which has released its leaves."""
        if group.running:
            self._unmark_downgraded(group)
            self.transition(group, GroupEvent.END)
        else:
            for other in self.downgraded:
                if other.downgraded_by is group:
                    self.undo.assign(other, downgraded_by=moved)
            self.transition(group, GroupEvent.OVERTAKE)
        self.admit(moved)

    def give_up_reservation(self, group: Group) -> None:
        """End a reservation and unbind its virtual leaves. The group keeps its place in the list of groups."""
        self._end_reservation(group)
        pool = self.pool_of(group)
        if pool is not None:
            pool.unbind(group.spots)

    def _end_reservation(self, group: Group) -> None:
        """End a reservation; victims without another preemptor are spared."""
        self.chains[group.chain].unclaim(CANCEL, group)
        for victim in group.victims:
            self.undo.assign(victim, preempted_by={by: None for by in victim.preempted_by if by is not group})
            if not victim.preempted_by:
                self.transition(victim, GroupEvent.SPARE)
        pool = self.pool_of(group)
        if pool is not None:
            pool.release(group)
        else:
            self._end_loan(group)
        self.undo.assign(group, victims={})

    def _back_to_waiting(self, group: Group, why: tuple[Reason, ...]) -> None:
        self.transition(group, GroupEvent.OVERTAKE)
        self._drop(group)
        self.wait(group.request, why, group.since)
        self.undo.note((self.waiting.pop, group.name, None))
        self._restore_after(group)

    def wait(self, request: Request, reasons: tuple[Reason, ...], now: float) -> None:
        """Queue ``request`` with its reasons; a request that waits already keeps its place in line."""
        known = self.waiting.get(request.group)
        if known is None:
            self.undo.note((setattr, self, "sequence", self.sequence))
            self.sequence += 1
            known = self.waiting[request.group] = Waiting(request, reasons, self.sequence, now)
        else:
            known.request, known.reasons = request, reasons
        known.transition(GroupEvent.WAIT)

    # -- loans --------------------------------------------------------------------------------------------------------

    def lend(self, group: Group) -> None:
        """Register the loan of an opportunistic group that uses or has reserved its leaf cells."""
        self._loans_made += 1
        group.lent_at = self._loans_made
        self._lend(group)

    def _lend(self, group: Group) -> None:
        lent = self.opportunistic_gpus[group.tenant]
        for chain in group.chains:
            lent[chain] = lent.get(chain, 0) + group.gpus_in(chain)
        self.loans[group.tenant][group] = self.loans_changed[group.tenant] = None
        self.undo.note((self._end_loan, group))

    def _end_loan(self, group: Group) -> None:
        lent = self.opportunistic_gpus[group.tenant]
        for chain in group.chains:
            lent[chain] -= group.gpus_in(chain)
        del self.loans[group.tenant][group]
        self.loans_changed[group.tenant] = None
        self.undo.note((self._lend_again, group))

    def _lend_again(self, group: Group) -> None:
        """Undo :meth:`_end_loan`, keeping a tenant's loans in the order of their starts. O(its later loans)."""
        self._lend(group)
        loans = self.loans[group.tenant]
        later = list(takewhile(lambda other: other.lent_at > group.lent_at, islice(reversed(loans), 1, None)))
        for other in reversed(later):
            del loans[other]
            loans[other] = None

    # -- guests -------------------------------------------------------------------------------------------------------

    def guests_of(self, chain: int) -> Guests:
        """The guests of a chain, in a cluster whose VCs accept some."""
        guests = self.guests_on[chain]
        assert guests is not None
        return guests

    def hold(self, group: Group, loan: bool) -> bool:
        """Make a guest a loan on its own leaves, or a loan a guest there; ``False``: other groups are in the way."""
        guests = self.guests_of(group.chain)
        if loan and (not guests.alone(group) or guests.refused(group)):
            return False
        again = Group(group.request, group.tenant, group.since)
        again.chain, again.level, again.parts, again.guest = group.chain, group.level, group.parts, not loan
        self.vacate(group)
        self.replace(group, again)
        return True

    def evict(self, owner: Group) -> None:
        """Requeue the guests that the group which got their leaves does not accept."""
        guests = self.guests_on[owner.chain]
        if guests is not None and guests.held:
            for guest in guests.refused(owner):
                self.suspend(guest, (Suspended(guest.gpus, owner.name),))
                self.evicted.append(guest.name)
                self.undo.note((self._spare_guest, guest.name))

    # -- lazy preemption ----------------------------------------------------------------------------------------------

    def downgrade(self, group: Group, preemptor: Group | None = None) -> None:
        """Make a guaranteed group opportunistic where it runs, so that ``preemptor`` can use its VC's cells.

        None: its VC has fewer cells from now on.
        """
        nodes, undo = self.chains[group.chain], self.undo
        undo.note((nodes.refresh_use, group))  # as the last step back, when it is guaranteed again
        pool = self.pool_of(group)
        assert pool is not None
        pool.release(group)
        pool.unbind(group.spots)
        self.transition(group, GroupEvent.DOWNGRADE)
        undo.assign(group, pool=-1, priority=OPPORTUNISTIC, spots=(), downgraded_by=preemptor)
        if group.placement is not None:
            levels = group.placement.reserved_levels
            undo.assign(group, former_levels=levels, placement=replace(group.placement, reserved_levels=()))
        self.downgraded[group] = None
        undo.note((self.downgraded.pop, group))
        nodes.refresh_use(group)
        self.lend(group)

    def _unmark_downgraded(self, group: Group) -> None:
        if group in self.downgraded:
            del self.downgraded[group]
            self.undo.note((self.downgraded.setdefault, group))

    def _restore_after(self, preemptor: Group) -> None:
        """Restore the groups that were downgraded for a preemptor that never started, where possible.

        Only then: later, success would depend on the groups of other tenants, and a VC's answers must not.
        """
        if self.downgraded:
            of_it = [group for group in self.downgraded if group.downgraded_by is preemptor]
            for group in sorted(of_it, key=lambda group: group.lent_at):
                self.restore(group, group.former_levels)

    def restore(self, group: Group, levels: tuple[int, ...]) -> bool:
        """Make a downgraded group guaranteed again on its present leaf cells; whether that succeeded.

        ``levels``: of the reserved cells, one per pod; (): it was in none.
        """
        placement = group.placement
        if group.preempted_by or placement is None or not levels:
            return False
        found = self.readmitted(group.tenant, group.request, group.chain, group.parts, levels)
        if found is None:
            return False
        pool, pods = found
        nodes, undo = self.chains[group.chain], self.undo
        undo.note((nodes.refresh_use, group))  # as the last step back, when it is opportunistic again
        self._end_loan(group)
        self._unmark_downgraded(group)
        undo.assign(group, downgraded_by=None, pool=pool.number, priority=group.request.priority, spots=pods)
        undo.assign(group, placement=replace(placement, reserved_levels=levels))
        pool.allocate(group)
        nodes.refresh_use(group)
        self.transition(group, GroupEvent.RESTORE)
        return True

    def readmitted(
        self, tenant: int, request: Request, chain: int, parts: Sequence[Part], levels: Sequence[int]
    ) -> tuple[Pool, Spots] | None:
        """Bind virtual leaves of a VC to exactly these physical ones, in cells reserved at ``levels`` (one per pod).

        None, and nothing changed, where the VC has none or sharing safety would break. O(pods * levels).
        """
        for pool in self.pools[tenant]:
            if pool.nodes.number == chain and pool.pinned == request.pinned_cell_id:
                pods = pool.bind_at(parts, levels)
                if pods is not None:
                    return pool, pods
        return None

    # -- hardware -----------------------------------------------------------------------------------------------------

    def _spare_guest(self, name: str) -> None:
        """Undo the eviction of a guest, unless the caller was told of it (in a what-if)."""
        if name in self.evicted:
            self.evicted.remove(name)

    def set_bad(self, chain: int, node: int, mask: int) -> None:
        """Set the bad leaf cells of a node to ``mask``. Reservations that hold some of them end."""
        nodes = self.chains[chain]
        self.ever_bad = True
        if nodes.set_bad(node, mask):
            self.chain_bindings[chain].health_changed(node)
            for group in list(nodes.held.get(node, {})):
                if not group.running and any(
                    p.chain == chain and p.node == node and p.mask & mask for p in group.parts
                ):
                    self.lose_reservation(group, (LostReservation(None, nodes.names[node]),))

    # -- checks -------------------------------------------------------------------------------------------------------

    def safety(self) -> tuple[LevelSafety, ...]:
        """The present terms of equations 1 and 2, for every chain and level. O(levels)."""
        return tuple([row for nodes in self.chains for row in nodes.allocator.safety()])


def _weights(spec: ClusterSpec, sizes: Sequence[int]) -> list[int]:
    """The weight of each VC: its own, else the GPUs of its cells (``sizes``)."""
    return whole(
        [
            Fraction(sizes[tenant] if vc.opportunistic_weight is None else vc.opportunistic_weight)
            for tenant, vc in enumerate(spec.virtual_clusters)
        ]
    )
