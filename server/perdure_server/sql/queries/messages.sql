-- A row of perdure_store.messages is one message at its place.

-- name: append_messages
-- One append; the function says what each row means.
-- $1 to $32 as the parameters of append_messages_1
SELECT outcome, message_id, seq, message_count, generation, current_epoch, stored_digest, event_time
FROM perdure_store.append_messages_1(
  $1::text, $2::text, $3::text[], $4::bytea[], $5::text[], $6::bytea[], $7::timestamptz[], $8::text[],
  $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::bigint[],
  $17::bigint[], $18::bigint[], $19::bigint[], $20::text[], $21::text[], $22::text[], $23::bigint, $24::bigint,
  $25::bigint, $26::bigint, $27::boolean, $28::boolean, $29::text, $30::bigint, $31::uuid, $32::bigint)

-- name: append_many
-- The appends that gathered for one conversation.
-- $1 to $27 as the parameters of append_many_1
SELECT request, outcome, message_id, seq, message_count, generation, current_epoch, stored_digest, event_time
FROM perdure_store.append_many_1(
  $1::text, $2::text, $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
  $8::text[], $9::bytea[], $10::text[], $11::bytea[], $12::timestamptz[], $13::text[], $14::text[], $15::text[],
  $16::text[], $17::text[], $18::text[], $19::text[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[],
  $24::bigint[], $25::text[], $26::text[], $27::text[])

-- name: read_forward
-- Messages from a seq on, cut before their bodies pass a number of bytes; the
-- first is always there, so a larger one comes alone.
-- $1 tenant_id, $2 conversation_id, $3 first seq, $4 include superseded, $5 limit rows, $6 limit bytes
SELECT seq, message_id, record_time, agent_id, step, superseded_by, digest, body
FROM (
  SELECT m.*, sum(length(m.body)) OVER (ORDER BY m.seq) AS page_bytes, row_number() OVER (ORDER BY m.seq) AS place
  FROM (
    SELECT seq, message_id, record_time, agent_id, step, superseded_by, digest, body
    FROM perdure_store.messages
    WHERE tenant_id = $1::text AND conversation_id = $2::text AND seq >= $3::bigint
      AND ($4::boolean OR superseded_by IS NULL)
    ORDER BY seq
    LIMIT $5::bigint) m) w
WHERE page_bytes <= $6::bigint OR place = 1
ORDER BY seq

-- name: read_backward
-- Messages from a seq towards 0, cut likewise.
-- $1 tenant_id, $2 conversation_id, $3 first seq, $4 include superseded, $5 limit rows, $6 limit bytes
SELECT seq, message_id, record_time, agent_id, step, superseded_by, digest, body
FROM (
  SELECT m.*, sum(length(m.body)) OVER (ORDER BY m.seq DESC) AS page_bytes, row_number() OVER (ORDER BY m.seq DESC) AS place
  FROM (
    SELECT seq, message_id, record_time, agent_id, step, superseded_by, digest, body
    FROM perdure_store.messages
    WHERE tenant_id = $1::text AND conversation_id = $2::text AND seq <= $3::bigint
      AND ($4::boolean OR superseded_by IS NULL)
    ORDER BY seq DESC
    LIMIT $5::bigint) m) w
WHERE page_bytes <= $6::bigint OR place = 1
ORDER BY seq DESC

-- name: newest_start
-- Seq of the n-th newest message that is in force; none when there are fewer.
-- $1 tenant_id, $2 conversation_id, $3 include superseded, $4 n - 1
SELECT seq
FROM perdure_store.messages
WHERE tenant_id = $1::text AND conversation_id = $2::text AND ($3::boolean OR superseded_by IS NULL)
ORDER BY seq DESC
OFFSET $4::bigint
LIMIT 1
