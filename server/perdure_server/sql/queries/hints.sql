-- Hints between servers; alone in its transaction, on a connection of its own.

-- name: notify
-- Tell every listener; at most 8000 bytes.
-- $1 channel, $2 payload
SELECT pg_notify($1::text, $2::text)
