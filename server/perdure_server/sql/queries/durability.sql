-- What decides whether an acknowledged write survives.

-- name: get_durability_facts
-- The settings of the server and of this role.
SELECT
  current_setting('server_version') AS postgres_version,
  current_setting('fsync') AS fsync,
  current_setting('full_page_writes') AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit,
  current_setting('synchronous_standby_names') AS synchronous_standby_names,
  current_setting('default_transaction_isolation') AS default_transaction_isolation,
  pg_is_in_recovery() AS is_standby,
  pg_database_size(current_database()) AS database_bytes
LIMIT 1
