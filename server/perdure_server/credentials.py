"""The key file with which clients on this machine find the server by themselves.

``<data folder>/credentials.json`` holds ``{"target", "key"}``, readable by its owner
only. It is made at the first start, with the tenant ``default``.
"""

import json
import os
import secrets
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perdure_server.startup import StartupError
from perdure_server.store.keys import Keys, digest_secret
from perdure_server.store.tenants import Tenants

FILE_NAME = "credentials.json"
TENANT_ID = "default"
SCOPES = ["read", "write", "approve", "admin", "operator"]
_SECRET_CHARS = 43  # 256 bits in base 62
_TOKEN_KEY_BYTES = 32


@dataclass(frozen=True)
class Credentials:
    """What the file says."""

    target: str
    key: str


async def ensure_credentials(
    folder: Path, target: str, tenants: Tenants, keys: Keys
) -> Path:
    """Write the file for `target`; its key is kept while it is valid.

    Raises:
        StartupError: The file cannot be written.
    """
    path = folder / FILE_NAME
    key = _read_key(path)
    if key is None or not await _is_valid(key, keys):
        key = await _make_key(tenants, keys)
    _write(path, Credentials(target, key))
    return path


def _read_key(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text("utf-8"))["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def _is_valid(key: str, keys: Keys) -> bool:
    _, tenant_id, key_id, secret = (*key.split("_", 3), "", "", "")[:4]
    found = await keys.find(tenant_id, key_id)
    return found is not None and found.secret_digest == digest_secret(secret)


async def _make_key(tenants: Tenants, keys: Keys) -> str:
    await tenants.create(TENANT_ID, "Default", secrets.token_bytes(_TOKEN_KEY_BYTES))
    key_id = f"local-{secrets.token_hex(4)}"
    alphabet = string.ascii_letters + string.digits
    secret = "".join(secrets.choice(alphabet) for _ in range(_SECRET_CHARS))
    await keys.create(TENANT_ID, key_id, secret, SCOPES, "made at first start", None)
    return f"pd_{TENANT_ID}_{key_id}_{secret}"


def _write(path: Path, credentials: Credentials) -> None:
    text = json.dumps({"target": credentials.target, "key": credentials.key}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes the file readable by its owner only.
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(partial).replace(path)
    except OSError as exc:
        raise StartupError(
            f"cannot write the key file {path} ({exc.strerror}): choose a folder of "
            "yours with --data-dir"
        ) from exc
