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
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec, LevelSpec

from ..contract.specs import flat, racks

HOUR = 3600.0
NODE = Cells("NODE", 3)


def spec(**nodes: int) -> ClusterSpec:
    """Nodes of 4 GPUs, level 3."""
    return spec_from_dict(flat(nodes))


def market(of: ClusterSpec, arbiter: str = "balanced", used: dict[str, int] | None = None) -> Market:
    return Market(of, make_arbiter(arbiter), lambda tenant: {NODE.kind: (used or {}).get(tenant, 0)}, lambda spec: ())


def test_a_trade_moves_cells_for_a_while_and_gpu_hours_from_who_takes_to_who_gives() -> None:
    trading = market(spec(a=2, b=1, c=1))
    trading.board.offer(Offer("a", NODE._replace(number=2), 0, 10 * HOUR), 0)
    trading.board.request(Request("b", NODE, 0, 5 * HOUR), 0)
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


def test_a_trade_agreed_for_later_begins_then_and_is_called_off_and_paid_back_if_its_cells_are_in_use() -> None:
    used: dict[str, int] = {}
    for in_use in (1, 2):
        trading = market(spec(a=2, b=1), used=used)
        trading.board.offer(Offer("a", NODE, HOUR, 3 * HOUR), 0)
        trading.board.request(Request("b", NODE, HOUR, 3 * HOUR), 0)
        used["a"] = 2  # now; the trade is for later
        (trade,), _ = trading.match(0)
        assert not trading.trades.is_on(trade)
        assert trading.trades.in_force() == trading.trades.spec
        assert (trading.trades.next_start, trading.surplus) == (HOUR, {"a": 8, "b": -8})
        used["a"] = in_use
        due = trading.begin_due(HOUR)
        if in_use == 1:
            assert (due.begun, due.called_off) == ([trade], [])
            assert trading.trades.is_on(trade)
        else:
            assert due.called_off == [(trade, "a has 2 x NODE, 2 of them in use or bad, and would give 1")]
            assert (trading.trades.records(), trading.surplus) == ((), {"a": 0, "b": 0})


def test_a_market_goes_on_from_its_state() -> None:
    trading = market(spec(a=2, b=2))
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    trading.board.request(Request("b", NODE, 0, HOUR), 0)
    trading.match(0)
    trading.board.request(Request("b", NODE, 0, HOUR), 0)
    again = market(spec(a=2, b=2))
    again.restore(trading.state())
    assert again.state() == trading.state()
    assert again.trades.in_force() == trading.trades.in_force()
    again.board.offer(Offer("a", NODE, 0, HOUR), 0)
    (trade,), _ = again.match(0)
    assert trade.number == 2


def test_who_has_given_most_is_served_first_and_is_sorted_anew_after_each_match() -> None:
    """Algorithm 2 of the draft, by hand."""
    trading = market(spec(a=4, b=4, c=4, d=4))
    trading.surplus.update(a=10, b=6, c=0, d=-1)
    for tenant in "ab":
        for _ in range(2):
            trading.board.request(Request(tenant, NODE, 0, HOUR), 0)
    for tenant in "cd":
        trading.board.offer(Offer(tenant, NODE._replace(number=2), 0, HOUR), 0)
    made, _ = trading.match(0)
    # 4 GPU hours each: a has 6 after its first match, and comes first by its name; then b, then a again
    assert [(trade.taker, trade.giver) for trade in made] == [("a", "d"), ("a", "c"), ("b", "d"), ("b", "c")]
    assert trading.surplus == {"a": 2, "b": -2, "c": 8, "d": 7}


def test_an_auction_is_won_by_the_highest_bid_for_the_second_highest() -> None:
    trading = market(spec(a=2, b=1, c=1, d=1), "auction")
    trading.board.offer(Offer("a", NODE, 0, HOUR, price=1.0), 0)
    trading.board.offer(Offer("a", NODE, 0, HOUR, price=2.5), 0)
    for tenant, bid in (("b", 2.0), ("c", 5.0), ("d", 3.0)):
        trading.board.request(Request(tenant, NODE, 0, HOUR, bid=bid), 0)
    made, _ = trading.match(0)
    assert [(trade.taker, trade.price) for trade in made] == [("c", 3.0), ("d", 2.5)]
    assert trading.surplus == {"a": 4 * 3.0 + 4 * 2.5, "c": -12, "d": -10}


@pytest.mark.parametrize("arbiter", ["balanced", "auction"])
@given(st.integers(0, 1 << 40))
def test_equal_requests_posted_at_once_are_served_as_one_by_one(arbiter: str, seed: int) -> None:
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


def test_a_trade_of_unlike_levels_is_of_what_both_have_and_only_where_jobs_keep_their_cells() -> None:
    """A rack for the four sockets of another tenant, which has jobs on both nodes of the other rack, or not."""
    of = spec_from_dict(racks({"a": {"RACK": 1}, "b": {"RACK.NODE.SOCKET": 4}}, count=2))
    rack, sockets = Cells("RACK", 4), Cells("RACK", 2, 4)
    displaced: list[str] = []
    trading = Market(of, Balanced(), lambda tenant: {}, lambda spec: displaced)
    trading.board.offer(Offer("a", rack, 0, HOUR, wants=sockets), 0)
    for jobs in (["job"], []):
        displaced[:] = jobs
        trading.board.clear()
        trading.board.offer(Offer("a", rack, 0, HOUR, wants=sockets), 0)
        trading.board.request(Request("b", rack, 0, HOUR, gives=sockets), 0)
        made, refused = trading.match(0)
        assert len(made) == (not jobs)
        assert [one.why for one in refused] == ["jobs could not keep their cells where they run: job"] * bool(jobs)
    (trade,) = trading.trades.records()
    assert (trade.cells, trade.back, trade.gpu_hours) == (rack, sockets, 0)
    vcs = {vc.name: vc.cells for vc in trading.trades.in_force().virtual_clusters}
    assert [(c.level, c.number) for c in vcs["a"]] == [(2, 4)]
    assert [(c.level, c.number) for c in vcs["b"]] == [(4, 1)]


@given(st.integers(0, 1 << 40))
def test_what_a_tenant_has_and_owns_at_any_time_is_counted_trade_by_trade(seed: int) -> None:
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
        assert in_force == {tenant: trades.has(tenant, NODE.kind) for tenant in "abc"}
        own = {tenant: 4 - sum(t.cells.number for t in trades.records() if t.giver == tenant and t.at(at))
               for tenant in "abc"}  # fmt: skip
        assert own == {tenant: trades.least(tenant, NODE.kind, at, at + 1) for tenant in "abc"}


def test_an_offer_whose_cells_are_in_use_is_refused_and_withdrawn() -> None:
    trading = market(spec(a=2, b=1), used={"a": 2})
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    trading.board.request(Request("b", NODE, 0, HOUR), 0)
    made, refused = trading.match(0)
    assert (made, [one.why for one in refused]) == ([], ["a has 2 x NODE, 2 of them in use or bad, and would give 1"])
    assert (list(trading.board.offers), list(trading.board.requests)) == ([], [2])


def test_trades_end_with_a_reason_under_a_spec_in_which_they_cannot_stand() -> None:
    trading = market(spec(a=2, b=1))
    trading.board.offer(Offer("a", NODE._replace(number=2), 0, HOUR), 0)
    trading.board.request(Request("b", NODE._replace(number=2), 0, HOUR), 0)
    (trade,), _ = trading.match(0)
    assert trading.under(spec(a=3, b=1)).ended == []
    rebased = trading.under(spec(a=1, b=1))
    assert rebased.ended == [(trade, "a has 1 x NODE in that time, and would give 2")]
    assert trading.trades.records() == (trade,)
    trading.adopt(rebased, HOUR / 4)  # a quarter of it was paid
    assert (trading.trades.records(), trading.surplus) == ((), {"a": 2, "b": -2})
    assert trading.trades.in_force() == spec(a=1, b=1)


def test_trades_and_posts_are_of_the_same_cell_type_under_a_spec_with_another_level() -> None:
    """A level number may mean other cells there."""
    before = spec_from_dict(racks({"a": {"RACK.NODE": 2}, "b": {"RACK.NODE": 1}}, count=2))
    trading = market(before)
    node = Cells("RACK", 3)
    trading.board.offer(Offer("a", node, 0, HOUR), 0)
    trading.board.request(Request("b", node, 0, HOUR), 0)
    trading.match(0)
    trading.board.offer(Offer("a", node, 0, HOUR), 0)
    levels = before.chains[0].levels
    more = replace(before.chains[0], levels=(levels[0], LevelSpec("PAIR", 1, 1), *levels[1:]), node_level=4)
    vcs = tuple([
        replace(vc, cells=tuple([replace(cells, level=4) for cells in vc.cells])) for vc in before.virtual_clusters
    ])  # fmt: skip
    after = replace(before, chains=(more,), virtual_clusters=vcs)
    assert after.chains[0].path_to(4) == before.chains[0].path_to(3)
    rebased = trading.under(after)
    assert (rebased.ended, rebased.dropped) == ([], [])
    assert [trade.cells for trade in rebased.trades.records()] == [Cells("RACK", 4)]
    assert [offer.cells for offer in rebased.board.offers.values()] == [Cells("RACK", 4)]


def test_a_vc_of_exact_safety_trades_no_cells() -> None:
    trading = market(spec(a=2, b=1))
    trading.board.offer(Offer("a", NODE._replace(number=2), 0, HOUR), 0)
    trading.board.request(Request("b", NODE, 0, HOUR), 0)
    (trade,), _ = trading.match(0)
    before = spec(a=2, b=1)
    exact = replace(before, virtual_clusters=tuple([replace(vc, safety="exact") for vc in before.virtual_clusters]))
    rebased = trading.under(exact)
    assert rebased.ended == [(trade, "a is of exact safety, and so trades no cells")]
    assert "a is of exact safety" in rebased.dropped[0][2]
    with pytest.raises(HivedError, match="tenant: a is of exact safety: its jobs end as in a private cluster"):
        rebased.board.offer(Offer("a", NODE, 0, HOUR), 0)


def test_cell_types_are_named_as_in_a_spec_or_by_their_end() -> None:
    of = spec_from_dict(racks({"a": {"RACK.NODE": 2}}, count=2))
    assert kind_of(of, "RACK.NODE") == kind_of(of, "NODE") == ("RACK", 3)
    assert kind_of(of, "RACK") == ("RACK", 4)
    with pytest.raises(HivedError, match=r"cell_type: 'GPU8': no such cell type; there is .*RACK.NODE"):
        kind_of(of, "GPU8")


@pytest.mark.parametrize(
    ("post", "field", "says"),
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
        (
            Request("a", NODE._replace(number=2), 0, 1),
            "number",
            "no other tenant has 2 x NODE; the most that one has is 1",
        ),
        (
            Request("a", NODE, 0, 1, gives=Cells("NODE", 1)),
            "gives",
            "a has 0 x NODE.SOCKET.GPU in that time, and gives 1",
        ),
        (Request("a", NODE, 0, 1, bid=nan), "bid", "at least 0, not nan"),
        (Request("a", NODE, 0, 1, times=0), "times", "at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused_and_the_board_is_as_it_was(post: Offer | Request, field: str, says: str) -> None:
    board = market(spec(a=2, b=1)).board
    do = board.offer if isinstance(post, Offer) else board.request
    with pytest.raises(HivedError) as error:
        do(post, 0)  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{field}: ")
    assert says in str(error.value)
    assert (board.offers, board.requests, board.next_number) == ({}, {}, 1)


def test_cells_that_are_offered_or_traded_already_are_not_offered_again() -> None:
    trading = market(spec(a=2, b=2))
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    with pytest.raises(HivedError, match="2 of which it has offered already, and offers 1; offer at most 0"):
        trading.board.offer(Offer("a", NODE, 0.5 * HOUR, 2 * HOUR), 0)
    trading.board.offer(Offer("a", NODE, HOUR, 2 * HOUR), 0)
    trading.board.clear()
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    trading.board.request(Request("b", NODE, 0, HOUR), 0)
    trading.match(0)
    with pytest.raises(HivedError, match="a has 1 x NODE in that time, and offers 2"):
        trading.board.offer(Offer("a", NODE._replace(number=2), 0, HOUR), 0)
    # and b has what it took, and does not own it
    with pytest.raises(HivedError, match="b has 2 x NODE in that time, and offers 3"):
        trading.board.offer(Offer("b", NODE._replace(number=3), 0, HOUR), 0)


def test_a_post_is_withdrawn_by_its_tenant() -> None:
    board = market(spec(a=2, b=1)).board
    number = board.offer(Offer("a", NODE, 0, HOUR), 0)
    with pytest.raises(ConflictError, match="1 is of a, not of b"):
        board.withdraw(number, "b")
    board.withdraw(number, "a")
    with pytest.raises(NotFoundError, match="no offer or request 1"):
        board.withdraw(number, "a")


def test_posts_whose_window_is_over_are_removed() -> None:
    board = market(spec(a=2, b=1)).board
    board.offer(Offer("a", NODE, 0, 5), 0)
    board.offer(Offer("a", NODE, 0, 10), 0)
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
def test_a_wrong_proxy_is_one_clear_error_and_the_board_is_as_it_was(raises: bool, says: str) -> None:
    trading = market(spec(a=2, b=1))
    trading.board.offer(Offer("a", NODE, 0, HOUR), 0)
    before = dict(trading.board.offers)
    views = [TenantView(tenant, 0.0, NODE.kind, 4, 1, 1, 0, 0, 0, 0.0) for tenant in "ab"]
    with pytest.raises(PolicyError, match=f"policy Wrong, at 0.000 s: {says}"):
        trading.post({"b": Wrong(raises)}, views)
    assert trading.board.offers == before


def test_there_is_no_arbiter_of_another_name() -> None:
    assert isinstance(make_arbiter("auction"), SecondPrice)
    with pytest.raises(HivedError, match="exchange 'barter': no such arbiter; there is balanced, auction"):
        make_arbiter("barter")
