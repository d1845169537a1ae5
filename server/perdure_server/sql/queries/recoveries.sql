-- A row of perdure_store.recoveries is one StartRecovery, a row of
-- recovery_agents one agent of its plan.

-- name: insert_recovery
-- Make a recovery unless its id is there; no row when it is.
-- $1 tenant_id, $2 recovery_id, $3 even_live, $4 selector_digest
INSERT INTO perdure_store.recoveries (tenant_id, recovery_id, even_live, selector_digest)
VALUES ($1::text, $2::uuid, $3::boolean, $4::bytea)
ON CONFLICT DO NOTHING
RETURNING recovery_id, even_live, create_time, planned_time, selector_digest

-- name: get_recovery
-- One recovery.
-- $1 tenant_id, $2 recovery_id
SELECT recovery_id, even_live, create_time, planned_time, selector_digest
FROM perdure_store.recoveries
WHERE tenant_id = $1::text AND recovery_id = $2::uuid

-- name: last_planned
-- The last agent of an unfinished plan: agents are planned in the order of ids.
-- $1 tenant_id, $2 recovery_id
SELECT agent_id
FROM perdure_store.recovery_agents
WHERE tenant_id = $1::text AND recovery_id = $2::uuid
ORDER BY ordinal DESC
LIMIT 1

-- name: plan_agents
-- Add a page of agents to the plan.
-- $1 tenant_id, $2 recovery_id, $3 agent_ids, $4 epochs
SELECT perdure_store.plan_agents_1($1::text, $2::uuid, $3::text[], $4::bigint[])

-- name: mark_planned
-- The plan is complete.
-- $1 tenant_id, $2 recovery_id
UPDATE perdure_store.recoveries
SET planned_time = coalesce(planned_time, now())
WHERE tenant_id = $1::text AND recovery_id = $2::uuid

-- name: fence_agents
-- Fence the next planned agents; returns how many were decided.
-- $1 tenant_id, $2 recovery_id, $3 limit, $4 even_live, $5 connected_ms, $6 wait
SELECT perdure_store.fence_agents_1($1::text, $2::uuid, $3::bigint, $4::boolean, $5::bigint, $6::boolean)

-- name: count_planned
-- Agents of the plan that are not decided yet.
-- $1 tenant_id, $2 recovery_id
SELECT count(*)
FROM perdure_store.recovery_agents
WHERE tenant_id = $1::text AND recovery_id = $2::uuid AND state = 'planned'

-- name: take_agents
-- Hand fenced agents to a lease.
-- $1 to $8 as the parameters of take_agents_1
SELECT outcome, agent_id, epoch, claim_id
FROM perdure_store.take_agents_1(
  $1::text, $2::uuid, $3::uuid, $4::text, $5::jsonb, $6::bigint, $7::bigint, $8::bigint)

-- name: held_agents
-- Agents of a lease that have not written since they were claimed: a stream that
-- broke may not have delivered them.
-- $1 tenant_id, $2 lease_id, $3 recovery_id (NULL: any)
SELECT a.agent_id, a.epoch, a.claim_id
FROM perdure_store.agents a
LEFT JOIN perdure_store.branches b
  ON b.tenant_id = a.tenant_id AND b.agent_id = a.agent_id AND b.branch = a.canonical_branch
WHERE a.tenant_id = $1::text AND a.lease_id = $2::uuid AND b.head_epoch IS DISTINCT FROM a.epoch
  AND ($3::uuid IS NULL OR EXISTS (
    SELECT FROM perdure_store.recovery_agents q
    WHERE q.tenant_id = $1 AND q.recovery_id = $3 AND q.agent_id = a.agent_id
      AND q.state = 'restored' AND q.epoch = a.epoch))
ORDER BY a.agent_id

-- name: read_chains
-- The newest chains of agents, a statement after they were claimed. An agent
-- whose claim is no longer the one given has no row; one without a checkpoint
-- has one row with step NULL.
-- $1 tenant_id, $2 agent_ids, $3 epochs
SELECT r.agent_id AS wanted_agent_id, b.head_step, b.head_digest, c.agent_id, c.branch, c.step, c.parent_step, c.base_step,
  c.keyframe_step, c.read_seq, c.schema_version, c.epoch, c.raw_bytes, c.frame_bytes, c.create_time, c.delete_time,
  c.raw_digest, c.run_id, c.metadata, c.frame
FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS r (agent_id, epoch, place)
CROSS JOIN LATERAL (
  SELECT x.canonical_branch FROM perdure_store.agents x
  WHERE x.tenant_id = $1::text AND x.agent_id = r.agent_id AND x.epoch = r.epoch
  LIMIT 1) a
LEFT JOIN LATERAL (
  SELECT x.branch, x.head_step, x.head_digest, x.keyframe_step FROM perdure_store.branches x
  WHERE x.tenant_id = $1::text AND x.agent_id = r.agent_id AND x.branch = a.canonical_branch
  LIMIT 1) b ON true
LEFT JOIN LATERAL (
  SELECT k.* FROM perdure_store.checkpoints k
  WHERE k.tenant_id = $1::text AND k.agent_id = r.agent_id AND k.branch = b.branch
    AND k.step BETWEEN b.keyframe_step AND b.head_step AND k.keyframe_step = b.keyframe_step
  ORDER BY k.step
  LIMIT 65) c ON true
ORDER BY r.place, c.step

-- name: read_unread
-- For each agent the messages that it has not read, less those that it wrote
-- itself at or before its step, cut where their bodies pass a number of bytes.
-- $1 tenant_id, $2 agent_ids, $3 conversation_ids, $4 read_seqs, $5 steps, $6 limit rows, $7 limit bytes
SELECT r.agent_id AS wanted_agent_id, m.seq, m.message_id, m.record_time, m.agent_id, m.step, m.superseded_by, m.digest, m.body
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
  WITH ORDINALITY AS r (agent_id, conversation_id, read_seq, step, place)
CROSS JOIN LATERAL (
  SELECT w.*
  FROM (
    SELECT u.*, sum(length(u.body)) OVER (ORDER BY u.seq) AS bytes_so_far
    FROM (
      SELECT x.seq, x.message_id, x.record_time, x.agent_id, x.step, x.superseded_by, x.digest, x.body
      FROM perdure_store.messages x
      WHERE x.tenant_id = $1::text AND x.conversation_id = r.conversation_id AND x.seq >= r.read_seq
        AND x.superseded_by IS NULL
        AND NOT (x.agent_id = r.agent_id AND x.step <= r.step)
      ORDER BY x.seq
      LIMIT $6::bigint) u) w
  WHERE w.bytes_so_far <= $7::bigint) m
ORDER BY r.place, m.seq

-- name: list_progress
-- How far each agent of a recovery is. Resumed is derived: the new owner's epoch
-- stands at the head or in a message; an agent whose new worker's lease is over
-- is back in the pool.
-- $1 tenant_id, $2 recovery_id, $3 connected_ms
SELECT q.agent_id, q.head_step, q.chain_bytes, l.owner,
  CASE
    WHEN q.state <> 'restored' THEN q.state
    WHEN b.head_epoch >= q.epoch OR EXISTS (
      SELECT FROM perdure_store.messages m
      WHERE m.tenant_id = $1::text AND m.conversation_id = a.conversation_id AND m.seq >= q.message_count
        AND m.agent_id = q.agent_id AND m.epoch >= q.epoch) THEN 'resumed'
    WHEN perdure_store.lease_is_live(l.revoke_time, l.expire_time, l.ttl_ms, $3::bigint) THEN 'restored'
    ELSE 'fenced' END AS state
FROM perdure_store.recovery_agents q
JOIN perdure_store.agents a ON a.tenant_id = $1::text AND a.agent_id = q.agent_id
LEFT JOIN perdure_store.leases l ON l.tenant_id = $1::text AND l.lease_id = q.lease_id
LEFT JOIN perdure_store.branches b
  ON b.tenant_id = $1::text AND b.agent_id = q.agent_id AND b.branch = a.canonical_branch
WHERE q.tenant_id = $1::text AND q.recovery_id = $2::uuid
ORDER BY q.ordinal
