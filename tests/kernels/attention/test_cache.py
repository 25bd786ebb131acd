"""The paged cache: where rows go, what is cleared, when pages are viewed and when gathered."""

from __future__ import annotations

import pytest
import torch

from txdecode.kernels.attention.cache import PAGE_ROWS, PagedCache, Segment


def cache(key_multiple: int = 64, pages: int = 12) -> PagedCache:
    return PagedCache(2, 1, 4, pages, torch.float32, key_multiple)


def segment(position: int, rows: int, *pages: int) -> Segment:
    return Segment((0,) * rows, position, pages)


def test_rows_go_to_their_page_across_a_border() -> None:
    assert cache().place(segment(62, 4, 5, 2)) == [5 * 64 + 62, 5 * 64 + 63, 2 * 64, 2 * 64 + 1]


def test_a_page_is_cleared_behind_the_last_row_on_first_touch_and_after_a_shorter_round() -> None:
    made = cache()
    made.layers[0].fill_(7.0)
    made.place(segment(0, 3, 4))
    assert made.page_rows(0, 4, 3).eq(7).all()
    assert made.layers[0][4 * 64 + 3 : 5 * 64].eq(0).all()
    made.place(segment(3, 5, 4))
    made.layers[1][4 * 64 + 3 : 4 * 64 + 8] = 9.0
    made.place(segment(4, 2, 4))
    assert made.layers[1][4 * 64 + 3 : 4 * 64 + 6].eq(9).all()
    assert made.layers[1][4 * 64 + 6 : 5 * 64].eq(0).all()
    assert made.layers[0][: 4 * 64].eq(7).all()


def test_rows_of_the_prefix_are_not_cleared_in_a_page_that_was_full() -> None:
    made = cache()
    made.place(segment(0, 70, 1, 2))
    made.layers[0][64 : 64 + 128] = 3.0
    made.place(segment(30, 40, 1, 2))
    assert made.layers[0][64 : 64 + 64 + 6].eq(3).all()


def test_adjacent_pages_are_viewed_and_others_gathered_with_the_same_rows() -> None:
    made = cache()
    for layer in made.layers:
        layer.copy_(torch.randn(layer.shape))
    for _ in range(2):
        view = made.window(segment(150, 5, 3, 4, 5))
        assert view.index is None
        assert view.views is not None
        assert view.keys == 3 * PAGE_ROWS
    gathered = made.window(segment(150, 5, 3, 5, 4))
    assert gathered.views is None
    assert gathered.index is not None
    keys, values = made.gather(1, torch.tensor([3, 4, 5]))
    assert torch.equal(keys, view.views[1][0])
    assert torch.equal(values, view.views[1][1])
    assert keys.stride() == view.views[1][0].stride()


def test_keys_are_padded_with_zeros_to_the_multiple() -> None:
    made = cache(key_multiple=256)
    made.layers[0][: 12 * PAGE_ROWS].fill_(2.0)
    window = made.window(segment(70, 1, 8, 9))
    assert window.keys == 256
    assert window.index is not None
    keys, values = made.gather(0, window.index)
    assert keys.shape == (1, 1, 256, 4)
    for rows in (keys, values):
        assert rows[0, 0, :128].eq(2).all()
        assert rows[0, 0, 128:].eq(0).all()
    full = made.window(segment(255, 1, 4, 5, 6, 7))
    assert full.views is not None


def test_gathers_of_growing_and_shrinking_size_share_memory() -> None:
    made = cache()
    made.layers[0].copy_(torch.randn(made.layers[0].shape))
    for pages in ([1], [3, 1, 2], [2], [5, 4], [9, 8, 7, 6, 5]):
        keys, _ = made.gather(0, torch.tensor(pages))
        expected = torch.cat([made.page_rows(0, page, PAGE_ROWS)[:, :1] for page in pages])
        assert torch.equal(keys[0, 0], expected[:, 0])


def test_views_of_many_ranges_do_not_pile_up() -> None:
    made = cache(pages=200)
    for first in range(190):
        made.window(segment(0, 1, first))
    assert len(made._views) == 64


@pytest.mark.parametrize("bad", [segment(0, 0, 1), segment(60, 5, 1), segment(0, 1, 12), segment(0, 1, -1)])
def test_segments_out_of_bounds_are_refused(bad: Segment) -> None:
    with pytest.raises(AssertionError):
        cache().place(bad)
