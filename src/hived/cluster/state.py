"""All that a cluster is at one moment, and the few steps that change it.

Deciding (:mod:`.guaranteed`, :mod:`.opportunistic`) only reads, or binds and unbinds again; a :class:`Plan` is what it
comes to. The steps here carry plans out: admit, bind, end, withdraw, downgrade, restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hived.cells import BuddyAllocator, Hierarchy, LevelSafety
from hived.errors import InvariantError, ensure
from hived.spec.compiled import ClusterSpec, PinnedCellSpec

from .allocation import Part
from .binding import Binder
from .decisions import Placement, PodPlacement
from .demands import Demand, Demands
from .dooming import see_bad
from .fairness import whole
from .feasibility import check_feasible, lowest_levels, reserved_cells
from .floor import Floor
from .groups import Group
from .physical import PhysicalChain
from .plans import Plan, Waiting
from .reasons import LostReservation, NeverFits, Reason
from .requests import OPPORTUNISTIC, Request
from .state_check import check_state
from .states import GroupEvent
from .tenancy import Pods, Tenancy
from .virtual import VirtualCluster, VirtualPool


class State:
    """The cluster under groups. Everything is re-derived by :meth:`validate`."""

    def __init__(self, spec: ClusterSpec) -> None:
        check_feasible(spec)
        self.spec = spec
        hierarchies = [Hierarchy(chain) for chain in spec.chains]
        #: per chain: its nodes, and its buddy allocator
        self.floors = [
            Floor(PhysicalChain(number, hierarchy), BuddyAllocator(hierarchy, lowest, of_level))
            for number, (hierarchy, lowest, of_level) in enumerate(
                zip(hierarchies, lowest_levels(spec), reserved_cells(spec), strict=True)
            )
        ]
        self.demands = Demands(spec, hierarchies)
        #: names of the tenants; those whose VC is no more, but whose groups run on, come last
        self.tenants = [vc.name for vc in spec.virtual_clusters]
        clusters = [VirtualCluster(vc.name, vc.cells, vc.pinned, hierarchies) for vc in spec.virtual_clusters]
        pinned = [
            [
                self._tenancy(tenant, len(cluster.pools) + i, number, pool, pin)
                for i, (pin, number, pool) in enumerate(cluster.pinned)
            ]
            for tenant, cluster in enumerate(clusters)
        ]  # pinned cells stand first: they take their physical cells before anything else can
        #: per tenant: its pools of cells, unpinned ones first
        self.tenancies: list[list[Tenancy]] = [
            [self._tenancy(tenant, i, number, pool, None) for i, (number, pool) in enumerate(cluster.pools)]
            + pinned[tenant]
            for tenant, cluster in enumerate(clusters)
        ]
        #: GPUs of each tenant's cells, pinned ones included
        self.sizes = [sum(tenancy.pool.gpus for tenancy in of_tenant) for of_tenant in self.tenancies]
        #: weight of each tenant among opportunistic groups, in proportion
        self.weights = whole(
            [
                Fraction(self.sizes[tenant] if vc.opportunistic_weight is None else vc.opportunistic_weight)
                for tenant, vc in enumerate(spec.virtual_clusters)
            ]
        )
        #: per chain and tenant: leaf cells that its opportunistic groups have or have reserved
        self.lent = [[0] * len(self.tenants) for _ in spec.chains]
        #: per tenant: its opportunistic groups, in the order in which they started
        self.borrowers: list[dict[Group, None]] = [{} for _ in self.tenants]
        #: groups that run or have reserved, by name, in the order in which they came
        self.groups: dict[str, Group] = {}
        #: groups that wait, by name, in the order in which they first asked
        self.waiting: dict[str, Waiting] = {}
        #: groups that run as opportunistic for the sake of another
        self.displaced: dict[Group, None] = {}
        #: why a demand (with its cap by name) would not fit even if all were free; None where it would
        self.fits_empty: dict[tuple[Demand, bool, str | None], NeverFits | None] = {}
        #: counts every change
        self.version = 0
        self.sequence = 0
        #: the plan whose virtual leaves are bound ahead of its commit
        self.ahead: Plan | None = None

    def _tenancy(self, tenant: int, number: int, chain: int, pool: VirtualPool, pin: PinnedCellSpec | None) -> Tenancy:
        floor = self.floors[chain]
        pinned_to, pinned_id = (-1, None) if pin is None else (pin.index, pin.pinned_cell_id)
        binder = Binder(pool, floor.allocator, pinned_to, floor.chain.bad, floor.owners)
        return Tenancy(tenant, number, pinned_id, floor, binder)

    def tenant(self, name: str) -> int:
        """The number of a tenant. One that the spec does not have has no cells and no weight."""
        if name not in self.tenants:
            self.tenants.append(name)
            self.tenancies.append([])
            self.sizes.append(0)
            self.weights.append(0)
            for lent in self.lent:
                lent.append(0)
            self.borrowers.append({})
        return self.tenants.index(name)

    def floors_of(self, group: Group) -> list[Floor]:
        """The chains that a group is in."""
        return [self.floors[chain] for chain in group.chains]

    # -- plans --------------------------------------------------------------------------------------------------------

    def step_back(self) -> None:
        """Undo what was bound ahead for a plan that nobody has committed."""
        plan = self.ahead
        if plan is not None:
            self.ahead = None
            plan.bound = False
            if plan.tenancy is not None:
                plan.tenancy.unbind(plan.pods)
                plan.tenancy.put_back(plan.inside)

    def admit(self, plan: Plan) -> Group:
        """Carry a plan of this version out: the group starts, or reserves what its victims still have."""
        request = plan.request
        self.version += 1
        self.sequence += 1
        group = Group(request, plan.demand.tenant, self.sequence, plan.now)
        if self.ahead is not plan:
            self.step_back()
        self.ahead = None
        for victim in plan.downgraded:
            self.downgrade(victim, group)
        tenancy = plan.tenancy
        if tenancy is not None and not plan.bound:
            parts = tenancy.bind(plan.pods, plan.standing, plan.spared)
            if parts != plan.parts:
                raise InvariantError(f"{request.group}: bound to {parts}, planned on {plan.parts}")
        group.chain = plan.chain
        group.level = self.level(plan)
        group.relaxed = plan.relaxed
        group.parts = plan.parts
        group.spots = plan.pods
        group.tenancy = -1 if tenancy is None else tenancy.number
        group.placement = self.placement(plan)
        for victim in plan.victims:
            group.victims[victim] = None
            victim.preempted_by[group] = None
            victim.happens(GroupEvent.CHOOSE)
        for other in plan.overtaken:  # its bindings stay until the group has taken its leaves
            self._cancel(other)
        floor = self.floors[plan.chain]
        if plan.victims:
            floor.reserve(group, group.parts)
            group.happens(GroupEvent.PREEMPT)
        else:
            floor.start(group, group.parts)
            group.happens(GroupEvent.BIND)
        if tenancy is not None:
            tenancy.take(group)
        else:
            self.lend(group)
        for other in plan.overtaken:
            if other.guaranteed:
                self.tenancies[other.tenant][other.tenancy].unbind(other.spots)
            self._back_to_waiting(other, (LostReservation(group.name, None),))
        self.waiting.pop(group.name, None)
        self.groups[group.name] = group
        return group

    def placement(self, plan: Plan) -> Placement:
        """A plan's physical leaves by name. O(pods) once."""
        if plan.placement is not None:
            return plan.placement
        floor = self.floors[plan.chain]
        names = floor.chain.hierarchy.spec.node_names
        pods = tuple([PodPlacement(names[node], floor.devices(node, mask)) for _, node, mask in plan.parts])
        levels: tuple[int, ...] = ()
        if plan.tenancy is not None:
            levels = plan.tenancy.reserved_levels(plan.pods)
        plan.placement = Placement(floor.chain.hierarchy.spec.name, pods, levels)
        return plan.placement

    def level(self, plan: Plan) -> int:
        """The lowest level at which one physical cell holds all pods of a plan, 0 for none. O(pods * levels)."""
        if len(plan.pods) > 1 and any(host != plan.pods[0][0] for host, _ in plan.pods):
            return self.common_level(plan.chain, plan.parts)  # cells apart in the VC may be close in the cluster
        return plan.level

    def common_level(self, chain: int, parts: Sequence[Part]) -> int:
        """The level of the lowest physical cell with all these leaves, 0 for none."""
        if any(part.chain != chain for part in parts):
            return 0
        hierarchy = self.floors[chain].chain.hierarchy
        leaves = [
            node * hierarchy.node_size + leaf
            for _, node, mask in parts
            for leaf in ((mask & -mask).bit_length() - 1, mask.bit_length() - 1)
        ]
        for level in range(1, hierarchy.top + 1 if leaves else 0):
            if len({leaf // hierarchy.gpus[level] for leaf in leaves}) == 1:
                return level
        return 0

    def bind(self, group: Group) -> None:
        """A preempting group whose victims are gone starts."""
        self.version += 1
        ensure(not group.victims, f"{group}: its victims are gone")
        group.happens(GroupEvent.BIND)
        self.floors[group.chain].bind(group)

    def end(self, group: Group) -> None:
        """``group`` runs no longer, or is withdrawn; what it has goes to who has reserved it."""
        self.version += 1
        if group.running:
            for floor in self.floors_of(group):
                floor.end(group)
            for preemptor in group.preempted_by:
                del preemptor.victims[group]
                if group.guaranteed and preemptor.rank != preemptor.current_rank():
                    self.tenancies[preemptor.tenant][preemptor.tenancy].give(preemptor)
                    self.tenancies[preemptor.tenant][preemptor.tenancy].take_again(preemptor)
            group.preempted_by.clear()
            self._leave(group)
        else:
            self._cancel(group)
        had_only_reserved = not group.running
        if group.guaranteed:
            self.tenancies[group.tenant][group.tenancy].unbind(group.spots)
        del self.groups[group.name]
        self.displaced.pop(group, None)
        group.happens(GroupEvent.END)
        if had_only_reserved:
            self._restore_after(group)

    def withdraw(self, group: Group, why: tuple[Reason, ...]) -> None:
        """A preempting group loses its reservation, and waits again."""
        self.version += 1
        self.give_up(group)
        self._back_to_waiting(group, why)

    def move(self, group: Group, plan: Plan) -> None:
        """A preempting group starts, or reserves, as ``plan`` has it, and not where it has reserved."""
        if self.ahead is not plan:
            self.step_back()
        made_room = [other for other in self.displaced if other.displaced_by is group]
        self.give_up(group)
        group.happens(GroupEvent.OVERTAKE)
        del self.groups[group.name]
        moved = self.admit(plan)
        for other in made_room:
            other.displaced_by = moved

    def give_up(self, group: Group) -> None:
        """The reservation ends, and its virtual leaves are unbound. The group is where it was in the list of groups."""
        self._cancel(group)
        if group.guaranteed:
            self.tenancies[group.tenant][group.tenancy].unbind(group.spots)

    def reserve_again(
        self, group: Group, wanted: Sequence[tuple[Group, Sequence[Group]]], borrowers: Sequence[Group]
    ) -> None:
        """Undo a :meth:`give_up` that was only tried out; its virtual leaves are bound as they were already.

        ``wanted``: its victims, and who wants each; ``borrowers``: its tenant's opportunistic groups.
        """
        for victim, preemptors in wanted:
            victim.happens(GroupEvent.CHOOSE)
            victim.preempted_by = dict.fromkeys(preemptors)
            group.victims[victim] = None
        if group.guaranteed:
            self.tenancies[group.tenant][group.tenancy].take_again(group)
        else:
            self.lend(group)
            self.borrowers[group.tenant] = dict.fromkeys(borrowers)
        self.floors[group.chain].reserve_again(group)

    def _cancel(self, group: Group) -> None:
        """The reservation ends; victims that nobody else wants are spared."""
        self.floors[group.chain].cancel(group)
        for victim in group.victims:
            del victim.preempted_by[group]
            if not victim.preempted_by:
                victim.happens(GroupEvent.SPARE)
        group.victims.clear()
        self._leave(group)

    def _leave(self, group: Group) -> None:
        if group.guaranteed:
            self.tenancies[group.tenant][group.tenancy].give(group)
        else:
            for chain in group.chains:
                self.lent[chain][group.tenant] -= group.gpus_in(chain)
            del self.borrowers[group.tenant][group]

    def _back_to_waiting(self, group: Group, why: tuple[Reason, ...]) -> None:
        group.happens(GroupEvent.OVERTAKE)
        del self.groups[group.name]
        self.wait(group.request, why, group.since)
        self._restore_after(group)

    def wait(self, request: Request, reasons: tuple[Reason, ...], now: float) -> None:
        """Remember that ``request`` waits, and why; it keeps its place in line."""
        known = self.waiting.get(request.group)
        if known is None:
            self.sequence += 1
            known = self.waiting[request.group] = Waiting(request, reasons, self.sequence, now)
        else:
            known.request, known.reasons = request, reasons
        known.happens(GroupEvent.WAIT)

    def lend(self, group: Group) -> None:
        """``group`` has (or is to have) its leaf cells as an opportunistic one."""
        for chain in group.chains:
            self.lent[chain][group.tenant] += group.gpus_in(chain)
        self.borrowers[group.tenant][group] = None

    # -- lazy preemption ----------------------------------------------------------------------------------------------

    def downgrade(self, group: Group, sake: Group | None) -> None:
        """A guaranteed group runs on as an opportunistic one, so that its VC can have its cells back."""
        tenancy = self.tenancies[group.tenant][group.tenancy]
        tenancy.give(group)
        tenancy.unbind(group.spots)
        group.happens(GroupEvent.DOWNGRADE)
        group.tenancy, group.priority, group.spots = -1, OPPORTUNISTIC, ()
        group.displaced_by = sake
        if group.placement is not None:
            group.former_levels = group.placement.reserved_levels
            group.placement = replace(group.placement, reserved_levels=())
        self.displaced[group] = None
        self.floors[group.chain].changed_kind(group)
        self.lend(group)

    def _restore_after(self, gone: Group) -> None:
        """Groups that were downgraded for one that never started are guaranteed again, where they can be.

        Only then: later on, whether they can be depends on what other tenants run, and a VC's answers must not.
        """
        for group in [group for group in self.displaced if group.displaced_by is gone]:
            self.restore(group)

    def restore(self, group: Group) -> bool:
        """Make a downgraded group guaranteed again, on the very leaf cells it has; whether that could be."""
        placement = group.placement
        levels = group.former_levels
        if group.preempted_by or placement is None or not levels:
            return False
        found = self.readmitted(group.tenant, group.request, group.chain, group.parts, levels)
        if found is None:
            return False
        tenancy, pods = found
        self.version += 1
        self.lent[group.chain][group.tenant] -= group.gpus
        del self.borrowers[group.tenant][group]
        del self.displaced[group]
        group.displaced_by = None
        group.tenancy, group.priority, group.spots = tenancy.number, group.request.priority, pods
        group.placement = replace(placement, reserved_levels=levels)
        tenancy.take(group)
        self.floors[group.chain].changed_kind(group)
        group.happens(GroupEvent.RESTORE)
        return True

    def readmitted(
        self, tenant: int, request: Request, chain: int, parts: Sequence[Part], levels: Sequence[int]
    ) -> tuple[Tenancy, Pods] | None:
        """Virtual leaves of a VC bound to these very physical ones, in cells reserved at ``levels`` (one per pod).

        None where there are none, or sharing safety would not survive; nothing has changed then. O(pods * levels).
        """
        for tenancy in self.tenancies[tenant]:
            if tenancy.floor.number == chain and tenancy.pinned == request.pinned_cell_id:
                pods = tenancy.stand_at(parts, levels)
                if pods is not None:
                    return tenancy, pods
        return None

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_bad(self, chain: int, node: int, mask: int) -> None:
        """The bad leaf cells of a node are ``mask`` now. Reservations that hold bad ones end."""
        floor = self.floors[chain]
        if floor.set_bad(node, mask):
            self.version += 1
            for group in list(floor.holders.get(node, {})):
                if not group.running and any(
                    p.chain == chain and p.node == node and p.mask & mask for p in group.parts
                ):
                    self.withdraw(group, (LostReservation(None, floor.chain.hierarchy.spec.node_names[node]),))

    # -- checks -------------------------------------------------------------------------------------------------------

    def safety(self) -> tuple[LevelSafety, ...]:
        """Equations 1 and 2 as they stand now, for every chain and level. O(levels)."""
        return tuple([row for floor in self.floors for row in floor.allocator.safety()])

    def validate(self) -> None:
        """Re-derive everything from the groups: who has what, every index, every binding, every state. O(cluster)."""
        self.step_back()
        see_bad(self)
        check_state(self)
