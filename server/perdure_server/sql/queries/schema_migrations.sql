-- One row is one applied migration; dbmate writes it in the migration's transaction.

-- name: list_applied_migrations
-- Return every applied version, oldest first.
SELECT version
FROM perdure_store.schema_migrations
ORDER BY version
LIMIT 10000
