"""The `perdure` command."""

import click

from perdure_cli.demo.command import demo


@click.group()
@click.version_option(package_name="perdure", prog_name="perdure")
def main() -> None:
    """Agent state that outlives its framework, its process and its GPU."""


main.add_command(demo)

if __name__ == "__main__":
    main()
