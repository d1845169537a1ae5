-- A row of perdure_store.conversations is a sequence of messages.

-- name: insert_conversation
-- Make a conversation unless its id is there; no row when it is.
-- $1 tenant_id, $2 conversation_id, $3 user_id, $4 agent_slug, $5 metadata, $6 source_format, $7 source_id, $8 content_digest
INSERT INTO perdure_store.conversations (
  tenant_id, conversation_id, user_id, agent_slug, metadata, source_format, source_id, content_digest)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bytea)
ON CONFLICT DO NOTHING
RETURNING conversation_id, user_id, agent_slug, message_count, revision, generation, owned, metadata,
  source_format, source_id, content_digest, create_time, close_time, delete_time

-- name: get_conversation
-- One conversation, also a deleted one.
-- $1 tenant_id, $2 conversation_id
SELECT conversation_id, user_id, agent_slug, message_count, revision, generation, owned, metadata,
  source_format, source_id, content_digest, create_time, close_time, delete_time
FROM perdure_store.conversations
WHERE tenant_id = $1::text AND conversation_id = $2::text

-- name: list_conversations
-- A page of conversations in the order of their ids. NULL does not filter.
-- $1 tenant_id, $2 after conversation_id, $3 user_id, $4 agent_slug, $5 limit
SELECT conversation_id, user_id, agent_slug, message_count, revision, generation, owned, metadata,
  source_format, source_id, content_digest, create_time, close_time, delete_time
FROM perdure_store.conversations
WHERE tenant_id = $1::text AND conversation_id > $2::text AND delete_time IS NULL
  AND ($3::text IS NULL OR user_id = $3)
  AND ($4::text IS NULL OR agent_slug = $4)
ORDER BY conversation_id
LIMIT $5::bigint
