"""Page tokens: the last id of a page, signed for its tenant and list."""

from perdure_server.caller import current_caller
from perdure_server.errors import PageTokenInvalid
from perdure_server.token import TokenError, open_token, seal


def page_token(kind: str, ids: list[str], size: int) -> str:
    """Return the token after the `size`-th of `ids`, or "" when there are no more.

    A page is read with one row more than it shows, which tells whether it is the last.
    """
    if len(ids) <= size:
        return ""
    return seal(current_caller().token_key, f"page:{kind}", [ids[size - 1]])


def open_page_token(kind: str, token: str) -> str:
    """Return the id after which a page begins; "" for the first page.

    Raises:
        PageTokenInvalid: Not made for this list and tenant.
    """
    if not token:
        return ""
    try:
        fields = open_token(current_caller().token_key, f"page:{kind}", token)
    except TokenError as exc:
        raise PageTokenInvalid("start at the first page", path="page_token") from exc
    return str(fields[0])
