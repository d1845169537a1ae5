"""How a command reaches the server: its options, one client, one event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import click

import perdure
from perdure_cli.output import Output

DEFAULT_TIMEOUT_S = 5.0

_P = ParamSpec("_P")


@dataclass(frozen=True)
class Session:
    """What was said before the command's name."""

    target: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def connect(self) -> perdure.AsyncClient:
        """Make a client; nothing is sent yet.

        Raises:
            PerdureError: No server or no key is known.
        """
        return perdure.connect(self.target, timeout_s=self.timeout_s)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line."
)


def session_of(context: click.Context) -> Session:
    """Return the session of a command."""
    return context.find_object(Session) or Session()


def connected(
    command: Callable[
        Concatenate[perdure.AsyncClient, Output, _P], Coroutine[Any, Any, None]
    ],
) -> Callable[..., None]:
    """Run an asynchronous command with a client and an output; adds `--json`."""

    @json_option
    @click.pass_context
    @functools.wraps(command)
    def run(context: click.Context, /, as_json: bool, **options: Any) -> None:
        asyncio.run(_run(session_of(context), Output(as_json), command, options))

    return run


async def _run(
    session: Session,
    output: Output,
    command: Callable[..., Coroutine[Any, Any, None]],
    options: dict[str, Any],
) -> None:
    async with session.connect() as client:
        await command(client, output, **options)
