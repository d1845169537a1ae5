-- What a new owner is given. By explicit key arrays and LATERAL with LIMIT, so that
-- fresh tables without statistics do not flip a plan.

-- name: list_claimed
-- Agents that a lease holds by the claims of one stream, in their order.
-- $1 tenant_id, $2 lease_id, $3 after claim_id, $4 up to claim_id
SELECT 'acquired' AS outcome, agent_id, epoch, claim_id
FROM perdure_store.agents
WHERE tenant_id = $1::text AND lease_id = $2::uuid AND claim_id > $3::uuid AND claim_id <= $4::uuid
ORDER BY claim_id, agent_id

-- name: free_agent
-- Free one agent that cannot be restored.
-- $1 tenant_id, $2 agent_id, $3 epoch, $4 claim_id
UPDATE perdure_store.agents
SET lease_id = NULL, claim_id = NULL
WHERE tenant_id = $1::text AND agent_id = $2::text AND epoch = $3::bigint AND claim_id = $4::uuid

-- name: read_heads
-- Agents that are still held by these fences, in their order.
-- $1 tenant_id, $2 agent_ids, $3 epochs, $4 claim_ids, $5 connected_ms
SELECT a.agent_id, a.conversation_id, a.agent_slug, a.parent_agent_id, a.framework, a.epoch, a.lease_id,
  CASE
    WHEN a.lease_id IS NULL THEN 'free'
    WHEN perdure_store.lease_is_live(l.revoke_time, l.expire_time, l.ttl_ms, $5::bigint) THEN 'live'
    ELSE 'lost' END AS lease_state,
  l.owner, l.labels, l.expire_time, a.canonical_branch, coalesce(b.head_step, 0) AS head_step,
  coalesce(b.head_schema_version, 0) AS schema_version,
  CASE WHEN b.head_digest IS NULL THEN 0 ELSE b.chain_bytes END AS chain_bytes, c.message_count, a.create_time,
  k.claim_id, coalesce(b.keyframe_step, 0) AS keyframe_step, b.head_digest IS NOT NULL AS has_checkpoint
FROM unnest($2::text[], $3::bigint[], $4::uuid[]) WITH ORDINALITY AS k (agent_id, epoch, claim_id, place)
CROSS JOIN LATERAL (
  SELECT x.* FROM perdure_store.agents x
  WHERE x.tenant_id = $1::text AND x.agent_id = k.agent_id AND x.epoch = k.epoch AND x.claim_id = k.claim_id
  LIMIT 1) a
CROSS JOIN LATERAL (
  SELECT x.* FROM perdure_store.conversations x
  WHERE x.tenant_id = $1 AND x.conversation_id = a.conversation_id LIMIT 1) c
LEFT JOIN LATERAL (
  SELECT x.* FROM perdure_store.branches x
  WHERE x.tenant_id = $1 AND x.agent_id = a.agent_id AND x.branch = a.canonical_branch LIMIT 1) b ON true
LEFT JOIN LATERAL (
  SELECT x.* FROM perdure_store.leases x
  WHERE x.tenant_id = $1 AND x.lease_id = a.lease_id LIMIT 1) l ON true
ORDER BY k.place

-- name: read_chains
-- The frames from keyframe to head of some agents; place is 1-based.
-- $1 tenant_id, $2 agent_ids, $3 branches, $4 keyframe_steps, $5 head_steps
SELECT k.place, c.agent_id, c.branch, c.step, c.parent_step, c.base_step, c.keyframe_step, c.read_seq,
  c.schema_version, c.epoch, c.raw_bytes, c.frame_bytes, c.create_time, c.delete_time, c.raw_digest, c.run_id,
  c.metadata, c.frame
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
  WITH ORDINALITY AS k (agent_id, branch, keyframe_step, head_step, place)
CROSS JOIN LATERAL (
  SELECT x.* FROM perdure_store.checkpoints x
  WHERE x.tenant_id = $1::text AND x.agent_id = k.agent_id AND x.branch = k.branch
    AND x.step >= k.keyframe_step AND x.step <= k.head_step AND x.keyframe_step = k.keyframe_step
  ORDER BY x.step
  LIMIT 65) c
ORDER BY k.place, c.step

-- name: read_new_messages
-- Messages that some agents have not read, less their own up to a step. Of each
-- agent as many as fit into its number of bytes, then the next one without body.
-- $1 tenant_id, $2 conversation_ids, $3 from seqs, $4 to seqs, $5 agent_ids, $6 own steps, $7 limits in bytes, $8 limit rows
SELECT k.place, m.seq, m.message_id, m.record_time, m.agent_id, m.step, m.superseded_by, m.digest, m.body
FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[])
  WITH ORDINALITY AS k (conversation_id, from_seq, to_seq, agent_id, own_step, limit_bytes, place)
CROSS JOIN LATERAL (
  SELECT w.seq, w.message_id, w.record_time, w.agent_id, w.step, w.superseded_by, w.digest,
    CASE WHEN w.page_bytes <= k.limit_bytes AND w.page_rows < $8::bigint THEN w.body END AS body
  FROM (
    SELECT x.*, length(x.body) AS body_bytes, sum(length(x.body)) OVER (ORDER BY x.seq) AS page_bytes,
      row_number() OVER (ORDER BY x.seq) AS page_rows
    FROM (
      SELECT y.seq, y.message_id, y.record_time, y.agent_id, y.step, y.superseded_by, y.digest, y.body
      FROM perdure_store.messages y
      WHERE y.tenant_id = $1::text AND y.conversation_id = k.conversation_id
        AND y.seq >= k.from_seq AND y.seq < k.to_seq AND y.superseded_by IS NULL
        AND NOT (y.agent_id = k.agent_id AND y.step <= k.own_step)
      ORDER BY y.seq
      LIMIT $8) x) w
  WHERE w.page_bytes - w.body_bytes <= k.limit_bytes
  ORDER BY w.seq
  LIMIT $8) m
ORDER BY k.place, m.seq
