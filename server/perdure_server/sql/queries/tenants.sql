-- A row of perdure_store.tenants is a customer, team or product.

-- name: insert_tenant
-- Make a tenant unless it is there; no row when it is.
-- $1 tenant_id, $2 display_name, $3 token_key
INSERT INTO perdure_store.tenants (tenant_id, display_name, token_key)
VALUES ($1::text, $2::text, $3::bytea)
ON CONFLICT DO NOTHING
RETURNING tenant_id, display_name, create_time

-- name: get_tenant
-- One tenant.
-- $1 tenant_id
SELECT tenant_id, display_name, create_time
FROM perdure_store.tenants
WHERE tenant_id = $1::text

-- name: list_tenants
-- A page of tenants in the order of their ids.
-- $1 after tenant_id, $2 limit
SELECT tenant_id, display_name, create_time
FROM perdure_store.tenants
WHERE tenant_id > $1::text
ORDER BY tenant_id
LIMIT $2::bigint
