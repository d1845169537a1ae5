"""Errors as a person reads them: one line that says what to do, status 1."""

from __future__ import annotations

from typing import IO, Any

import click

import perdure
from perdure_cli.output import visible

_HINTS = {
    "CONVERSATION_NOT_FOUND": "`perdure conversations list` shows those that exist",
    "AGENT_NOT_FOUND": "`perdure agents list --all` shows those that exist",
    "CHECKPOINT_NOT_FOUND": "`perdure checkpoints list AGENT` shows its steps",
    "RECOVERY_NOT_FOUND": "`perdure recover start` prints the id of a new one",
    "KEY_NOT_FOUND": "`perdure keys list` shows those that exist",
    "KEY_INVALID": "set PERDURE_KEY to a key of this server, or make one with "
    "`perdure keys create` where the server runs",
    "SCOPE_MISSING": "use a key with that scope; `perdure keys list` shows scopes",
    "SELECTOR_EMPTY": "say which agents, or --all",
    "PRUNED": "`perdure checkpoints list AGENT` shows the steps that are left",
}


class CommandError(click.ClickException):
    """A command that cannot do what it was asked; the message says what to do."""

    def format_message(self) -> str:
        """Return the message on one line."""
        return " ".join(visible(self.message).split())

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line on stderr."""
        click.echo(f"perdure: {self.format_message()}", file=file, err=file is None)


class Commands(click.Group):
    """A group whose commands let the client's errors through."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what the client raises into one line."""
        try:
            return super().invoke(ctx)
        except perdure.PerdureError as error:
            raise CommandError(line_of(error)) from error


def line_of(error: perdure.PerdureError) -> str:
    """Return what went wrong and what to do."""
    hint = _HINTS.get(error.reason, "")
    return f"{error}: {hint}" if hint else str(error)
