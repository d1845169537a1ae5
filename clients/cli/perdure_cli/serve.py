"""`perdure serve` and `perdure db`: the server's own command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from perdure_cli.errors import CommandError

PASS_THROUGH = {"ignore_unknown_options": True, "help_option_names": []}


def require_server() -> None:
    """Say how to install the server where it is missing."""
    if importlib.util.find_spec("perdure_server") is None:
        raise CommandError("the server is not installed: pip install 'perdure[server]'")


def run_server(arguments: Sequence[str]) -> NoReturn:
    """Become the server process: signals and exit status are its own."""
    require_server()
    sys.stdout.flush()
    command = [sys.executable, "-m", "perdure_server", *arguments]
    os.execv(sys.executable, command)


@click.command(context_settings=PASS_THROUGH, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Run the server; without --dsn with a private Postgres.

    Prints its address, data folder and key file once it serves. `perdure serve
    --help` lists the flags.
    """
    run_server(["serve", *flags])
