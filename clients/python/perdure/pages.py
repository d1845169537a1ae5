"""Lists that come in pages, as one asynchronous iteration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol, TypeVar


class Page(Protocol):
    """A response with a token for the next one."""

    @property
    def next_page_token(self) -> str:
        """Empty: this was the last."""
        ...


_Page = TypeVar("_Page", bound=Page)
_Item = TypeVar("_Item")


async def iterate_pages(
    fetch: Callable[[str], Awaitable[_Page]],
    items_of: Callable[[_Page], Iterable[_Item]],
) -> AsyncIterator[_Item]:
    """Yield the items of all pages, fetching each page when it is needed."""
    token = ""
    while True:
        page = await fetch(token)
        for item in items_of(page):
            yield item
        token = page.next_page_token
        if not token:
            return
