-- migrate:up

-- prune_agent_1 removes steps of one agent by a policy, in one short
-- transaction, and returns how many rows and frame bytes went; with p_dry_run,
-- would go.
--
-- A step may go when it is outside the newest p_keep_steps of its branch and
-- older than p_keep_age_ms, or older than p_max_age_ms; never a head. It goes for
-- good only when no surviving step of its segment comes after it, else it is
-- hidden until that is so.
CREATE FUNCTION perdure_store.prune_agent_1(
  p_tenant text, p_agent text, p_keep_steps bigint, p_keep_age_ms bigint, p_max_age_ms bigint, p_dry_run boolean,
  OUT checkpoint_count bigint, OUT frame_bytes bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := now();
  r record;
BEGIN
  checkpoint_count := 0;
  frame_bytes := 0;
  FOR r IN
    WITH ranked AS (
      SELECT c.branch, c.step, c.keyframe_step, c.frame_bytes, c.delete_time,
        c.step <> b.head_step AND (
          c.create_time < v_now - p_max_age_ms * interval '1 ms'
          OR (c.create_time < v_now - p_keep_age_ms * interval '1 ms'
            AND row_number() OVER (PARTITION BY c.branch ORDER BY c.step DESC) > p_keep_steps)) AS expired
      FROM perdure_store.checkpoints c
      JOIN perdure_store.branches b
        ON b.tenant_id = c.tenant_id AND b.agent_id = c.agent_id AND b.branch = c.branch
      WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent
    )
    SELECT e.branch, e.step, e.frame_bytes, e.delete_time,
      e.step > coalesce(max(s.step) FILTER (WHERE NOT s.expired), 0) AS removable
    FROM ranked e
    JOIN ranked s ON s.branch = e.branch AND s.keyframe_step = e.keyframe_step
    WHERE e.expired
    GROUP BY e.branch, e.step, e.frame_bytes, e.delete_time
    ORDER BY e.branch, e.step
  LOOP
    IF r.removable THEN
      checkpoint_count := checkpoint_count + 1;
      frame_bytes := frame_bytes + r.frame_bytes;
      IF NOT p_dry_run THEN
        DELETE FROM perdure_store.checkpoints c
        WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent AND c.branch = r.branch AND c.step = r.step;
      END IF;
    ELSIF r.delete_time IS NULL AND NOT p_dry_run THEN
      UPDATE perdure_store.checkpoints c
      SET delete_time = v_now
      WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent AND c.branch = r.branch AND c.step = r.step;
    END IF;
  END LOOP;
END $$;

-- drop_checkpoints_1 removes every checkpoint of one agent. Its heads stay as
-- numbers only: the next step must be a later keyframe, and until then the agent
-- comes back from its messages.
CREATE FUNCTION perdure_store.drop_checkpoints_1(
  p_tenant text, p_agent text, p_dry_run boolean, OUT checkpoint_count bigint, OUT frame_bytes bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF NOT p_dry_run THEN
    PERFORM 1 FROM perdure_store.branches b
    WHERE b.tenant_id = p_tenant AND b.agent_id = p_agent
    ORDER BY b.branch
    FOR NO KEY UPDATE;
  END IF;
  SELECT count(*), coalesce(sum(c.frame_bytes), 0) INTO checkpoint_count, frame_bytes
  FROM perdure_store.checkpoints c
  WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent;
  IF p_dry_run THEN RETURN; END IF;
  DELETE FROM perdure_store.checkpoints c
  WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent;
  UPDATE perdure_store.branches b
  SET dropped_digest = coalesce(b.head_digest, b.dropped_digest), head_digest = NULL, keyframe_step = 0, chain_links = 0, chain_bytes = 0
  WHERE b.tenant_id = p_tenant AND b.agent_id = p_agent AND b.head_step > 0;
END $$;

-- migrate:down

DROP FUNCTION perdure_store.drop_checkpoints_1;
DROP FUNCTION perdure_store.prune_agent_1;
