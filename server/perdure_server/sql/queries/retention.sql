-- Removing checkpoints, by policy or all.

-- name: prune_agent
-- Remove steps of one agent by a policy.
-- $1 tenant_id, $2 agent_id, $3 keep_steps, $4 keep_age_ms, $5 max_age_ms, $6 dry_run
SELECT checkpoint_count, frame_bytes
FROM perdure_store.prune_agent_1($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::boolean)

-- name: drop_checkpoints
-- Remove every checkpoint of one agent.
-- $1 tenant_id, $2 agent_id, $3 dry_run
SELECT checkpoint_count, frame_bytes
FROM perdure_store.drop_checkpoints_1($1::text, $2::text, $3::boolean)

-- name: get_policy
-- A tenant's own policy, if it has one.
-- $1 tenant_id
SELECT keep_steps, keep_age_ms, max_age_ms
FROM perdure_store.retention_policies
WHERE tenant_id = $1::text

-- name: list_tenant_ids
-- A page of tenants, for the sweeper.
-- $1 after tenant_id, $2 limit
SELECT tenant_id
FROM perdure_store.tenants
WHERE tenant_id > $1::text
ORDER BY tenant_id
LIMIT $2::bigint
