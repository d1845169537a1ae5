"""Opaque tokens: signed with a key of the tenant, so that every server reads them.

A token is ``base64url(tag + payload)``: the first 16 bytes of HMAC-SHA256 over the
kind and the payload, then the payload as JSON.
"""

import base64
import binascii
import hashlib
import hmac
import json

_TAG_BYTES = 16
MAX_TOKEN_BYTES = 4096


class TokenError(ValueError):
    """The text is no token of this kind and tenant."""


def seal(key: bytes, kind: str, fields: list[object]) -> str:
    """Return a token that holds `fields` (JSON values) for one `kind` of use."""
    payload = json.dumps(fields, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_tag(key, kind, payload) + payload).decode()


def open_token(key: bytes, kind: str, token: str) -> list[object]:
    """Return the fields of a token.

    Raises:
        TokenError: It was altered, or made for another tenant or kind.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenError("too long")
    try:
        raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as exc:
        raise TokenError("not base64") from exc
    tag, payload = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    if not hmac.compare_digest(tag, _tag(key, kind, payload)):
        raise TokenError("not signed by this tenant's key for this use")
    fields = json.loads(payload)
    if not isinstance(fields, list):
        raise TokenError("not a list")
    return fields


def _tag(key: bytes, kind: str, payload: bytes) -> bytes:
    signed = kind.encode() + b"\0" + payload
    return hmac.digest(key, signed, hashlib.sha256)[:_TAG_BYTES]
