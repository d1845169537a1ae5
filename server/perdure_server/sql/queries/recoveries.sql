-- A row of perdure_store.recoveries is one StartRecovery; recovery_agents is its plan.

-- name: insert_recovery
-- Make a recovery; harmless when it exists.
-- $1 tenant_id, $2 recovery_id, $3 even_live, $4 selector_digest
INSERT INTO perdure_store.recoveries (tenant_id, recovery_id, even_live, selector_digest)
VALUES ($1::text, $2::uuid, $3::boolean, $4::bytea)
ON CONFLICT DO NOTHING

-- name: get_recovery
-- One recovery.
-- $1 tenant_id, $2 recovery_id
SELECT recovery_id, even_live, create_time, planned_time, selector_digest
FROM perdure_store.recoveries
WHERE tenant_id = $1::text AND recovery_id = $2::uuid

-- name: plan_agents
-- Add the next page of agents to a plan; true when it is complete.
-- $1 to $12 as the parameters of plan_agents_1
SELECT perdure_store.plan_agents_1(
  $1::text, $2::uuid, $3::text[], $4::text, $5::jsonb, $6::text, $7::text, $8::text, $9::text, $10::bigint,
  $11::bigint, $12::bigint)

-- name: list_descendants
-- Agents below the given ones that are not among them, for the count of a dry run.
-- $1 tenant_id, $2 agent_ids
WITH RECURSIVE tree (agent_id, depth) AS (
  SELECT n.agent_id COLLATE "C", 0 FROM unnest($2::text[]) AS n (agent_id)
  UNION
  SELECT a.agent_id, t.depth + 1
  FROM tree t
  CROSS JOIN LATERAL (
    SELECT x.agent_id FROM perdure_store.agents x
    WHERE x.tenant_id = $1::text AND x.parent_agent_id = t.agent_id AND x.delete_time IS NULL
    LIMIT 100000) a
  WHERE t.depth < 100
)
SELECT DISTINCT agent_id
FROM tree
WHERE NOT agent_id = ANY ($2)
ORDER BY agent_id

-- name: fence_agents
-- Fence the next planned agents; returns how many were decided.
-- $1 to $6 as the parameters of fence_agents_1
SELECT perdure_store.fence_agents_1($1::text, $2::uuid, $3::bigint, $4::boolean, $5::bigint, $6::boolean)

-- name: has_planned
-- Whether agents of a plan are still to be fenced.
-- $1 tenant_id, $2 recovery_id
SELECT EXISTS (
  SELECT FROM perdure_store.recovery_agents
  WHERE tenant_id = $1::text AND recovery_id = $2::uuid AND state = 'planned')

-- name: has_waiting
-- Whether agents wait in the pool, or for their fence.
-- $1 tenant_id, $2 recovery_id
SELECT EXISTS (
  SELECT FROM perdure_store.recovery_agents
  WHERE tenant_id = $1::text AND recovery_id = $2::uuid AND state IN ('planned', 'fenced'))

-- name: take_agents
-- Hand agents of a recovery to a lease.
-- $1 to $9 as the parameters of take_agents_1
SELECT outcome, agent_id, epoch, claim_id
FROM perdure_store.take_agents_1(
  $1::text, $2::uuid, $3::uuid, $4::text, $5::jsonb, $6::bigint, $7::bigint, $8::boolean, $9::uuid[])

-- name: mark_broken
-- Take an agent that cannot be restored out of the pool.
-- $1 tenant_id, $2 recovery_id, $3 agent_id, $4 epoch
UPDATE perdure_store.recovery_agents
SET state = 'broken'
WHERE tenant_id = $1::text AND recovery_id = $2::uuid AND agent_id = $3::text AND epoch = $4::bigint

-- name: list_progress
-- A page of a plan and how far each agent is. An agent has resumed when its new
-- owner, or one after him, has moved its head, written a message, or given it back.
-- $1 tenant_id, $2 recovery_id, $3 after agent_id, $4 limit, $5 connected_ms
SELECT q.agent_id, a.parent_agent_id, coalesce(l.owner, '') AS owner, q.head_step, q.chain_bytes,
  CASE
    WHEN q.state NOT IN ('fenced', 'restored') THEN q.state
    WHEN q.state = 'restored' AND (
      b.head_epoch >= q.epoch
      OR (a.epoch = q.epoch AND a.lease_id IS NULL)
      OR EXISTS (
        SELECT FROM perdure_store.messages m
        WHERE m.tenant_id = $1 AND m.conversation_id = a.conversation_id AND m.seq >= q.message_count
          AND m.agent_id = q.agent_id AND m.epoch >= q.epoch)) THEN 'resumed'
    WHEN a.epoch IS DISTINCT FROM q.epoch THEN 'moved'
    WHEN q.state = 'restored' AND NOT perdure_store.lease_is_live(
      l.revoke_time, l.expire_time, l.ttl_ms, $5::bigint) THEN 'fenced'
    ELSE q.state END AS state
FROM (
  SELECT p.* FROM perdure_store.recovery_agents p
  WHERE p.tenant_id = $1::text AND p.recovery_id = $2::uuid AND p.agent_id > $3::text
  ORDER BY p.agent_id
  LIMIT $4::bigint) q
LEFT JOIN LATERAL (
  SELECT x.* FROM perdure_store.agents x
  WHERE x.tenant_id = $1 AND x.agent_id = q.agent_id LIMIT 1) a ON true
LEFT JOIN LATERAL (
  SELECT x.* FROM perdure_store.branches x
  WHERE x.tenant_id = $1 AND x.agent_id = q.agent_id AND x.branch = a.canonical_branch LIMIT 1) b ON true
LEFT JOIN LATERAL (
  SELECT x.* FROM perdure_store.leases x
  WHERE x.tenant_id = $1 AND x.lease_id = q.lease_id LIMIT 1) l ON true
ORDER BY q.agent_id
