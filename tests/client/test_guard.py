"""Cancelling a block from within, told apart from cancelling it from outside."""

import asyncio

import pytest

from perdure.guard import Guard


class Block:
    def __init__(self) -> None:
        self.guard = Guard()
        self.ours: bool | None = None

    async def __aenter__(self) -> "Block":
        self.guard.enter()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
        assert error is None or isinstance(error, BaseException)
        self.ours = await self.guard.leave(error)
        return bool(self.ours)


async def test_a_trip_cancels_the_block_and_only_the_block() -> None:
    block = Block()
    async with block:
        asyncio.get_running_loop().call_soon(block.guard.trip)
        await asyncio.sleep(10)

    assert block.ours is True
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_passes_through() -> None:
    block = Block()

    async def work() -> None:
        async with block:
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert block.ours is False


async def test_both_cancellations_at_once_end_the_task() -> None:
    block = Block()

    async def work() -> None:
        async with block:
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    block.guard.trip()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_trip_that_comes_too_late_cancels_nothing_later() -> None:
    block = Block()
    stopped = asyncio.Event()

    async def work() -> str:
        async with block:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                stopped.set()
        await asyncio.sleep(0.01)
        return "went on"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    block.guard.trip()

    assert await task == "went on"
    assert stopped.is_set()
    assert block.ours is False


async def test_a_trip_by_the_blocks_own_task_cancels_nothing() -> None:
    block = Block()
    async with block:
        block.guard.trip()
        await asyncio.sleep(0)

    assert block.ours is False
