-- A row of perdure_store.api_keys is a credential of a tenant.

-- name: find_key
-- A key with what its caller needs; none when unknown, expired or revoked.
-- $1 tenant_id, $2 key_id
SELECT k.secret_digest, k.scopes, t.token_key
FROM perdure_store.api_keys k
JOIN perdure_store.tenants t ON t.tenant_id = k.tenant_id
WHERE k.tenant_id = $1::text AND k.key_id = $2::text
  AND k.revoke_time IS NULL
  AND (k.expire_time IS NULL OR k.expire_time > now())

-- name: insert_key
-- Make a key unless its id is there; no row when it is.
-- $1 tenant_id, $2 key_id, $3 secret_digest, $4 scopes, $5 display_name, $6 expire_time
INSERT INTO perdure_store.api_keys (tenant_id, key_id, secret_digest, scopes, display_name, expire_time)
VALUES ($1::text, $2::text, $3::bytea, $4::text[], $5::text, $6::timestamptz)
ON CONFLICT DO NOTHING
RETURNING key_id, secret_digest, scopes, display_name, create_time, expire_time, revoke_time

-- name: get_key
-- One key, also when it is over.
-- $1 tenant_id, $2 key_id
SELECT key_id, secret_digest, scopes, display_name, create_time, expire_time, revoke_time
FROM perdure_store.api_keys
WHERE tenant_id = $1::text AND key_id = $2::text

-- name: list_keys
-- A page of a tenant's keys in the order of their ids.
-- $1 tenant_id, $2 after key_id, $3 limit
SELECT key_id, secret_digest, scopes, display_name, create_time, expire_time, revoke_time
FROM perdure_store.api_keys
WHERE tenant_id = $1::text AND key_id > $2::text
ORDER BY key_id
LIMIT $3::bigint

-- name: revoke_key
-- End a key; the time of its first revocation stays.
-- $1 tenant_id, $2 key_id
UPDATE perdure_store.api_keys
SET revoke_time = coalesce(revoke_time, now())
WHERE tenant_id = $1::text AND key_id = $2::text
RETURNING key_id, secret_digest, scopes, display_name, create_time, expire_time, revoke_time
