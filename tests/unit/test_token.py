"""Tokens: what was sealed comes back, and only for its tenant and use."""

import pytest

from perdure_server.token import MAX_TOKEN_BYTES, TokenError, open_token, seal

KEY = b"k" * 32


def test_what_was_sealed_comes_back() -> None:
    fields: list[object] = ["id é\0", 2**63 - 1, "", None]
    token = seal(KEY, "messages", fields)
    assert open_token(KEY, "messages", token) == fields
    assert token.isascii()


def test_the_longest_ids_stay_under_the_limit() -> None:
    token = seal(KEY, "messages", ["\x01" * 255, 2**63 - 1, 2**63 - 1, 2**63 - 1])
    assert len(token) < MAX_TOKEN_BYTES
    assert open_token(KEY, "messages", token)


def test_another_key_or_use_opens_nothing() -> None:
    token = seal(KEY, "messages", [1])
    for key, kind in ((b"x" * 32, "messages"), (KEY, "page:messages"), (KEY, "")):
        with pytest.raises(TokenError):
            open_token(key, kind, token)


def test_a_token_altered_in_any_place_is_refused() -> None:
    token = seal(KEY, "messages", ["conversation", 7])
    for place, old in enumerate(token):
        altered = token[:place] + ("A" if old != "A" else "B") + token[place + 1 :]
        with pytest.raises(TokenError):
            open_token(KEY, "messages", altered)


@pytest.mark.parametrize("token", ["", "x", "é", "=" * 9, "A" * 5000, "AAAA", "\0"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenError):
        open_token(KEY, "messages", token)
