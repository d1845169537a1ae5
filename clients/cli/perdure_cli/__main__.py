"""The `perdure` command."""

import click

from perdure_cli.agents import agents
from perdure_cli.checkpoints import checkpoints
from perdure_cli.conversations import conversations
from perdure_cli.db import db
from perdure_cli.demo.command import demo
from perdure_cli.doctor import doctor
from perdure_cli.errors import Commands
from perdure_cli.import_jsonl import import_jsonl
from perdure_cli.keys import keys, tenants
from perdure_cli.recover import recover
from perdure_cli.serve import serve
from perdure_cli.session import DEFAULT_TIMEOUT_S, Session
from perdure_cli.status import status


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--target",
    metavar="HOST:PORT",
    help="The server; else PERDURE_TARGET, else the local one. Its key comes from "
    "PERDURE_KEY or the local server's key file.",
)
@click.option(
    "--timeout-s",
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    type=click.FloatRange(0, 3600, min_open=True),
    help="Seconds that a call may take in all, its retries included.",
)
@click.version_option(package_name="perdure", prog_name="perdure")
@click.pass_context
def main(context: click.Context, target: str | None, timeout_s: float) -> None:
    """Agent state that outlives its framework, its process and its GPU."""
    context.obj = Session(target, timeout_s)


for command in (
    serve,
    db,
    status,
    doctor,
    conversations,
    agents,
    checkpoints,
    recover,
    import_jsonl,
    keys,
    tenants,
    demo,
):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="perdure")
