-- What a server looks at before it serves.

-- name: get_database_facts
-- Return what decides whether this database can be used at all.
SELECT
  current_setting('server_version_num')::int AS version_number,
  current_setting('server_version') AS version,
  current_setting('server_encoding') AS encoding,
  pg_is_in_recovery() AS is_standby,
  current_setting('transaction_read_only')::boolean AS is_read_only,
  to_regclass('perdure_store.schema_migrations') IS NOT NULL AS is_migrated
LIMIT 1
