"""Options that say which agents, the same on every command that takes agents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

import perdure
from perdure.selector import Selection
from perdure_cli.errors import CommandError

_F = TypeVar("_F", bound=Callable[..., Any])


def _labels(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    labels = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", context, option)
        labels[name] = text
    return labels


_OPTIONS = (
    click.option("--id", "ids", multiple=True, help="This agent. Repeatable."),
    click.option(
        "--lease",
        type=click.Choice(["live", "lost", "free"]),
        help="live: held by a worker; lost: its worker died; free: given back.",
    ),
    click.option("--owner", help="Held or lost under a lease of this owner."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        callback=_labels,
        metavar="NAME=VALUE",
        help="Held or lost under a lease with this label. Repeatable.",
    ),
    click.option("--framework", help="Running in this framework."),
    click.option("--agent-slug", help="Of this kind."),
    click.option("--parent", "parent_agent_id", help="Children of this agent."),
    click.option("--all", is_flag=True, help="Every agent."),
)
_NAMES = (
    "ids lease owner labels framework agent_slug parent_agent_id all".split()  # noqa: SIM905
)


def selection_options(command: _F) -> _F:
    """Give a command the options, as one keyword `selection`."""

    @functools.wraps(command)
    def gathered(*args: Any, **options: Any) -> Any:
        given: Selection = {}
        for name in _NAMES:
            value = options.pop(name)
            if value:
                given[name] = value  # type: ignore[literal-required]
        return command(*args, selection=given, **options)

    wrapped: Any = gathered
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    result: _F = wrapped
    return result


def require_selection(selection: Selection) -> None:
    """End with a usage error when nothing was selected."""
    if not selection:
        raise click.UsageError(
            "say which agents: --id, --lease, --owner, --label, --framework, "
            "--agent-slug, --parent or --all"
        )


async def require_known(client: perdure.AsyncClient, selection: Selection) -> None:
    """End with an error when an agent was named that does not exist."""
    named = list(selection.get("ids") or ())
    if not named:
        return
    found = {agent.agent_id async for agent in client.agents.list(ids=named)}
    for agent_id in named:
        if agent_id not in found:
            raise CommandError(
                f"there is no agent {agent_id}: `perdure agents list` shows those "
                "that exist"
            )
