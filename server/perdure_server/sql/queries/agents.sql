-- A row of perdure_store.agents is the unit that is owned and restored.

-- name: select_agents
-- A page of the agents that a selector picks; NULL does not filter.
-- $1 to $12 as the parameters of select_agents_1
SELECT agent_id, conversation_id, agent_slug, parent_agent_id, framework, epoch, lease_id, lease_state, owner, labels,
  expire_time, canonical_branch, head_step, schema_version, chain_bytes, message_count, create_time
FROM perdure_store.select_agents_1(
  $1::text, $2::text[], $3::text, $4::jsonb, $5::text, $6::text, $7::text, $8::text, $9::bigint, $10::bigint,
  $11::text, $12::bigint)

-- name: acquire_agents
-- Claim agents by id; the function says what each row means.
-- $1 to $12 as the parameters of acquire_agents_1
SELECT request, outcome, agent_id, epoch, claim_id, event_time
FROM perdure_store.acquire_agents_1(
  $1::text, $2::uuid, $3::text, $4::jsonb, $5::bigint, $6::bigint, $7::text[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::uuid[])

-- name: claim_agents
-- Claim agents that a selector picked, each by the epoch that was seen.
-- $1 to $9 as the parameters of claim_agents_1
SELECT outcome, agent_id, epoch, claim_id
FROM perdure_store.claim_agents_1(
  $1::text, $2::uuid, $3::text, $4::jsonb, $5::bigint, $6::bigint, $7::text[], $8::bigint[], $9::uuid[])

-- name: renew_lease
-- Renew a lease, and name the agents that were lost meanwhile.
-- $1 to $5 as the parameters of renew_lease_1
SELECT outcome, owner, labels, ttl_ms, expire_time, stale_agents
FROM perdure_store.renew_lease_1($1::text, $2::uuid, $3::text[], $4::bigint[], $5::uuid[])

-- name: get_lease
-- One lease.
-- $1 tenant_id, $2 lease_id
SELECT owner, labels, ttl_ms, expire_time
FROM perdure_store.leases
WHERE tenant_id = $1::text AND lease_id = $2::uuid

-- name: release_agents
-- Free agents, and end a lease.
-- $1 to $5 as the parameters of release_agents_1
SELECT agent_id, released
FROM perdure_store.release_agents_1($1::text, $2::text[], $3::bigint[], $4::uuid[], $5::uuid)

-- name: get_agent
-- What a reader must know of one agent, also a deleted one.
-- $1 tenant_id, $2 agent_id
SELECT agent_id, conversation_id, canonical_branch, epoch, delete_time
FROM perdure_store.agents
WHERE tenant_id = $1::text AND agent_id = $2::text
