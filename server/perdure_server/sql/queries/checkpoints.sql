-- A row of perdure_store.checkpoints is an agent's state after a step.

-- name: put_checkpoint
-- Store a checkpoint and move the head; the function says what each outcome means.
-- $1 to $15 as the parameters of put_checkpoint_1
SELECT outcome, current_epoch, head_step, stored_digest, event_time
FROM perdure_store.put_checkpoint_1(
  $1::text, $2::text, $3::bigint, $4::uuid, $5::boolean, $6::text, $7::bigint, $8::bytea, $9::bytea, $10::bigint,
  $11::bytea, $12::bigint, $13::bigint, $14::text, $15::text)

-- name: commit
-- All operations of one step; refused with PD001.
-- $1 to $43 as the parameters of commit_1
SELECT operation, outcome, message_id, seq, message_count, generation, digest, event_time
FROM perdure_store.commit_1(
  $1::text, $2::text, $3::bigint, $4::uuid, $5::bigint,
  $6::bigint[], $7::text[], $8::text[], $9::bigint[], $10::bytea[], $11::bytea[], $12::bigint[], $13::bytea[],
  $14::bigint[], $15::bigint[], $16::text[], $17::text[],
  $18::bigint[], $19::text[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[],
  $24::text[], $25::bytea[], $26::text[], $27::bytea[], $28::timestamptz[], $29::text[], $30::text[], $31::text[],
  $32::text[], $33::text[], $34::text[], $35::text[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[],
  $40::bigint[], $41::text[], $42::text[], $43::text[])

-- name: get_head
-- The newest step of a branch; none when the branch has no step.
-- $1 tenant_id, $2 agent_id, $3 branch
SELECT head_step, keyframe_step, head_digest
FROM perdure_store.branches
WHERE tenant_id = $1::text AND agent_id = $2::text AND branch = $3::text

-- name: get_chain
-- The frames that a step needs: its keyframe and the deltas up to it.
-- $1 tenant_id, $2 agent_id, $3 branch, $4 step
SELECT k.agent_id, k.branch, k.step, k.parent_step, k.base_step, k.keyframe_step, k.read_seq, k.schema_version, k.epoch,
  k.raw_bytes, k.frame_bytes, k.create_time, k.delete_time, k.raw_digest, k.run_id, k.metadata, k.frame
FROM perdure_store.checkpoints k
WHERE k.tenant_id = $1::text AND k.agent_id = $2::text AND k.branch = $3::text
  AND k.step <= $4::bigint
  AND k.step >= (
    SELECT s.keyframe_step FROM perdure_store.checkpoints s
    WHERE s.tenant_id = $1 AND s.agent_id = $2 AND s.branch = $3 AND s.step = $4)
  AND k.keyframe_step = (
    SELECT s.keyframe_step FROM perdure_store.checkpoints s
    WHERE s.tenant_id = $1 AND s.agent_id = $2 AND s.branch = $3 AND s.step = $4)
ORDER BY k.step
LIMIT 65

-- name: list_checkpoints
-- A page of the steps of a branch, newest first, without frames.
-- $1 tenant_id, $2 agent_id, $3 branch, $4 before step, $5 limit
SELECT agent_id, branch, step, parent_step, base_step, keyframe_step, read_seq, schema_version, epoch,
  raw_bytes, frame_bytes, create_time, delete_time, raw_digest, run_id, metadata, NULL::bytea AS frame
FROM perdure_store.checkpoints
WHERE tenant_id = $1::text AND agent_id = $2::text AND branch = $3::text AND step < $4::bigint
  AND delete_time IS NULL
ORDER BY step DESC
LIMIT $5::bigint
