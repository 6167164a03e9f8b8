"""The board, the arbiters and the market, by hand and by an independent reader; and everything that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import ConflictError, HivedError, NotFoundError, PolicyError
from hived.exchange import (
    Balanced,
    Board,
    Cells,
    Market,
    Offer,
    Proxy,
    Request,
    SecondPrice,
    TenantView,
    Trade,
    Trades,
    kind_of,
    make_arbiter,
)
from hived.exchange.market import Strands
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec, LevelSpec

from ..contract.specs import flat, racks

HOUR = 3600.0
NODE = Cells("NODE", 3)


def spec(**nodes: int) -> ClusterSpec:
    """Nodes of 4 GPUs, level 3."""
    return spec_from_dict(flat(nodes))


def nobody(tenant: str, spec: ClusterSpec) -> Sequence[str]:
    return ()


def market(
    of: ClusterSpec, arbiter: str = "balanced", used: dict[str, int] | None = None, strands: Strands = nobody
) -> Market:
    return Market(
        of, make_arbiter(arbiter), lambda tenant: {NODE.kind: (used or {}).get(tenant, 0)}, lambda spec: (), strands
    )


def post(trading: Market, *posts: Offer | Request) -> Market:
    """Tenants post these at time 0, one after another."""
    for one in posts:
        if isinstance(one, Offer):
            trading.board.offer(one, 0)
        else:
            trading.board.request(one, 0)
    return trading


#: b asks for a node for an hour, and a offers one
ASKS, OFFERS = Request("b", NODE, 0, HOUR), Offer("a", NODE, 0, HOUR)
BOTH, GPU = NODE._replace(number=2), Cells("NODE", 1)


def test_next_change_of_the_board() -> None:
    """A window that opens, and one that is over; the last one never."""
    board = post(market(spec(a=1, b=1)), Offer("a", NODE, 5, 9), Request("b", NODE, 0, 7)).board
    assert [board.next_change(now) for now in (0, 5, 6)] == [5, 7, 7]
    board.expire(7)
    assert board.next_change(7) == 9
    board.expire(9)
    assert board.next_change(9) == inf


# -- trades -------------------------------------------------------------------------------------------------------


def test_trade_moves_cells_for_a_while() -> None:
    """And GPU hours from the taker to the giver."""
    trading = post(market(spec(a=2, b=1, c=1)), Offer("a", BOTH, 0, 10 * HOUR), Request("b", NODE, 0, 5 * HOUR))
    (trade,), refused = trading.match(0)
    assert (trade.giver, trade.taker, trade.cells, trade.gpu_hours, refused) == ("a", "b", NODE, 20, [])
    assert trading.surplus == {"a": 20, "b": -20}
    # what is left of the offer stays on the board
    assert [offer.cells.number for offer in trading.board.offers.values()] == [1]

    def cells(at: float) -> list[int]:
        trading.expire(at)
        return [sum(c.number for c in vc.cells) for vc in trading.trades.in_force().virtual_clusters]

    assert (cells(0), trading.trades.next_end) == ([1, 2, 1], 5 * HOUR)
    assert cells(5 * HOUR - 1) == [1, 2, 1]
    assert (cells(5 * HOUR), trading.trades.next_end) == ([2, 1, 1], inf)


@pytest.mark.parametrize("in_use", [1, 2])
def test_trade_for_later_begins_then(in_use: int) -> None:
    """It is called off and paid back if its cells are in use."""
    used: dict[str, int] = {}
    trading = market(spec(a=2, b=1), used=used)
    post(trading, Offer("a", NODE, HOUR, 3 * HOUR), Request("b", NODE, HOUR, 3 * HOUR))
    used["a"] = 2  # now; the trade is for later
    (trade,), _ = trading.match(0)
    assert not trading.trades.is_on(trade)
    assert trading.trades.in_force() == trading.trades.spec
    assert (trading.trades.next_start, trading.surplus) == (HOUR, {"a": 8, "b": -8})
    assert trading.under(spec(a=3, b=1)).trades.records() == (trade,)
    used["a"] = in_use
    due = trading.begin_due(HOUR)
    if in_use == 1:
        assert (due.begun, due.called_off) == ([trade], [])
        assert trading.trades.is_on(trade)
    else:
        assert due.called_off == [(trade, "a has 2 x NODE of its own, 2 in use or bad, and would give 1")]
        assert (trading.trades.records(), trading.surplus) == ((), {"a": 0, "b": 0})


def test_market_goes_on_from_its_state() -> None:
    trading = post(market(spec(a=2, b=2)), OFFERS, ASKS)
    trading.match(0)
    post(trading, ASKS)
    again = market(spec(a=2, b=2))
    again.restore(trading.state())
    assert again.state() == trading.state()
    assert again.trades.in_force() == trading.trades.in_force()
    (trade,), _ = post(again, OFFERS).match(0)
    assert trade.number == 2


def test_who_has_given_most_is_served_first() -> None:
    """Algorithm 2 of the draft, by hand: sorted anew after each match."""
    trading = market(spec(a=4, b=4, c=4, d=4))
    trading.surplus.update(a=10, b=6, c=0, d=-1)
    post(trading, *(Request(tenant, NODE, 0, HOUR) for tenant in "aabb"))
    post(trading, *(Offer(tenant, BOTH, 0, HOUR) for tenant in "cd"))
    made, _ = trading.match(0)
    # 4 GPU hours each: a has 6 after its first match, and comes first by its name; then b, then a again
    assert [(trade.taker, trade.giver) for trade in made] == [("a", "d"), ("a", "c"), ("b", "d"), ("b", "c")]
    assert trading.surplus == {"a": 2, "b": -2, "c": 8, "d": 7}


def test_auction_is_won_for_the_second_highest_bid() -> None:
    trading = post(
        market(spec(a=2, b=1, c=1, d=1), "auction"), *(Offer("a", NODE, 0, HOUR, price=p) for p in (1.0, 2.5))
    )
    post(trading, *(Request(tenant, NODE, 0, HOUR, bid=bid) for tenant, bid in (("b", 2.0), ("c", 5.0), ("d", 3.0))))
    made, _ = trading.match(0)
    assert [(trade.taker, trade.price) for trade in made] == [("c", 3.0), ("d", 2.5)]
    assert trading.surplus == {"a": 4 * 3.0 + 4 * 2.5, "c": -12, "d": -10}


@pytest.mark.parametrize("arbiter", ["balanced", "auction"])
@given(st.integers(0, 1 << 40))
def test_requests_at_once_are_as_one_by_one(arbiter: str, seed: int) -> None:
    rng = Random(seed)
    at_once, one_by_one = (market(spec(a=3, b=3, c=3), arbiter) for _ in range(2))
    for _ in range(rng.randint(1, 8)):
        tenant, number, credit = rng.choice("abc"), rng.randint(1, 4), rng.choice([0.5, 1.0, 2.0])
        if rng.random() < 0.5:
            with suppress(HivedError):
                for of in (at_once, one_by_one):
                    of.board.offer(Offer(tenant, NODE._replace(number=number), 0, HOUR, price=credit), 0)
        else:
            request = Request(tenant, NODE, 0, HOUR, bid=credit)
            at_once.board.request(replace(request, times=number), 0)
            for _ in range(number):
                one_by_one.board.request(request, 0)
    (made, _), (others, _) = at_once.match(0), one_by_one.match(0)
    assert made == others
    assert at_once.surplus == one_by_one.surplus


@given(st.integers(0, 1 << 40))
def test_every_match_is_that_of_algorithm_2(seed: int) -> None:
    """Read anew from the draft, against any board."""
    rng = Random(seed)
    board = Board(Trades(spec(a=3, b=3, c=3, d=3)))
    for _ in range(rng.randint(0, 12)):
        start = rng.choice([0.0, 5.0])
        post = (rng.choice("abcd"), NODE._replace(number=rng.randint(1, 2)), start, start + rng.choice([5.0, 10.0]))
        with suppress(HivedError):
            board.offer(Offer(*post), 0) if rng.random() < 0.5 else board.request(Request(*post), 0)
    surplus = {tenant: rng.choice([-5.0, 0.0, 7.0]) for tenant in "abcd"}
    expected: list[tuple[int, int]] = []
    for tenant in sorted("abcd", key=lambda name: (-surplus[name], name)):
        for number, request in board.requests.items():
            if request.tenant != tenant or expected:
                continue
            fits = [
                (surplus[offer.tenant], at)
                for at, offer in board.offers.items()
                if offer.tenant != tenant and offer.cells.number >= request.cells.number
                if offer.start <= request.start and request.end <= offer.end
            ]
            if fits:
                expected.append((number, min(fits)[1]))
    match = Balanced().match(board, surplus)
    assert ([] if match is None else [(match.request, match.offer)]) == expected


def test_trade_of_unlike_levels() -> None:
    """A rack for the four sockets of another tenant, which has jobs on both nodes of the other rack, or not."""
    of = spec_from_dict(racks({"a": {"RACK": 1}, "b": {"RACK.NODE.SOCKET": 4}}, count=2))
    rack, sockets = Cells("RACK", 4), Cells("RACK", 2, 4)
    displaced: list[str] = []
    trading = Market(of, Balanced(), lambda tenant: {}, lambda spec: displaced, nobody)
    for jobs in (["job"], []):
        displaced[:] = jobs
        trading.board.clear()
        post(trading, Offer("a", rack, 0, HOUR, wants=sockets), Request("b", rack, 0, HOUR, gives=sockets))
        made, refused = trading.match(0)
        assert len(made) == (not jobs)
        assert [one.why for one in refused] == ["jobs could not keep their cells where they run: job"] * bool(jobs)
    (trade,) = trading.trades.records()
    assert (trade.cells, trade.back, trade.gpu_hours) == (rack, sockets, 0)
    vcs = {vc.name: vc.cells for vc in trading.trades.in_force().virtual_clusters}
    assert [(c.level, c.number) for c in vcs["a"]] == [(2, 4)]
    assert [(c.level, c.number) for c in vcs["b"]] == [(4, 1)]


@given(st.integers(0, 1 << 40))
def test_what_a_tenant_has_and_owns_at_any_time(seed: int) -> None:
    rng = Random(seed)
    trades = Trades(spec(a=4, b=4, c=4))
    for number in range(12):
        giver, taker = rng.sample("abc", 2)
        start = float(rng.randint(0, 8))
        trade = Trade(
            number, giver, taker, NODE._replace(number=rng.randint(1, 3)), start, start + rng.randint(1, 6), 0
        )
        given = [sum(t.cells.number for t in (*trades.records(), trade) if t.giver == giver and t.at(at))
                 for at in range(int(start), int(trade.end))]  # fmt: skip
        with suppress(ConflictError):
            trades.add(trade)
        assert (trade in trades.records()) == (max(given) <= 4)
        if rng.random() < 0.2 and trades.records():
            trades.cancel(rng.choice(trades.records()).number)
    for at in range(15):
        trades.expire(at)
        for due in trades.due(at):
            trades.begin(due.number)
        in_force = {vc.name: sum(c.number for c in vc.cells) for vc in trades.in_force().virtual_clusters}
        on = [trade for trade in trades.records() if trade.at(at)]
        assert in_force == {
            tenant: 4
            + sum(trade.cells.number for trade in on if trade.taker == tenant)
            - sum(trade.cells.number for trade in on if trade.giver == tenant)
            for tenant in "abc"
        }
        own = {tenant: 4 - sum(t.cells.number for t in trades.records() if t.giver == tenant and t.at(at))
               for tenant in "abc"}  # fmt: skip
        assert own == {tenant: trades.least(tenant, NODE.kind, at, at + 1) for tenant in "abc"}
        assert own == {tenant: trades.left(tenant, NODE.kind) for tenant in "abc"}


def test_offer_of_cells_in_use_is_withdrawn() -> None:
    trading = post(market(spec(a=2, b=1), used={"a": 2}), OFFERS, ASKS)
    made, refused = trading.match(0)
    assert (made, [one.why for one in refused]) == (
        [],
        ["a has 2 x NODE of its own, 2 in use or bad, and would give 1"],
    )
    assert (list(trading.board.offers), list(trading.board.requests)) == ([], [2])


# -- jobs that lack what was given --------------------------------------------------------------------------------


def lacking(tenant: str, needs: dict[str, int]) -> Strands:
    """A job of a tenant waits that needs so many nodes."""

    def strands(of: str, spec: ClusterSpec) -> Sequence[str]:
        has = sum(cells.number for vc in spec.virtual_clusters if vc.name == of for cells in vc.cells)
        return ["job"] if of == tenant and has < needs.get(of, 0) else []

    return strands


@pytest.mark.parametrize(("needs", "ended"), [(1, []), (2, [2]), (3, [1]), (4, [2, 1])])
def test_trades_end_as_their_giver_needs(needs: int, ended: list[int]) -> None:
    """Those that help alone, the latest first; each is paid for as long as it lasted."""
    wanted: dict[str, int] = {}
    trading = market(spec(a=4, b=1), strands=lacking("a", wanted))
    for number in (2, 1):
        cells = NODE._replace(number=number)
        post(trading, Offer("a", cells, 0, 4 * HOUR), Request("b", cells, 0, 4 * HOUR)).match(0)
    wanted["a"] = needs
    told = trading.recall("a", HOUR)
    assert [trade.number for trade, _ in told] == ended
    assert {why for _, why in told} <= {"job of a would not fit without them"}
    assert trading.recall("a", HOUR) == []
    left = sum(trade.gpu_hours for trade in trading.trades.records())
    assert trading.surplus["a"] == left + sum(trade.gpu_hours / 4 for trade, _ in told)


def test_cells_that_a_job_needs_are_not_given() -> None:
    """Neither now nor, where it has come meanwhile, later."""
    wanted: dict[str, int] = {}
    trading = market(spec(a=2, b=1), strands=lacking("a", wanted))
    post(trading, Offer("a", NODE, HOUR, 2 * HOUR), Request("b", NODE, HOUR, 2 * HOUR)).match(0)
    wanted["a"] = 2
    why = "job would not fit without 1 x NODE of a"
    assert [said for _, said in trading.begin_due(HOUR).called_off] == [why]
    _, refused = post(trading, replace(OFFERS, end=9 * HOUR), replace(ASKS, end=9 * HOUR)).match(0)
    assert [one.why for one in refused] == [why]


# -- other specs --------------------------------------------------------------------------------------------------


def test_trade_ends_with_a_reason_under_another_spec() -> None:
    trading = post(market(spec(a=2, b=1)), Offer("a", BOTH, 0, HOUR), Request("b", BOTH, 0, HOUR))
    (trade,), _ = trading.match(0)
    assert trading.under(spec(a=3, b=1)).ended == []
    rebased = trading.under(spec(a=1, b=1))
    assert rebased.ended == [(trade, "a has 1 x NODE in that time, and would give 2")]
    assert trading.trades.records() == (trade,)
    trading.adopt(rebased, HOUR / 4)  # a quarter of it was paid
    assert (trading.trades.records(), trading.surplus) == ((), {"a": 2, "b": -2})
    assert trading.trades.in_force() == spec(a=1, b=1)


def test_cell_type_stays_under_another_level() -> None:
    """A level number may mean other cells there."""
    before = spec_from_dict(racks({"a": {"RACK.NODE": 2}, "b": {"RACK.NODE": 1}}, count=2))
    node = Cells("RACK", 3)
    offer = Offer("a", node, 0, HOUR)
    trading = post(market(before), offer, Request("b", node, 0, HOUR))
    trading.match(0)
    post(trading, offer, Request("b", node, 0, HOUR))
    levels = before.chains[0].levels
    more = replace(before.chains[0], levels=(levels[0], LevelSpec("PAIR", 1, 1), *levels[1:]), node_level=4)
    vcs = tuple(
        [replace(vc, cells=tuple([replace(cells, level=4) for cells in vc.cells])) for vc in before.virtual_clusters]
    )
    after = replace(before, chains=(more,), virtual_clusters=vcs)
    assert after.chains[0].path_to(4) == before.chains[0].path_to(3)
    rebased = trading.under(after)
    assert (rebased.ended, rebased.dropped) == ([], [])
    assert [trade.cells for trade in rebased.trades.records()] == [Cells("RACK", 4)]
    assert [offer.cells for offer in rebased.board.offers.values()] == [Cells("RACK", 4)]
    assert [request.cells for request in rebased.board.requests.values()] == [Cells("RACK", 4)]
    new = tuple([replace(level, cell_type=f"NEW-{level.cell_type}") for level in levels])
    (ended,) = trading.under(replace(before, chains=(replace(before.chains[0], levels=new),))).ended
    assert ended[1] == "there is no RACK.NODE any more"


def test_vc_of_exact_safety_trades_no_cells() -> None:
    before = spec(a=2, b=1)
    trading = post(market(before), Offer("a", BOTH, 0, HOUR), ASKS)
    (trade,), _ = trading.match(0)
    exact = replace(before, virtual_clusters=tuple([replace(vc, safety="exact") for vc in before.virtual_clusters]))
    rebased = trading.under(exact)
    assert rebased.ended == [(trade, "a is of exact safety, and so trades no cells")]
    assert "a is of exact safety" in rebased.dropped[0][2]
    with pytest.raises(HivedError, match="tenant: a is of exact safety: its jobs end as in a private cluster"):
        rebased.board.offer(OFFERS, 0)


# -- the board ----------------------------------------------------------------------------------------------------


def test_cell_type_is_named_in_full_or_by_its_end() -> None:
    of = spec_from_dict(racks({"a": {"RACK.NODE": 2}}, count=2))
    assert kind_of(of, "RACK.NODE") == kind_of(of, "NODE") == ("RACK", 3)
    assert kind_of(of, "RACK") == ("RACK", 4)
    with pytest.raises(HivedError, match=r"cell_type: 'GPU8': no such cell type; there is .*RACK.NODE"):
        kind_of(of, "GPU8")


@pytest.mark.parametrize(
    ("refused", "field", "says"),
    [
        (Offer("a", NODE._replace(number=3), 0, 1), "number", "a has 2 x NODE in that time"),
        (Offer("x", NODE, 0, 1), "tenant", "'x': no such virtual cluster; there is a, b"),
        (Offer("a", Cells("RACK", 3), 0, 1), "cells.chain", "'RACK': no such chain; there is NODE"),
        (Offer("a", Cells("NODE", 9), 0, 1), "cells.level", "9: chain NODE has levels 1 to 3"),
        (Offer("a", Cells("NODE", 3, 0), 0, 1), "cells.number", "at least 1, not 0"),
        (Offer("a", NODE, -5, 1), "start", "-5 is over (0 now)"),
        (Offer("a", NODE, 5, 5), "end", "the window ends where it starts (5), or before"),
        (Offer("a", NODE, 5, 2), "end", "the window ends where it starts (5), or before"),
        (Offer("a", NODE, nan, 2), "start", "seconds, not nan"),
        (Offer("a", NODE, 0, inf), "end", "seconds, not inf"),
        (Offer("a", NODE, 0, 1, wants=NODE), "wants", "these are the same"),
        (Offer("a", NODE, 0, 1, price=-1), "price", "at least 0, not -1"),
        (Request("a", BOTH, 0, 1), "number", "no other tenant has 2 x NODE; the most that one has is 1"),
        (Request("a", NODE, 0, 1, gives=GPU), "gives", "a has 0 x NODE.SOCKET.GPU in that time, and gives 1"),
        (Request("a", NODE, 0, 1, bid=nan), "bid", "at least 0, not nan"),
        (Request("a", NODE, 0, 1, times=0), "times", "at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused(refused: Offer | Request, field: str, says: str) -> None:
    """The board is as it was."""
    trading = market(spec(a=2, b=1))
    with pytest.raises(HivedError) as error:
        post(trading, refused)
    assert str(error.value).startswith(f"{field}: ")
    assert says in str(error.value)
    board = trading.board
    assert (board.offers, board.requests, board.next_number) == ({}, {}, 1)


def test_cells_offered_or_traded_are_not_offered_again() -> None:
    trading = post(market(spec(a=2, b=2)), OFFERS, OFFERS)
    with pytest.raises(HivedError, match="2 of which it has offered already, and offers 1; offer at most 0"):
        post(trading, Offer("a", NODE, 0.5 * HOUR, 2 * HOUR))
    post(trading, Offer("a", NODE, HOUR, 2 * HOUR))
    trading.board.clear()
    post(trading, Offer("a", BOTH, HOUR, 2 * HOUR), Offer("a", BOTH, 0, HOUR))
    trading.board.clear()
    post(trading, OFFERS, ASKS).match(0)
    with pytest.raises(HivedError, match="a has 1 x NODE in that time, and offers 2"):
        post(trading, Offer("a", BOTH, 0, HOUR))
    # and b has what it took, and does not own it
    with pytest.raises(HivedError, match="b has 2 x NODE in that time, and offers 3"):
        post(trading, Offer("b", NODE._replace(number=3), 0, HOUR))


def test_post_is_withdrawn_by_its_tenant() -> None:
    board = market(spec(a=2, b=1)).board
    number = board.offer(OFFERS, 0)
    with pytest.raises(ConflictError, match="1 is of a, not of b"):
        board.withdraw(number, "b")
    board.withdraw(number, "a")
    with pytest.raises(NotFoundError, match="no offer or request 1"):
        board.withdraw(number, "a")


def test_post_is_removed_when_its_window_is_over() -> None:
    board = post(market(spec(a=2, b=1)), Offer("a", NODE, 0, 5), Offer("a", NODE, 0, 10)).board
    board.expire(5)
    assert [(offer.start, offer.end) for offer in board.offers.values()] == [(5, 10)]


class Wrong(Proxy):
    """Raises, or posts what its tenant has not got."""

    def __init__(self, raises: bool) -> None:
        self._raises = raises

    def offers(self, view: TenantView) -> Sequence[Offer]:
        if self._raises:
            raise KeyError("no idea")
        return [Offer(view.tenant, NODE, view.now, view.now + 1)] * 3

    def requests(self, view: TenantView) -> Sequence[Request]:
        return []


@pytest.mark.parametrize(
    ("raises", "says"), [(True, "of b: raises KeyError: 'no idea'"), (False, "of b: number: b has 1")]
)
def test_wrong_proxy_is_one_clear_error(raises: bool, says: str) -> None:
    """The board is as it was."""
    trading = post(market(spec(a=2, b=1)), OFFERS)
    before = dict(trading.board.offers)
    views = [TenantView(tenant, 0.0, NODE.kind, 4, 1, 1, 0, 0, 0, 0.0) for tenant in "ab"]
    with pytest.raises(PolicyError, match=f"policy Wrong, at 0.000 s: {says}"):
        trading.post({"b": Wrong(raises)}, views)
    assert trading.board.offers == before


def test_no_arbiter_of_another_name() -> None:
    assert isinstance(make_arbiter("auction"), SecondPrice)
    with pytest.raises(HivedError, match="exchange 'barter': no such arbiter; there is balanced, auction"):
        make_arbiter("barter")
