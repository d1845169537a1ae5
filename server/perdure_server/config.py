"""Settings of a server process: flags, else PERDURE_* variables, else defaults.

Only reads and checks them; nothing is opened here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from perdure_server.embedded.folder import default_data_dir

Command = Literal["serve", "db up", "db status", "db sql", "db check"]

DEFAULT_LISTEN = "127.0.0.1:7401"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Address:
    """A TCP address to listen on; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Config:
    """What a process was told to do. Every duration is in seconds, above zero."""

    command: Command = "serve"
    listen: Address = Address("127.0.0.1", 7401)
    data_dir: Path = Path("/var/lib/perdure")
    """Holds the key file, and the embedded Postgres when `dsn` is None."""
    dsn: str | None = None
    """The URL of an external Postgres; None: the embedded one."""
    pooler: bool = False
    """A transaction pooler sits in between: no statement cache, no session state."""
    port_file: Path | None = None
    """Where to write the bound address once the server is serving."""
    log_level: str = "info"
    unary_timeout_s: float = 10.0
    stream_idle_timeout_s: float = 30.0
    shutdown_grace_s: float = 10.0
    transaction_timeout_s: float = 5.0
    idle_transaction_timeout_s: float = 1.0


_DB_COMMANDS: dict[str, Command] = {
    "up": "db up",
    "status": "db status",
    "sql": "db sql",
    "check": "db check",
}

_DURATIONS: dict[str, tuple[float, str]] = {
    "unary-timeout": (10.0, "deadline of a unary call that brings none"),
    "stream-idle-timeout": (30.0, "end a stream whose reader takes nothing"),
    "shutdown-grace": (10.0, "time for open calls after SIGTERM"),
    "transaction-timeout": (5.0, "longest statement in the database"),
    "idle-transaction-timeout": (1.0, "longest pause inside of a transaction"),
}


def load_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read the command line and the environment.

    A mistake in either ends the process with status 2 and one line that names the
    flag; `--help` prints and exits with 0.
    """
    options = _parser(environ).parse_args(argv)
    command: Command = _DB_COMMANDS[options.db] if options.command == "db" else "serve"
    durations = {
        _field(name): getattr(options, _field(name))
        for name in _DURATIONS
        if hasattr(options, _field(name))
    }
    return Config(
        command=command,
        data_dir=options.data_dir,
        dsn=options.dsn,
        pooler=options.pooler,
        log_level=options.log_level,
        listen=getattr(options, "listen", Config.listen),
        port_file=getattr(options, "port_file", None),
        **durations,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"perdure_server: {message}\n")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="perdure_server",
        description="The Perdure server. Each flag can be set as PERDURE_<FLAG>, "
        "with underscores; the flag wins.",
        allow_abbrev=False,
    )
    shared = _Parser(add_help=False, allow_abbrev=False)
    add = _adder(shared, environ)
    add("data-dir", _folder, str(default_data_dir()), "key file, embedded Postgres")
    add("dsn", _dsn, None, "URL of a Postgres 15+; without it an embedded one starts")
    add("log-level", _one_of(LOG_LEVELS), "info", "debug, info, warning or error")
    shared.add_argument(
        "--pooler",
        action=argparse.BooleanOptionalAction,
        default=environ.get("PERDURE_POOLER", "").lower() in ("1", "true", "yes", "on"),
        help="a transaction pooler such as PgBouncer is in between",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve", parents=[shared], help="run the server", allow_abbrev=False
    )
    add = _adder(serve, environ)
    add("listen", _address, DEFAULT_LISTEN, "host:port; port 0: the system chooses")
    add("port-file", Path, None, "write the bound address here once serving")
    for name, (default, text) in _DURATIONS.items():
        add(f"{name}-s", _seconds, str(default), f"{text}; seconds")
    database = commands.add_parser("db", help="schema of the database")
    actions = database.add_subparsers(dest="db", required=True)
    for name, text in (
        ("up", "apply the migrations that are missing"),
        ("status", "say which migrations are missing; status 1 if any"),
        ("sql", "print the DDL for a DBA who runs it by hand"),
        ("check", "print what decides whether acknowledged means durable, as JSON"),
    ):
        actions.add_parser(name, parents=[shared], help=text, allow_abbrev=False)
    return parser


def _adder(
    parser: argparse.ArgumentParser, environ: Mapping[str, str]
) -> Callable[[str, Callable[[str], object], str | None, str], None]:
    def add(
        name: str, read: Callable[[str], object], default: str | None, text: str
    ) -> None:
        variable = "PERDURE_" + name.upper().replace("-", "_")
        # argparse runs a default that is text through `type`, errors included.
        value = environ.get(variable) or default
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(
            f"--{name}",
            type=read,
            default=value,
            help=(text + shown).replace("%", "%%"),
            metavar=name.rsplit("-", 1)[-1].upper(),
        )

    return add


def _field(duration: str) -> str:
    return duration.replace("-", "_") + "_s"


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _dsn(text: str) -> str:
    if urlsplit(text).scheme not in ("postgres", "postgresql"):
        raise argparse.ArgumentTypeError("must begin with postgresql://")
    return text


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    if int(port) > 65535:
        raise argparse.ArgumentTypeError(f"port {port} is above 65535")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 < s")
    return seconds


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise argparse.ArgumentTypeError(
                f"{text!r} is none of {', '.join(choices)}"
            )
        return text.lower()

    return read
