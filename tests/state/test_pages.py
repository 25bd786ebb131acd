"""The page ledger: every change that it refuses, and reference counts."""

from __future__ import annotations

import pytest

from txdecode.state.changes import Admit, Advance, Close, Evict
from txdecode.state.errors import LedgerCorrupt


def advance(request, consumed, adopted):
    return Advance(request, consumed, (5,) * consumed, adopted, (), (), True)


def end(request, released, adopted=()):
    return Advance(request, 1, (5,), adopted, (), (), True, True, released)


# Request 0 has 4 rows in kv (0,) and pairs (0, 1); request 1 is not resident; request 3 has 2 rows.
REFUSED = {
    "advance without residence": (advance(1, 1, ((2,), (6,))), "request 1"),
    "end without residence": (end(1, ((), ())), "request 1"),
    "evict without residence": (Evict(1, ((), ())), "request 1"),
    "admit twice": (Admit(0, (), ()), "request 0"),
    "pages for too few groups": (advance(0, 1, ((2,),)), "request 0 groups"),
    "pages for too many groups": (advance(0, 1, ((2,), (), ())), "request 0 groups"),
    "a page too few": (advance(0, 1, ((), ())), "request 0 group 'kv' pages"),
    "a page too many": (advance(0, 1, ((2,), (7,))), "request 0 group 'pairs' pages"),
    "a page beyond the pool": (advance(0, 1, ((10,), ())), "group 'kv' page 10"),
    "a page before the pool": (advance(0, 1, ((-1,), ())), "group 'kv' page -1"),
    "a page of another": (advance(0, 1, ((1,), ())), "group 'kv' page 1"),
    "its own page again": (advance(0, 1, ((0,), ())), "group 'kv' page 0"),
    "a page twice at once": (advance(0, 6, ((2, 2), (7, 8))), "group 'kv' page 2"),
    "adopts at its end": (end(0, ((0,), (0, 1)), ((2,), ())), "request 0 adopted at its end"),
    "releases before its end": (
        Advance(0, 1, (5,), ((2,), ()), (), (), True, False, ((0,), ())),
        "request 0 released before its end",
    ),
    "releases a page too few": (end(0, ((0,), (0,))), "request 0 released"),
    "releases in another order": (Evict(0, ((0,), (1, 0))), "request 0 released"),
    "releases another's page": (Close(0, ((1,), (0, 1))), "request 0 released"),
    "releases nothing of something": (Close(0, ()), "request 0 released"),
    "releases without residence": (Close(1, ((0,), ())), "request 1 released"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place_and_change_nothing(kit, name):
    change, field = REFUSED[name]
    ledgers = kit.base()
    before = kit.contents(ledgers)
    with pytest.raises(LedgerCorrupt) as error:
        ledgers.pages.delta(change)
    assert (error.value.ledger, error.value.field) == ("pages", field)
    assert kit.contents(ledgers) == before


def test_a_wrong_number_of_pages_says_both(kit):
    # 7 rows take two pages of 4 and three of 3; the request has one and two.
    kit.base().pages.delta(advance(0, 3, ((2,), (7,))))
    for adopted, group, expected, found in (
        (((), (7,)), "kv", 2, 1),
        (((2, 3), (7,)), "kv", 2, 3),
        (((2,), ()), "pairs", 3, 2),
        (((2,), (7, 8)), "pairs", 3, 4),
    ):
        with pytest.raises(LedgerCorrupt, match=f"group '{group}' pages") as error:
            kit.base().pages.delta(advance(0, 3, adopted))
        assert (error.value.expected, error.value.found) == (expected, found)


def test_close_without_residence_may_say_so_by_empty_groups(kit):
    pages = kit.base().pages
    assert pages.delta(Close(1, ())) == pages.delta(Close(1, ((), ()))) == 0


def test_a_block_may_take_several_pages_in_any_order(kit):
    ledgers = kit.base()
    ledgers.pages.delta(advance(0, 6, ((9, 2), (11, 6))))
    ledgers.pages.apply(advance(0, 6, ((9, 2), (11, 6))))
    assert ledgers.pages.tables[0] == ((0, 9, 2), (0, 1, 11, 6))
    assert ledgers.pages.lengths[0] == 10
    ledgers.pages.check()


@pytest.mark.parametrize(("length", "kv", "pairs"), [(0, 0, 0), (1, 1, 1), (3, 1, 1), (4, 1, 2), (5, 2, 2)])
def test_needed_rounds_up(kit, length, kv, pairs):
    pages = kit.base().pages
    assert (pages.needed(0, length), pages.needed(1, length)) == (kv, pairs)


def test_free_lists_what_no_table_holds(kit):
    pages = kit.base().pages
    assert pages.free(0) == [2, 3, 5, 6, 7, 8, 9]
    assert pages.free(1) == [3, 5, 6, 7, 8, 9, 10, 11]


def test_a_shared_page_is_free_only_after_its_last_table(kit):
    # Two tables name one page, as a prefix cache will make them: the count goes down one by one.
    ledgers = kit.base()
    data = ledgers.snapshot()
    data["pages"]["3"] = [[[1], [2]], 2]
    ledgers.restore(data)
    assert ledgers.pages.references[0][1] == ledgers.pages.references[1][2] == 2
    for request, left in ((3, 1), (2, 0)):
        kit.fold(ledgers, [Evict(request, ((1,), (2,)))])
        assert ledgers.pages.references[0][1] == ledgers.pages.references[1][2] == left
        ledgers.check()
