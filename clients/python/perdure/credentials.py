"""Where the server is and which key opens it: arguments, environment, key file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from perdure.errors import Denied, Unavailable

FILE_NAME = "credentials.json"


@dataclass(frozen=True)
class Credentials:
    """A server's address and a key of it."""

    target: str
    key: str = field(repr=False)


def data_folder() -> Path:
    """Return the folder in which a local server keeps its data and its key file."""
    named = os.environ.get("PERDURE_DATA_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/perdure")
    return platformdirs.user_data_path("perdure")


def find_credentials(target: str | None, key: str | None) -> Credentials:
    """Complete an address and a key from the environment and the key file.

    Raises:
        Unavailable: No server is known.
        Denied: A server is known, but no key of it.
    """
    target = target or os.environ.get("PERDURE_TARGET") or ""
    key = key or os.environ.get("PERDURE_KEY") or ""
    if not (target and key):
        path = data_folder() / FILE_NAME
        stored = _read_file(path)
        if not target:
            target = stored.get("target", "")
        # A key belongs to its server: never send it to another one by itself.
        if not key and target == stored.get("target"):
            key = stored.get("key", "")
        _require(target, key, path)
    _require_printable(key)
    return Credentials(target, key)


def _require(target: str, key: str, path: Path) -> None:
    if not target:
        raise Unavailable(
            f"no server is known: there is no {path}. Start one with `perdure "
            "serve`, or set PERDURE_TARGET and PERDURE_KEY",
            reason="NOT_CONFIGURED",
        )
    if not key:
        raise Denied(
            f"no key for {target}: set PERDURE_KEY, or make one on the server with "
            "`perdure keys create`",
            code="UNAUTHENTICATED",
            reason="NOT_CONFIGURED",
        )


def _require_printable(key: str) -> None:
    if not (key.isascii() and key.isprintable()):
        raise Denied(
            "the key has characters that no key has; was it copied whole?",
            code="UNAUTHENTICATED",
            reason="KEY_INVALID",
        )


def _read_file(path: Path) -> dict[str, str]:
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        raise Denied(
            f"the key file {path} belongs to another account; run as that account, "
            "or set PERDURE_TARGET and PERDURE_KEY",
            code="UNAUTHENTICATED",
            reason="NOT_CONFIGURED",
        ) from error
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"the key file {path} cannot be read ({type(error).__name__}); restart "
            "the server to write it again, or set PERDURE_TARGET and PERDURE_KEY",
            reason="NOT_CONFIGURED",
        ) from error
    if not isinstance(loaded, dict):
        return {}
    return {str(name): str(value) for name, value in loaded.items()}
