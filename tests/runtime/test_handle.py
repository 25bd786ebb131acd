"""What a caller sees of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txdecode.runtime import RequestFailed, Runtime, Stats, TextUnavailable, replay
from txdecode.transactions.toy import ToyExecutor, plain

Open = Callable[..., Runtime]
PROMPT = [2, 0, 1]
TEXT = plain(PROMPT, 30, 48)
LETTERS = "".join(chr(65 + token) for token in TEXT)


def test_ids_drive_the_loop_and_come_as_they_are_committed(opened: Open) -> None:
    runtime = opened()
    handle, other = runtime.submit(PROMPT, max_tokens=8), runtime.submit([5], max_tokens=8)
    seen = []
    for token in handle.ids():
        seen.append(token)
        assert handle.published == tuple(seen)
    assert seen == TEXT[:8]
    # The other one ran along with it.
    assert len(other.published) >= 7
    assert list(handle.ids()) == seen


def test_a_step_is_run_only_where_a_token_is_missing(opened: Open) -> None:
    runtime = opened(ToyExecutor(accuracy=8), draft="executor", draft_len=7)
    handle = runtime.submit(PROMPT, max_tokens=9)
    ids = handle.ids()
    assert [next(ids), next(ids)] == TEXT[:2]
    published = handle.published
    assert len(published) == 9
    assert [*ids] == TEXT[2:9]


def test_text_comes_in_pieces_that_make_the_whole(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    handle = runtime.submit("CAB", max_tokens=30)
    pieces = list(handle)
    assert len(pieces) > 1
    assert "".join(pieces) == handle.result().text == LETTERS


def test_held_back_text_is_given_at_the_end(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    # The text ends in the beginning of a stop string.
    handle = runtime.submit("CAB", max_tokens=10, stop=LETTERS[8:10] + "!")
    pieces = list(handle)
    assert "".join(pieces) == handle.result().text == LETTERS[:10]
    assert handle.result().finish == "length"


def test_text_without_a_tokenizer(opened: Open) -> None:
    handle = opened().submit(PROMPT, max_tokens=3)

    async def read() -> None:
        async for _ in handle:
            pass

    with pytest.raises(TextUnavailable, match=r"handle\.ids\(\)"):
        next(iter(handle))
    with pytest.raises(TextUnavailable, match=r"handle\.ids\(\)"):
        asyncio.run(read())
    assert handle.result().text is None


def test_two_async_readers(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    handles = [runtime.submit("CAB", max_tokens=12), runtime.submit("F", max_tokens=12)]

    async def read(handle: Any) -> str:
        return "".join([piece async for piece in handle])

    async def both() -> list[str]:
        return await asyncio.gather(*map(read, handles))

    assert asyncio.run(both()) == [handle.result().text for handle in handles]
    assert handles[0].result().text == LETTERS[:12]


def test_result_runs_to_the_end_and_can_be_asked_again(opened: Open) -> None:
    handle = opened().submit(PROMPT, max_tokens=7)
    assert not handle.done
    result = handle.result()
    assert handle.done
    assert handle.result() is result
    assert (result.ids, result.finish, result.request) == (tuple(TEXT[:7]), "length", 0)


def test_cancel_keeps_what_was_committed(opened: Open, letters: Any) -> None:
    runtime = opened(text=letters)
    handle = runtime.submit("CAB", max_tokens=30)
    ids = handle.ids()
    first = [next(ids), next(ids)]
    handle.cancel()
    handle.cancel()
    assert [*first, *ids] == TEXT[:2]
    result = handle.result()
    assert (result.ids, result.text, result.finish) == (tuple(TEXT[:2]), LETTERS[:2], "cancelled")
    handle.cancel()
    assert handle.result() is result


def test_cancel_before_the_first_step(opened: Open, log: Path) -> None:
    runtime = opened()
    handle = runtime.submit(PROMPT)
    handle.cancel()
    runtime.run()
    assert (handle.result().ids, handle.result().finish) == ((), "cancelled")
    runtime.close()
    assert replay(log).requests[0].finish == "cancelled"


def test_a_cancel_is_not_replaced_by_a_preemption(opened: Open) -> None:
    runtime = opened()
    handle = runtime.submit(PROMPT)
    runtime.step()
    handle.cancel()
    runtime.preempt(handle)
    runtime.step()
    assert handle.result().finish == "cancelled"


def test_repr_tells_the_state(opened: Open) -> None:
    runtime = opened()
    handle, other = runtime.submit(PROMPT, max_tokens=2), runtime.submit(PROMPT)
    assert repr(handle) == "<Handle request=0 tokens=0 running>"
    runtime.step()
    assert repr(handle) == "<Handle request=0 tokens=1 running>"
    handle.result()
    assert repr(handle) == "<Handle request=0 tokens=2 length>"
    runtime.close()
    assert repr(other).endswith(" failed>")


def test_ids_of_a_failed_request_come_before_its_error(opened: Open) -> None:
    runtime = opened()
    handle = runtime.submit(PROMPT)
    while len(handle.published) < 3:
        runtime.step()
    runtime.close()
    seen: list[int] = []
    with pytest.raises(RequestFailed, match="request 0 failed: the runtime was closed") as failed:
        seen.extend(handle.ids())
    assert seen == TEXT[:3]
    assert failed.value.request == 0
    with pytest.raises(RequestFailed):
        handle.result()


def test_stats_agree_with_the_log(opened: Open, log: Path) -> None:
    runtime = opened(ToyExecutor(accuracy=6, page_count=14), draft="executor", draft_len=5)
    handles = [runtime.submit([9 * i % 48] * (3 + 4 * i), max_tokens=25) for i in range(4)]
    while not handles[1].published:
        runtime.step()
    runtime.preempt(handles[1])
    runtime.run()
    runtime.close()
    requests = replay(log).requests
    for handle in handles:
        stats, said = handle.result().stats, requests[handle.request]
        assert stats.prompt_tokens == said.prompt_tokens
        counts = (stats.rounds, stats.plain_steps, stats.drafted, stats.accepted, stats.preemptions)
        assert counts == (said.rounds, said.plain_steps, said.drafted, said.accepted, said.preemptions)
        assert stats.emitted == 25
        assert stats.accepted <= stats.drafted
        assert stats.prefill_s > 0 < stats.decode_s
        assert 0 < stats.host_s < stats.decode_s
        assert stats.tok_s == 25 / stats.decode_s
        assert stats.host_share == stats.host_s / stats.decode_s
    assert sum(handle.result().stats.preemptions for handle in handles) > 1


def test_stats_of_a_request_that_never_ran() -> None:
    assert (Stats().tok_s, Stats().host_share) == (0.0, 0.0)
