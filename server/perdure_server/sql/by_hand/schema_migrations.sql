CREATE SCHEMA IF NOT EXISTS perdure_store;
CREATE TABLE IF NOT EXISTS perdure_store.schema_migrations (
  version varchar NOT NULL PRIMARY KEY
);
