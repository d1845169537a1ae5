-- Run by psql in database postgres at every start of the embedded cluster.
SELECT 'CREATE DATABASE perdure TEMPLATE template0'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'perdure')
\gexec
