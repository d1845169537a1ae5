-- migrate:up

-- put_checkpoint_1 stores a checkpoint and moves the branch's head in one round
-- trip.
--
-- Outcomes: stored, replayed; no_agent, deleted, stale_fence, fence_required,
-- differs, behind (not after the head and not stored), base_mismatch,
-- keyframe_required, bad_read_seq. p_base_digest NULL: a keyframe. p_root_claim:
-- the checkpoint rides in a commit of an ancestor, whose claim the agent
-- shares; then p_epoch is not compared.
CREATE FUNCTION perdure_store.put_checkpoint_1(
  p_tenant text, p_agent text, p_epoch bigint, p_claim uuid, p_root_claim boolean,
  p_branch text, p_step bigint, p_base_digest bytea,
  p_raw_digest bytea, p_raw_bytes bigint, p_frame bytea, p_schema_version bigint,
  p_read_seq bigint, p_run text, p_metadata text,
  OUT outcome text, OUT current_epoch bigint, OUT head_step bigint, OUT stored_digest bytea, OUT event_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  a perdure_store.agents%ROWTYPE;
  b perdure_store.branches%ROWTYPE;
  v_keyframe boolean := p_base_digest IS NULL;
BEGIN
  SELECT * INTO a FROM perdure_store.agents x
  WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent
  FOR SHARE;
  IF NOT FOUND THEN outcome := 'no_agent'; RETURN; END IF;
  current_epoch := a.epoch;
  SELECT * INTO b FROM perdure_store.branches x
  WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent AND x.branch = p_branch
  FOR NO KEY UPDATE;
  head_step := coalesce(b.head_step, 0);
  IF a.delete_time IS NOT NULL THEN outcome := 'deleted'; event_time := a.delete_time; RETURN; END IF;

  IF p_step <= head_step THEN
    SELECT c.raw_digest, c.create_time INTO stored_digest, event_time FROM perdure_store.checkpoints c
    WHERE c.tenant_id = p_tenant AND c.agent_id = p_agent AND c.branch = p_branch AND c.step = p_step
      AND c.delete_time IS NULL;
    IF NOT FOUND AND p_step = head_step THEN
      -- Dropped since it was stored: a retry is a replay all the same.
      stored_digest := b.dropped_digest; event_time := now();
    END IF;
  END IF;

  IF p_claim IS NULL THEN
    IF a.epoch > 0 THEN outcome := 'fence_required'; RETURN; END IF;
  ELSIF a.claim_id IS DISTINCT FROM p_claim OR (a.epoch <> p_epoch AND NOT p_root_claim) THEN
    outcome := 'stale_fence'; RETURN;
  END IF;

  IF p_step <= head_step THEN
    outcome := CASE WHEN stored_digest IS NULL THEN 'behind' WHEN stored_digest = p_raw_digest THEN 'replayed' ELSE 'differs' END;
    RETURN;
  END IF;
  IF NOT v_keyframe THEN
    IF b.head_digest IS NULL OR b.chain_links >= 64 THEN outcome := 'keyframe_required'; RETURN; END IF;
    IF b.head_digest <> p_base_digest THEN outcome := 'base_mismatch'; RETURN; END IF;
  END IF;
  IF p_read_seq > (
    SELECT c.message_count FROM perdure_store.conversations c
    WHERE c.tenant_id = p_tenant AND c.conversation_id = a.conversation_id) THEN
    outcome := 'bad_read_seq'; RETURN;
  END IF;

  IF b.agent_id IS NULL THEN
    -- The first step of a branch. Rivals of one claim meet at the primary key.
    INSERT INTO perdure_store.branches (tenant_id, agent_id, branch) VALUES (p_tenant, p_agent, p_branch);
  END IF;
  UPDATE perdure_store.branches x
  SET head_step = p_step, head_digest = p_raw_digest, dropped_digest = NULL, head_epoch = a.epoch, head_schema_version = p_schema_version,
    keyframe_step = CASE WHEN v_keyframe THEN p_step ELSE x.keyframe_step END,
    chain_links = CASE WHEN v_keyframe THEN 0 ELSE x.chain_links + 1 END,
    chain_bytes = CASE WHEN v_keyframe THEN 0 ELSE x.chain_bytes END + length(p_frame)
  WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent AND x.branch = p_branch;
  INSERT INTO perdure_store.checkpoints (
    tenant_id, agent_id, branch, step, parent_step, base_step, keyframe_step, read_seq, schema_version, epoch,
    raw_bytes, frame_bytes, raw_digest, run_id, metadata, frame)
  VALUES (
    p_tenant, p_agent, p_branch, p_step, head_step, CASE WHEN NOT v_keyframe THEN head_step END,
    CASE WHEN v_keyframe THEN p_step ELSE b.keyframe_step END, p_read_seq, p_schema_version, a.epoch,
    p_raw_bytes, length(p_frame), p_raw_digest, p_run, p_metadata, p_frame)
  RETURNING checkpoints.create_time INTO event_time;
  head_step := p_step;
  stored_digest := p_raw_digest;
  outcome := 'stored';
END $$;

-- commit_1 carries out the operations of one step under one fence, all or none.
--
-- Locks in the order of the house: agents, branches, conversations. A refused
-- operation raises PD001 with a JSON detail that names it (`operation`, 0-based
-- index in the request), which rolls everything back. Array p_m_operation maps
-- each message to its operation; operations of one kind are carried out in
-- their order, appends first, so that a checkpoint may count them as read.
CREATE FUNCTION perdure_store.commit_1(
  p_tenant text, p_agent text, p_epoch bigint, p_claim uuid, p_step bigint,
  p_c_operations bigint[], p_c_agents text[], p_c_branches text[], p_c_steps bigint[], p_c_base_digests bytea[],
  p_c_raw_digests bytea[], p_c_raw_bytes bigint[], p_c_frames bytea[], p_c_schema_versions bigint[],
  p_c_read_seqs bigint[], p_c_runs text[], p_c_metadata text[],
  p_a_operations bigint[], p_a_conversations text[], p_a_expected_seqs bigint[],
  p_a_supersede_from bigint[], p_a_supersede_to bigint[], p_a_ends bigint[],
  p_message_ids text[], p_digests bytea[], p_roles text[], p_bodies bytea[], p_create_times timestamptz[],
  p_contents text[], p_tool_call_ids text[], p_tool_names text[], p_tool_args text[], p_tool_results text[],
  p_models text[], p_run_ids text[],
  p_input_tokens bigint[], p_cached_tokens bigint[], p_output_tokens bigint[], p_reasoning_tokens bigint[],
  p_call_messages bigint[], p_call_ids text[], p_call_names text[], p_call_arguments text[])
RETURNS TABLE (
  operation bigint, outcome text, message_id text, seq bigint, message_count bigint, generation bigint,
  digest bytea, event_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  c record;
  m record;
  k record;
  f bigint := 1;
  t bigint;
  v_id text;
  v_conversation text;
  v_committed boolean;
BEGIN
  -- Row by row: without statistics an `= ANY` may read the whole table.
  FOR v_id IN
    SELECT DISTINCT n.agent_id COLLATE "C" FROM unnest(p_c_agents || p_agent) AS n (agent_id) ORDER BY 1
  LOOP
    PERFORM 1 FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = v_id
    FOR SHARE;
  END LOOP;
  SELECT x.conversation_id, x.epoch, x.claim_id, x.delete_time INTO c FROM perdure_store.agents x
  WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'PD001', MESSAGE = 'commit refused',
      DETAIL = json_build_object('operation', NULL, 'outcome', 'no_agent')::text;
  END IF;
  IF c.epoch <> p_epoch OR c.claim_id IS DISTINCT FROM p_claim THEN
    -- For the error's detail only: was this very commit carried out before?
    v_committed := EXISTS (
      SELECT FROM perdure_store.message_keys x
      WHERE x.tenant_id = p_tenant AND x.conversation_id = coalesce(p_a_conversations[1], c.conversation_id)
        AND x.message_id = p_message_ids[1] AND x.digest = p_digests[1])
      OR EXISTS (
      SELECT FROM perdure_store.checkpoints x
      WHERE x.tenant_id = p_tenant AND x.agent_id = p_c_agents[1] AND x.branch = p_c_branches[1]
        AND x.step = p_c_steps[1] AND x.raw_digest = p_c_raw_digests[1] AND x.epoch = p_epoch);
    RAISE EXCEPTION USING ERRCODE = 'PD001', MESSAGE = 'commit refused',
      DETAIL = json_build_object('operation', NULL, 'outcome', 'stale_fence', 'current_epoch', c.epoch,
        'committed', v_committed)::text;
  END IF;
  v_conversation := c.conversation_id;

  FOR k IN
    SELECT DISTINCT n.agent_id COLLATE "C" AS agent_id, n.branch COLLATE "C" AS branch
    FROM unnest(p_c_agents, p_c_branches) AS n (agent_id, branch)
    ORDER BY 1, 2
  LOOP
    PERFORM 1 FROM perdure_store.branches x
    WHERE x.tenant_id = p_tenant AND x.agent_id = k.agent_id AND x.branch = k.branch
    FOR NO KEY UPDATE;
  END LOOP;
  FOR v_id IN
    SELECT DISTINCT coalesce(n.conversation, v_conversation) COLLATE "C"
    FROM unnest(p_a_conversations) AS n (conversation)
    ORDER BY 1
  LOOP
    PERFORM 1 FROM perdure_store.conversations x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = v_id
    FOR NO KEY UPDATE;
  END LOOP;

  FOR i IN 1 .. cardinality(p_a_operations) LOOP
    t := p_a_ends[i];
    SELECT array_agg(x.place - f + 1 ORDER BY x.n) AS places, array_agg(x.call_id ORDER BY x.n) AS ids,
      array_agg(x.name ORDER BY x.n) AS names, array_agg(x.arguments ORDER BY x.n) AS arguments INTO k
    FROM unnest(p_call_messages, p_call_ids, p_call_names, p_call_arguments)
      WITH ORDINALITY AS x (place, call_id, name, arguments, n)
    WHERE x.place BETWEEN f AND t;
    FOR m IN SELECT * FROM perdure_store.append_messages_1(
      p_tenant, coalesce(p_a_conversations[i], v_conversation),
      p_message_ids[f:t], p_digests[f:t], p_roles[f:t], p_bodies[f:t],
      p_create_times[f:t], p_contents[f:t], p_tool_call_ids[f:t], p_tool_names[f:t], p_tool_args[f:t],
      p_tool_results[f:t], p_models[f:t], p_run_ids[f:t], p_input_tokens[f:t], p_cached_tokens[f:t],
      p_output_tokens[f:t], p_reasoning_tokens[f:t], k.places, k.ids, k.names, k.arguments,
      p_a_expected_seqs[i], NULL, p_a_supersede_from[i], p_a_supersede_to[i], false, false,
      p_agent, p_epoch, p_claim, p_step)
    LOOP
      IF m.outcome NOT IN ('stored', 'replayed') THEN
        RAISE EXCEPTION USING ERRCODE = 'PD001', MESSAGE = 'commit refused',
          DETAIL = json_build_object('operation', p_a_operations[i], 'outcome', m.outcome,
            'message_id', m.message_id, 'seq', m.seq, 'message_count', m.message_count,
            'stored_digest', encode(m.stored_digest, 'hex'), 'event_time', m.event_time)::text;
      END IF;
      operation := p_a_operations[i]; outcome := m.outcome; message_id := m.message_id; seq := m.seq;
      message_count := m.message_count; generation := m.generation; digest := m.stored_digest;
      event_time := m.event_time;
      RETURN NEXT;
    END LOOP;
    f := t + 1;
  END LOOP;

  message_id := NULL; message_count := NULL; generation := NULL;
  FOR i IN 1 .. cardinality(p_c_operations) LOOP
    c := perdure_store.put_checkpoint_1(
      p_tenant, p_c_agents[i], p_epoch, p_claim, p_c_agents[i] <> p_agent, p_c_branches[i], p_c_steps[i],
      p_c_base_digests[i], p_c_raw_digests[i], p_c_raw_bytes[i], p_c_frames[i], p_c_schema_versions[i],
      p_c_read_seqs[i], p_c_runs[i], p_c_metadata[i]);
    IF c.outcome NOT IN ('stored', 'replayed') THEN
      RAISE EXCEPTION USING ERRCODE = 'PD001', MESSAGE = 'commit refused',
        DETAIL = json_build_object('operation', p_c_operations[i], 'outcome', c.outcome,
          'current_epoch', c.current_epoch, 'head_step', c.head_step,
          'stored_digest', encode(c.stored_digest, 'hex'), 'event_time', c.event_time)::text;
    END IF;
    operation := p_c_operations[i]; outcome := c.outcome; seq := p_c_steps[i]; digest := c.stored_digest;
    event_time := c.event_time;
    RETURN NEXT;
  END LOOP;
END $$;

-- migrate:down

DROP FUNCTION perdure_store.commit_1;
DROP FUNCTION perdure_store.put_checkpoint_1;
