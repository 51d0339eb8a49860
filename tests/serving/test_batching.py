"""Requests go together, in bounds of rows, time and queue; nobody gets another's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.inference import Predictor
from farandole.serving import failure
from farandole.serving.batching import Batcher, Batching
from farandole.serving.metrics import ModelMetrics
from farandole.serving.model import Model
from farandole.serving.pace import Pace
from farandole.serving.refusal import Refusal


class Doubling(nn.Module):
    """Twice what it gets; keeps the sizes of its batches, and can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.wait: Callable[[], object] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        self.wait()
        if bool((x < 0).any()):
            raise RuntimeError("negative, in /secret/path.py")
        return 2 * x


def run(
    body: Callable[[Batcher, Doubling], Awaitable[Any]], *, inline: bool = True, **options: Any
) -> Any:
    network = Doubling()
    signature = Signature(
        features=("x",), shapes=((1,),), dtypes=("float32",), head="identity", outputs=1
    )
    model = Model("m", "1", Predictor(network, signature, batch_size=1000))

    async def main() -> Any:
        with ThreadPoolExecutor(1) as threads:
            batcher = Batcher(model, Batching(**options), ModelMetrics("m", "1"), threads)
            batcher.pace = Pace(batcher.pace.rows, inline)
            return await body(batcher, network)

    return asyncio.run(main())


def rows(*values: float) -> list[Any]:
    return [np.array(values, np.float32)[:, None]]


async def ask(batcher: Batcher, *values: float, seconds: float = 20) -> list[float]:
    found = await batcher.submit(rows(*values), ["prediction"], seconds)
    return list(found.tensor("prediction"))


@pytest.mark.parametrize("inline", [True, False])
def test_requests_that_come_together_go_together(inline: bool) -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        found = await asyncio.gather(*(ask(batcher, n, n + 0.5) for n in range(7)))
        assert found == [[2 * n, 2 * n + 1] for n in range(7)]
        assert network.sizes == [6, 6, 2]
        assert batcher.metrics.rows.total == 14

    run(body, inline=inline, max_batch=6)


def test_a_request_larger_than_a_batch_goes_alone() -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        one, many = ask(batcher, 1), ask(batcher, *range(9))
        assert await asyncio.gather(one, many, ask(batcher, 3)) == [
            [2], [2 * n for n in range(9)], [6],
        ]  # fmt: skip
        assert network.sizes == [1, 9, 1]

    run(body, max_batch=4)


def test_with_a_delay_others_are_waited_for() -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        first = asyncio.ensure_future(ask(batcher, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert network.sizes == []  # not yet
        await asyncio.gather(first, ask(batcher, 2), ask(batcher, 3))
        assert network.sizes == [3]  # full: it went before the delay was over

    run(body, max_batch=3, max_delay=30)


def test_a_bad_request_takes_no_other_along() -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        found = await asyncio.gather(
            ask(batcher, 1), ask(batcher, -1), ask(batcher, 2), return_exceptions=True
        )
        assert (found[0], found[2]) == ([2], [4])
        assert isinstance(found[1], Refusal)
        assert found[1].status == 400
        assert "secret" not in str(found[1])

    run(body)


def test_a_bad_request_costs_few_passes() -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        values = [-1.0, *range(31)]
        found = await asyncio.gather(*(ask(batcher, n) for n in values), return_exceptions=True)
        assert found[1:] == [[2 * n] for n in values[1:]]
        assert isinstance(found[0], Refusal)
        assert network.sizes == [32, 16, 8, 4, 2, 1, 1, 2, 4, 8, 16]

    run(body)


@pytest.mark.parametrize("inline", [True, False])
def test_memory_that_is_not_there_is_the_servers_failure_and_logged_once(
    inline: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "_logged", {})

    async def body(batcher: Batcher, network: Doubling) -> None:
        network.wait = lambda: torch.empty(1 << 60)  # torch says so with a RuntimeError
        for _ in range(3):
            with pytest.raises(Refusal) as refused:
                await ask(batcher, 1)
            assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})

    run(body, inline=inline)
    assert [one.exc_info is not None for one in caplog.records] == [True]


def test_a_full_queue_turns_away_and_a_late_or_cancelled_request_is_dropped() -> None:
    async def body(batcher: Batcher, network: Doubling) -> None:
        go, entered = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20)

        network.wait = wait
        first = asyncio.ensure_future(ask(batcher, 1))
        await entered.wait()
        late = asyncio.ensure_future(ask(batcher, 2, seconds=-1))
        lost = batcher.submit(rows(3), ["prediction"], 20)
        kept = asyncio.ensure_future(ask(batcher, 4))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refused:
            batcher.submit(rows(5), ["prediction"], 20)
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
        lost.cancel()
        go.set()
        assert await first == [2]
        assert await kept == [8]
        with pytest.raises(Refusal, match="waited for too long"):
            await late
        assert network.sizes == [1, 1]  # neither the late one nor the cancelled one
        assert (batcher.metrics.dropped, batcher.metrics.turned_away) == (2, 1)

    run(body, inline=False, max_queue=3)


def test_who_has_more_rows_than_a_batch_waits() -> None:
    """They are computed in a thread: a sender may go meanwhile, and its time may be over."""

    async def body(batcher: Batcher, network: Doubling) -> list[bool]:
        found = []
        for count in (2, 3):
            future = batcher.submit(rows(*range(count)), ["prediction"], 9)
            found.append(batcher.waits)
            assert len(await future) == count
        return found

    assert run(body, max_batch=2) == [False, True]
