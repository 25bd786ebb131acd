"""Speculation changes speed, never text: every pattern of right and wrong drafts, every place to stop."""

from __future__ import annotations

import itertools

import pytest

from txdecode.transactions.executor import Proposal
from txdecode.transactions.phase import Signal
from txdecode.transactions.toy import plain


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("drafts", range(8))
def test_text_at_every_draft_length(kit, drafts, fused):
    rig = kit.Rig(fused=fused)
    rig.enter(0, kit.PROMPT, 20)
    expected = rig.oracle(0, 20)
    masks = [
        [(seed >> bit) & 1 == 1 for bit in range(drafts)] for seed in (0, 255, 0b1011, 0b1, 0b1110111, 0b11)
    ]
    assert rig.finish(0, masks) == expected
    rig.check()


@pytest.mark.parametrize("drafts", [3, 4])
def test_every_order_of_right_and_wrong(kit, drafts):
    for mask in kit.masks(drafts):
        rig = kit.Rig(paranoid=False)
        rig.enter(0, kit.PROMPT, 12)
        expected = rig.oracle(0, 12)
        rig.round(0)
        tx = rig.round(0, mask)
        accepted = next((i for i, right in enumerate(mask) if not right), drafts)
        assert tx.outcome.accepted == accepted
        assert list(tx.emitted) == expected[1 : accepted + 2]
        rig.check()
        assert rig.finish(0, (mask,)) == expected


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accuracy", [1, 4, 7, 8])
def test_text_with_the_executors_own_drafter(kit, accuracy, fused):
    rig = kit.Rig(accuracy=accuracy, fused=fused)
    rig.enter(0, kit.PROMPT, 24)
    expected = rig.oracle(0, 24)
    text, accepted = [], 0
    while True:
        tx = rig.round(0, None, drafts=4)
        text += tx.emitted
        accepted += tx.outcome.accepted
        assert tx.proposal is tx.outcome.proposal
        assert tx.proposal.source == "toy"
        if tx.clip != "none":
            break
        rig.check()
    assert text == expected
    assert accepted > 0


@pytest.mark.parametrize("fused", [False, True])
def test_the_executor_drafts_only_where_it_is_asked(kit, fused):
    # Not for hosted rounds; and a fused program drafts by itself.
    rig = kit.prepared(accuracy=6, fused=fused)
    rig.executor.draft = None
    rig.round(0, (True, False))
    if fused:
        assert rig.round(0, None, drafts=2).outcome.proposal.source == "toy"


def test_hosted_and_learned_rounds_share_a_launch(kit):
    for fused in (False, True):
        rig = kit.prepared(requests=3, accuracy=8, fused=fused)
        asks = [rig.ask(0, (True, False)), rig.ask(1, None, drafts=3), rig.ask(2, (False,))]
        launch = rig.go(rig.open(*asks))
        assert launch.fault is None
        assert [tx.outcome.proposal.source for tx in launch.transactions] == ["script", "toy", "script"]
        assert [tx.outcome.accepted for tx in launch.transactions] == [1, 3, 0]
        rig.check()


def test_an_executor_without_a_drafter_offers_nothing(kit):
    for fused in (False, True):
        rig = kit.Rig(fused=fused)
        rig.enter(0, kit.PROMPT, 9)
        rig.round(0)
        tx = rig.round(0, None, drafts=4)
        assert tx.outcome.proposal == Proposal()
        assert len(tx.emitted) == 1
        rig.check()


def test_a_host_drafter_is_not_asked_for_nothing(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9)
    asked = []

    def propose(count):
        asked.append(count)
        return Proposal()

    ask = rig.ask(0, ())
    for drafts in (0, 2):
        launch = rig.go(rig.open(type(ask)(0, drafts, ask.rules, propose)))
        assert launch.fault is None
        assert launch.transactions[0].outcome.accepted == 0
    assert asked == [2]


@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_is_each_of_its_requests(kit, fused):
    rig = kit.Rig(fused=fused)
    prompts = {0: (1,), 1: (2, 2, 2, 2), 2: kit.PROMPT, 3: (9,) * 13}
    for request, prompt in prompts.items():
        rig.enter(request, prompt, 14)
    expected = {request: rig.oracle(request, 14) for request in prompts}
    text = {request: [] for request in prompts}
    masks = {0: (), 1: (True,) * 7, 2: (True, False, True), 3: (False, True)}
    while text:
        launch = rig.go(rig.open(*(rig.ask(request, masks[request]) for request in text)))
        assert launch.fault is None
        for tx in launch.transactions:
            text[tx.request] += tx.emitted
            if tx.clip != "none":
                assert text.pop(tx.request) == expected[tx.request]
        rig.check()


def test_accepted_blocks_end_on_and_cross_page_borders(kit):
    seen = set()
    for length, accepted in itertools.product(range(1, 9), range(7)):
        rig = kit.Rig(paranoid=False)
        rig.enter(0, range(length), 24)
        expected = rig.oracle(0, 24)
        mask = (True,) * accepted + (False,) * (6 - accepted)
        # The first round takes the last prompt row, so it too may end on a border or cross one.
        for _ in range(3):
            before = rig.state(0).consumed
            rig.round(0, mask)
            after = rig.state(0).consumed
            assert after - before == accepted + 1
            pages = rig.ledgers.pages.tables[0]
            assert [len(table) for table in pages] == [-(-after // 4)] * 2
            seen.add((before % 4 == 0, after % 4 == 0, after // 4 - before // 4))
            rig.check()
        assert rig.finish(0, (mask,)) == expected
    # Begun on a border or within a page; ended on one or not; no, one and two borders passed.
    assert {(False, True, 1), (True, True, 1), (False, False, 0), (True, False, 1)} <= seen
    assert {(False, True, 2), (False, False, 2), (False, False, 1)} <= seen


def distinct_text(kit, count):
    """A prompt after whose first token the text has ``count`` distinct tokens, so each can be a stop."""
    for last in range(48):
        text = plain((*kit.PROMPT, last), count + 1, 48)
        if len(set(text)) == count + 1:
            return (*kit.PROMPT, last), text
    raise AssertionError


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accepted", range(5))
def test_a_request_ends_at_every_index_of_a_block(kit, accepted, fused):
    prompt, text = distinct_text(kit, 5)
    mask = (True,) * accepted + (False,) * (4 - accepted)
    for index, how in itertools.product(range(5), ("stop id", "stop text", "length")):
        rig = kit.Rig(fused=fused)
        rig.enter(0, prompt, 20)
        rig.enter(1, kit.PROMPT, 20)
        rig.round(0)
        standing = rig.audits()[1]
        rules = {
            "stop id": {"stop_ids": (text[index + 1], 47)},
            "stop text": {"stop_text": lambda tokens, index=index: index if index < len(tokens) else None},
            "length": {"budget": index + 1},
        }[how]
        if how == "length" and index < 4:
            # A plan offers no drafts past the budget.
            rules["drafts"] = index
        launch = rig.go(rig.open(rig.ask(0, mask, **rules), rig.ask(1, (True, False))))
        assert launch.fault is None
        tx = launch.transactions[0]
        count = min(index, accepted) + 1
        assert list(tx.emitted) == text[1 : count + 1]
        ended = index <= accepted
        assert tx.clip == ("none" if not ended else "length" if how == "length" else "stop")
        assert tx.ended_by is Signal.COMMITTED
        assert (0 in rig.ledgers.tokens.sequences) is not ended
        assert rig.audits()[1] != standing
        rig.check()


def test_a_stop_on_the_first_token_ends_before_anything_is_generated(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 9)
    first = rig.oracle(0, 1)
    tx = rig.round(0, (), stop_ids=first)
    assert (list(tx.emitted), tx.clip) == (first, "stop")
    rig.check()
    assert not rig.ledgers.tokens.sequences
    assert rig.free() == kit.Rig().free()


def test_a_budget_of_one_is_one_round(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 1)
    expected = rig.oracle(0, 1)
    tx = rig.round(0, (True, True))
    assert (list(tx.emitted), tx.clip, tx.plan.width) == (expected, "length", 1)
    rig.check()


def test_the_record_says_what_happened(kit):
    rig = kit.Rig()
    rig.enter(0, kit.PROMPT, 6)
    rig.round(0)
    rig.round(0, (True, False, True))
    rig.round(0, (True, True, True), stop_text=lambda tokens: 1)
    text = plain(kit.PROMPT, 5, 48)
    first, block, last = (event for event in rig.log.events() if type(event).__name__ == "RoundCommitted")
    assert (first.ordinal, first.width, first.drafts, first.accepted, first.clip) == (0, 1, (), 0, 0)
    assert (first.source, first.emitted, first.path) == ("none", (text[0],), ())
    assert (block.ordinal, block.width, block.accepted, block.clip) == (1, 4, 1, 0)
    assert (block.source, block.law, block.emitted) == ("script", 0, tuple(text[1:3]))
    assert block.drafts[0] == text[1]
    assert block.drafts[1] != text[2]
    assert (block.released, block.rng) == ((), (9,))
    assert (last.ordinal, last.accepted, last.clip, last.emitted) == (2, 2, 1, tuple(text[3:5]))
    assert (last.adopted, last.columns, last.rng) == ((), (), (11,))
    assert [len(pages) for pages in last.released] == [2, 2]
    assert [event.launch for event in (first, block, last)] == [1, 2, 3]
    for event in (first, block, last):
        assert len(event.times) == 4


def test_the_record_has_the_law_of_the_drafts(kit):
    rig = kit.prepared()
    ask = rig.ask(0, (True,))
    for law, number in (("sampled", 1), ("point", 0)):
        drafts = rig.script(0, (True,))(1).tokens
        propose = lambda count, law=law, drafts=drafts: Proposal(drafts, "q", law)  # noqa: E731
        rig.go(rig.open(type(ask)(0, 1, ask.rules, propose)))
        record = rig.log.events()[-1]
        assert (record.source, record.law, record.accepted) == ("q", number, 1)


@pytest.mark.parametrize("known", range(1, 8))
def test_recomputation_in_any_chunking_is_the_same(kit, known):
    """Evict and consume the known tokens again, in every way to cut them up."""
    audits, texts = [], []
    for cuts in itertools.product((False, True), repeat=max(known - 2, 0)):
        sizes = [1]
        for cut in cuts:
            if cut:
                sizes.append(1)
            else:
                sizes[-1] += 1
        rig = kit.Rig(paranoid=False)
        rig.enter(0, kit.PROMPT[: min(known, 3)], 12)
        if known > 3:
            rig.round(0)
        if known > 4:
            rig.round(0, (True,) * (known - 5) + (False,))
        assert rig.state(0).known == known
        before = rig.audits()[0]
        rig.recompute(0, sizes)
        assert rig.state(0).epoch == 1
        assert rig.audits()[0] == before
        rig.check()
        audits.append(rig.audits()[0])
        expected = rig.oracle(0, 12)
        texts.append(rig.finish(0, ((True, False),)))
        assert texts[-1] == expected
    assert len(audits) == 2 ** max(known - 2, 0)
    assert all(audit == audits[0] for audit in audits)
    assert all(text == texts[0] for text in texts)
