"""From the `authorization` entry of a call to its caller.

Answers are remembered for 5 seconds, refusals too, so that a wrong key costs the
database at most one query in that time.
"""

import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from perdure_server.caller import Caller
from perdure_server.errors import KeyInvalid
from perdure_server.store.keys import Keys, digest_secret

REMEMBER_S = 5.0
MAX_REMEMBERED = 10_000

_KEY = re.compile(r"pd_([a-z0-9-]{1,63})_([a-z0-9-]{1,63})_([A-Za-z0-9]{32,128})")


class Authentication:
    """Knows the callers of keys."""

    def __init__(
        self, keys: Keys, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._clock_s = clock_s
        self._known: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()

    async def caller_of(
        self, metadata: Iterable[tuple[str, str | bytes]] | None
    ) -> Caller:
        """Return the caller.

        Raises:
            KeyInvalid: No key, or one that is unknown, expired or revoked.
        """
        text = _bearer(metadata)
        if text is None:
            raise KeyInvalid("send `authorization: Bearer pd_...` with every call")
        fingerprint = hashlib.sha256(text.encode()).digest()
        known = self._known.get(fingerprint)
        if known is None or known[0] <= self._clock_s():
            caller = await self._look_up(text)
            self._remember(fingerprint, caller)
        else:
            caller = known[1]
        if caller is None:
            raise KeyInvalid("the key is unknown, expired or revoked")
        return caller

    async def _look_up(self, text: str) -> Caller | None:
        parts = _KEY.fullmatch(text)
        if parts is None:
            return None
        tenant_id, key_id, secret = parts.groups()
        found = await self._keys.find(tenant_id, key_id)
        if found is None:
            return None
        if not hmac.compare_digest(found.secret_digest, digest_secret(secret)):
            return None
        return found.caller

    def _remember(self, fingerprint: bytes, caller: Caller | None) -> None:
        self._known[fingerprint] = (self._clock_s() + REMEMBER_S, caller)
        self._known.move_to_end(fingerprint)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)


def _bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str):
            kind, _, text = value.partition(" ")
            if kind.lower() == "bearer":
                return text.strip()
    return None
