from __future__ import annotations

import pytest

from farandole.explain.parameter_server import traffic, traffic_frame

K = 27_720  # can be divided by all numbers of workers


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_what_is_sent_is_what_one_counts_by_hand(servers: int) -> None:
    for workers, by_server, in_ring in traffic(servers, K):
        # The sum of its part to all others, and its own gradient to the other servers.
        assert by_server == (workers - 1) * K // servers + (servers - 1) * K // servers
        assert in_ring == 2 * (workers - 1) * K // workers


def test_the_ring_stays_below_the_line_that_the_caption_names() -> None:
    frame = traffic_frame(1, 1_000_000)
    assert "no worker sends more than 2K, twice the gradient of 4 MB" in frame.caption
    assert "2K = 8 MB" in frame.drawing.svg()
    assert all(ring < 2_000_000 for _, _, ring in traffic(1, 1_000_000))
