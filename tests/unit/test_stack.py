"""A stack says where, and nothing of what was said."""

import asyncio

from perdure_server.stack import stack_of

WORDS = "the stored words"


def caught() -> BaseException:
    async def fail() -> None:
        try:
            raise KeyError(WORDS)
        except KeyError as exc:
            raise ValueError(WORDS) from exc

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    try:
        asyncio.run(run())
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def test_a_stack_names_every_exception_and_its_frames_but_no_message() -> None:
    stack = stack_of(caught())
    for kind in ("ExceptionGroup", "ValueError", "KeyError"):
        assert f"builtins.{kind}" in stack
    assert "in fail" in stack
    assert WORDS not in stack
