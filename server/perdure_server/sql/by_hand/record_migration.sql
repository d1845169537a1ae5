INSERT INTO perdure_store.schema_migrations (version) VALUES ('{version}');
