"""Conversations without their messages."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure_server.errors import ConversationNotFound, Deleted
from perdure_server.store.database import Database
from perdure_server.store.queries import load_queries

_SQL = load_queries("conversations")


@dataclass(frozen=True)
class Conversation:
    """A conversation as it is kept."""

    conversation_id: str
    user_id: str
    agent_slug: str
    message_count: int
    revision: int
    generation: int
    owned: bool
    metadata: str
    source_format: str
    source_id: str
    content_digest: bytes | None
    create_time: datetime
    close_time: datetime | None
    delete_time: datetime | None


@dataclass(frozen=True)
class NewConversation:
    """What a creating request states; `content_digest` stands for all of it."""

    conversation_id: str
    user_id: str
    agent_slug: str
    metadata: str
    source_format: str
    source_id: str
    content_digest: bytes


class Conversations:
    """The conversations of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant_id: str, new: NewConversation
    ) -> tuple[Conversation, bool]:
        """Make a conversation; return it, or the one there, and whether it is new.

        Raises:
            Deleted: The id belongs to a deleted conversation.
        """
        row = await self._database.fetchrow(
            _SQL["insert_conversation"],
            tenant_id,
            new.conversation_id,
            new.user_id,
            new.agent_slug,
            new.metadata,
            new.source_format,
            new.source_id,
            new.content_digest,
        )
        if row is not None:
            return _conversation(row), True
        return await self.get(tenant_id, new.conversation_id), False

    async def get(self, tenant_id: str, conversation_id: str) -> Conversation:
        """Return a conversation.

        Raises:
            ConversationNotFound: There is none.
            Deleted: It was deleted.
        """
        row = await self._database.fetchrow(
            _SQL["get_conversation"], tenant_id, conversation_id
        )
        if row is None:
            raise ConversationNotFound(
                "no such conversation", conversation_id=conversation_id
            )
        found = _conversation(row)
        if found.delete_time is not None:
            raise Deleted(
                "the conversation was deleted",
                conversation_id=conversation_id,
                delete_time=found.delete_time,
            )
        return found

    async def page(
        self,
        tenant_id: str,
        after: str,
        limit: int,
        *,
        user_id: str | None,
        agent_slug: str | None,
    ) -> list[Conversation]:
        """Return at most `limit` conversations with ids after `after`."""
        rows = await self._database.fetch(
            _SQL["list_conversations"], tenant_id, after, user_id, agent_slug, limit
        )
        return [_conversation(row) for row in rows]


def _conversation(row: asyncpg.Record) -> Conversation:
    return Conversation(*row.values())
