-- migrate:up

CREATE VIEW perdure.conversations AS
SELECT c.conversation_id AS id, c.tenant_id, c.user_id, c.agent_slug, c.message_count,
  c.create_time AS created_at, c.close_time AS closed_at
FROM perdure_store.conversations c
WHERE c.delete_time IS NULL;
COMMENT ON VIEW perdure.conversations IS 'One row for each conversation.';

CREATE VIEW perdure.messages AS
SELECT m.tenant_id, m.conversation_id, m.seq, m.message_id, m.role, m.content,
  m.tool_name, m.tool_args, m.tool_result, m.model,
  m.input_tokens AS in_tokens, m.output_tokens AS out_tokens,
  m.cached_tokens, m.reasoning_tokens, m.run_id, m.agent_id, m.step, m.superseded_by,
  coalesce(m.create_time, m.record_time) AS created_at
FROM perdure_store.messages m;
COMMENT ON VIEW perdure.messages IS 'One row for each message, in the order of seq. tool_name and tool_args are those of its first call; perdure.tool_calls has all.';

-- The n-th call of one id in a message is answered by the n-th result of that
-- id before the id is used again: providers reuse call ids.
CREATE VIEW perdure.tool_calls AS
SELECT k.tenant_id, k.conversation_id, k.seq, k.ordinal, k.call_id, k.name AS tool_name, k.arguments AS tool_args,
  r.seq AS result_seq, r.tool_result, coalesce(m.create_time, m.record_time) AS created_at
FROM perdure_store.message_tool_calls k
JOIN perdure_store.messages m
  ON m.tenant_id = k.tenant_id AND m.conversation_id = k.conversation_id AND m.seq = k.seq
LEFT JOIN LATERAL (
  SELECT t.seq, t.tool_result
  FROM perdure_store.messages t
  WHERE t.tenant_id = k.tenant_id AND t.conversation_id = k.conversation_id
    AND t.seq > k.seq AND t.role = 'tool' AND t.tool_call_id = k.call_id
    AND NOT EXISTS (
      SELECT FROM perdure_store.message_tool_calls n
      WHERE n.tenant_id = k.tenant_id AND n.conversation_id = k.conversation_id
        AND n.seq > k.seq AND n.seq < t.seq AND n.call_id = k.call_id)
  ORDER BY t.seq
  OFFSET (
    SELECT count(*) FROM perdure_store.message_tool_calls s
    WHERE s.tenant_id = k.tenant_id AND s.conversation_id = k.conversation_id
      AND s.seq = k.seq AND s.call_id = k.call_id AND s.ordinal < k.ordinal)
  LIMIT 1) r ON true;
COMMENT ON VIEW perdure.tool_calls IS 'One row for each tool call, with the result that answers it, if any.';

CREATE VIEW perdure.agent_checkpoints AS
SELECT k.tenant_id, k.agent_id, a.conversation_id, k.branch, k.step, k.keyframe_step, k.read_seq, k.schema_version,
  k.run_id, k.epoch, k.raw_bytes, k.frame_bytes, k.frame AS checkpoint, k.create_time AS created_at
FROM perdure_store.checkpoints k
JOIN perdure_store.agents a ON a.tenant_id = k.tenant_id AND a.agent_id = k.agent_id
WHERE k.delete_time IS NULL;
COMMENT ON VIEW perdure.agent_checkpoints IS 'One row for each checkpoint that is kept. checkpoint is a frame of codec/SPEC.md.';

-- migrate:down

DROP VIEW perdure.agent_checkpoints, perdure.tool_calls, perdure.messages, perdure.conversations;
