"""The `perdure` command."""

import click

from perdure_cli.agents import agents
from perdure_cli.checkpoints import checkpoints
from perdure_cli.conversations import conversations
from perdure_cli.demo.command import demo
from perdure_cli.doctor import doctor
from perdure_cli.import_jsonl import import_jsonl
from perdure_cli.keys import keys, tenants
from perdure_cli.recover import recover
from perdure_cli.serve import db, serve
from perdure_cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perdure", prog_name="perdure")
def main() -> None:
    """Agent state that outlives its framework, its process and its GPU."""


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
    main()
