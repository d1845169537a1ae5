-- migrate:up

-- append_messages_1 adds a batch at the end of a conversation in one round trip.
--
-- Rows returned: one per message in the order of the request, all with the
-- outcome `stored` or `replayed`; or one row that says why nothing was written:
-- no_conversation, deleted, stale_fence, fence_required, wrong_conversation,
-- differs (message_id, stored_digest), seq_conflict, closed, bad_range.
-- Every statement after the locks has a snapshot that sees all earlier holders.
CREATE FUNCTION perdure_store.append_messages_1(
  p_tenant text, p_conversation text,
  p_message_ids text[], p_digests bytea[], p_roles text[], p_bodies bytea[], p_create_times timestamptz[],
  p_contents text[], p_tool_call_ids text[], p_tool_names text[], p_tool_args text[], p_tool_results text[],
  p_models text[], p_run_ids text[],
  p_input_tokens bigint[], p_cached_tokens bigint[], p_output_tokens bigint[], p_reasoning_tokens bigint[],
  p_call_messages bigint[], p_call_ids text[], p_call_names text[], p_call_arguments text[],
  p_expected_seq bigint, p_generation bigint, p_supersede_from bigint, p_supersede_to bigint,
  p_create_if_missing boolean, p_unfenced_allowed boolean,
  p_agent text, p_epoch bigint, p_claim uuid, p_step bigint)
RETURNS TABLE (
  outcome text, message_id text, seq bigint, message_count bigint, generation bigint,
  current_epoch bigint, stored_digest bytea, event_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  c perdure_store.conversations%ROWTYPE;
  a perdure_store.agents%ROWTYPE;
  v_known text[];
  v_first bigint;
BEGIN
  IF p_agent IS NOT NULL THEN
    SELECT * INTO a FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent
    FOR SHARE;
  END IF;

  SELECT * INTO c FROM perdure_store.conversations x
  WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation
  FOR NO KEY UPDATE;
  IF NOT FOUND AND p_create_if_missing THEN
    INSERT INTO perdure_store.conversations (tenant_id, conversation_id)
    VALUES (p_tenant, p_conversation)
    ON CONFLICT DO NOTHING;
    SELECT * INTO c FROM perdure_store.conversations x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation
    FOR NO KEY UPDATE;
  END IF;
  IF c.conversation_id IS NULL THEN
    outcome := 'no_conversation'; RETURN NEXT; RETURN;
  END IF;
  message_count := c.message_count;
  generation := c.generation;
  current_epoch := a.epoch;

  IF c.delete_time IS NOT NULL OR c.generation <> p_generation THEN
    outcome := 'deleted'; event_time := c.delete_time; RETURN NEXT; RETURN;
  END IF;

  IF p_agent IS NOT NULL THEN
    IF a.epoch IS DISTINCT FROM p_epoch OR a.claim_id IS DISTINCT FROM p_claim THEN
      outcome := 'stale_fence';
      -- For the error's detail only: was this very write committed before?
      SELECT m.digest INTO stored_digest FROM perdure_store.message_keys m
      WHERE m.tenant_id = p_tenant AND m.conversation_id = p_conversation
        AND m.message_id = p_message_ids[1] AND m.digest = p_digests[1];
      RETURN NEXT; RETURN;
    END IF;
    IF a.conversation_id <> p_conversation AND NOT EXISTS (
      SELECT FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.claim_id = p_claim) THEN
      outcome := 'wrong_conversation'; RETURN NEXT; RETURN;
    END IF;
  ELSIF c.owned AND NOT p_unfenced_allowed AND EXISTS (
    SELECT FROM unnest(p_roles) AS r (role) WHERE r.role <> 'user') THEN
    outcome := 'fence_required'; RETURN NEXT; RETURN;
  END IF;

  SELECT coalesce(array_agg(m.message_id), '{}') INTO v_known
  FROM unnest(p_message_ids) AS i (message_id)
  CROSS JOIN LATERAL (
    SELECT x.message_id FROM perdure_store.message_keys x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.message_id = i.message_id
    LIMIT 1) m;

  IF cardinality(v_known) > 0 THEN
    SELECT m.message_id, m.seq, m.digest INTO message_id, seq, stored_digest
    FROM unnest(p_message_ids, p_digests) AS i (message_id, digest)
    CROSS JOIN LATERAL (
      SELECT x.message_id, x.seq, x.digest FROM perdure_store.message_keys x
      WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.message_id = i.message_id
      LIMIT 1) m
    WHERE m.digest <> i.digest
    ORDER BY m.seq LIMIT 1;
    IF FOUND THEN
      outcome := 'differs'; RETURN NEXT; RETURN;
    END IF;
  END IF;

  IF cardinality(v_known) < cardinality(p_message_ids) THEN
    IF p_expected_seq <> c.message_count THEN
      outcome := 'seq_conflict'; RETURN NEXT; RETURN;
    END IF;
    IF c.close_time IS NOT NULL THEN
      outcome := 'closed'; event_time := c.close_time; RETURN NEXT; RETURN;
    END IF;
    IF p_supersede_to > c.message_count THEN
      outcome := 'bad_range'; RETURN NEXT; RETURN;
    END IF;
    v_first := c.message_count;
    INSERT INTO perdure_store.messages (
      tenant_id, conversation_id, seq, step, epoch, create_time, message_id, agent_id, branch, role, digest, body,
      content, tool_call_id, tool_name, tool_args, tool_result, model, run_id,
      input_tokens, cached_tokens, output_tokens, reasoning_tokens)
    SELECT
      p_tenant, p_conversation, v_first - 1 + row_number() OVER (ORDER BY i.n),
      p_step, coalesce(p_epoch, 0), i.create_time, i.message_id, coalesce(p_agent, ''),
      coalesce(a.canonical_branch, ''), i.role, i.digest, i.body,
      i.content, i.tool_call_id, i.tool_name, i.tool_args, i.tool_result, i.model, i.run_id,
      i.input_tokens, i.cached_tokens, i.output_tokens, i.reasoning_tokens
    FROM unnest(
      p_message_ids, p_digests, p_roles, p_bodies, p_create_times, p_contents, p_tool_call_ids, p_tool_names,
      p_tool_args, p_tool_results, p_models, p_run_ids, p_input_tokens, p_cached_tokens, p_output_tokens,
      p_reasoning_tokens) WITH ORDINALITY AS i (
      message_id, digest, role, body, create_time, content, tool_call_id, tool_name,
      tool_args, tool_result, model, run_id, input_tokens, cached_tokens, output_tokens,
      reasoning_tokens, n)
    WHERE i.message_id <> ALL (v_known);

    INSERT INTO perdure_store.message_keys (tenant_id, conversation_id, message_id, seq, digest)
    SELECT p_tenant, p_conversation, i.message_id, v_first - 1 + row_number() OVER (ORDER BY i.n), i.digest
    FROM unnest(p_message_ids, p_digests) WITH ORDINALITY AS i (message_id, digest, n)
    WHERE i.message_id <> ALL (v_known);

    IF cardinality(p_call_messages) > 0 THEN
      -- p_call_messages holds, for each call, the 1-based place of its message.
      INSERT INTO perdure_store.message_tool_calls (
        tenant_id, conversation_id, seq, ordinal, call_id, name, arguments)
      SELECT p_tenant, p_conversation, m.seq, row_number() OVER (PARTITION BY m.seq ORDER BY k.n) - 1,
        k.call_id, k.name, k.arguments
      FROM unnest(p_call_messages, p_call_ids, p_call_names, p_call_arguments)
        WITH ORDINALITY AS k (place, call_id, name, arguments, n)
      CROSS JOIN LATERAL (
        SELECT x.seq FROM perdure_store.message_keys x
        WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation
          AND x.message_id = p_message_ids[k.place]
        LIMIT 1) m
      WHERE m.seq >= v_first;
    END IF;

    IF p_supersede_from IS NOT NULL THEN
      UPDATE perdure_store.messages m
      SET superseded_by = v_first
      WHERE m.tenant_id = p_tenant AND m.conversation_id = p_conversation
        AND m.seq >= p_supersede_from AND m.seq < p_supersede_to AND m.superseded_by IS NULL;
    END IF;

    message_count := v_first + cardinality(p_message_ids) - cardinality(v_known);
    UPDATE perdure_store.conversations x
    SET message_count = v_first + cardinality(p_message_ids) - cardinality(v_known), revision = x.revision + 1
    WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation;
  END IF;

  RETURN QUERY
  SELECT CASE WHEN k.seq >= c.message_count THEN 'stored' ELSE 'replayed' END,
    k.message_id, k.seq, message_count, generation, current_epoch, k.digest, m.record_time
  FROM unnest(p_message_ids) WITH ORDINALITY AS i (message_id, n)
  CROSS JOIN LATERAL (
    SELECT x.message_id, x.seq, x.digest FROM perdure_store.message_keys x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.message_id = i.message_id
    LIMIT 1) k
  CROSS JOIN LATERAL (
    SELECT x.record_time FROM perdure_store.messages x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = p_conversation AND x.seq = k.seq
    LIMIT 1) m
  ORDER BY i.n;
END $$;

-- append_many_1 carries out the appends that gathered for one conversation, in
-- order, in one transaction: each request (a range of the arrays) is judged on
-- its own and a refused one harms no other. Unfenced, without supersedes.
CREATE FUNCTION perdure_store.append_many_1(
  p_tenant text, p_conversation text, p_ends bigint[], p_expected_seqs bigint[], p_generations bigint[],
  p_create_if_missing boolean[], p_unfenced_allowed boolean[],
  p_message_ids text[], p_digests bytea[], p_roles text[], p_bodies bytea[], p_create_times timestamptz[],
  p_contents text[], p_tool_call_ids text[], p_tool_names text[], p_tool_args text[], p_tool_results text[],
  p_models text[], p_run_ids text[],
  p_input_tokens bigint[], p_cached_tokens bigint[], p_output_tokens bigint[], p_reasoning_tokens bigint[],
  p_call_messages bigint[], p_call_ids text[], p_call_names text[], p_call_arguments text[])
RETURNS TABLE (
  request bigint, outcome text, message_id text, seq bigint, message_count bigint, generation bigint,
  current_epoch bigint, stored_digest bytea, event_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  f bigint := 1;
  t bigint;
  k record;
BEGIN
  FOR i IN 1 .. cardinality(p_ends) LOOP
    t := p_ends[i];
    SELECT array_agg(x.place - f + 1 ORDER BY x.n) AS places, array_agg(x.call_id ORDER BY x.n) AS ids,
      array_agg(x.name ORDER BY x.n) AS names, array_agg(x.arguments ORDER BY x.n) AS arguments INTO k
    FROM unnest(p_call_messages, p_call_ids, p_call_names, p_call_arguments)
      WITH ORDINALITY AS x (place, call_id, name, arguments, n)
    WHERE x.place BETWEEN f AND t;
    RETURN QUERY
    SELECT i::bigint, a.* FROM perdure_store.append_messages_1(
      p_tenant, p_conversation, p_message_ids[f:t], p_digests[f:t], p_roles[f:t], p_bodies[f:t],
      p_create_times[f:t], p_contents[f:t], p_tool_call_ids[f:t], p_tool_names[f:t], p_tool_args[f:t],
      p_tool_results[f:t], p_models[f:t], p_run_ids[f:t], p_input_tokens[f:t], p_cached_tokens[f:t],
      p_output_tokens[f:t], p_reasoning_tokens[f:t], k.places, k.ids, k.names, k.arguments,
      p_expected_seqs[i], p_generations[i], NULL, NULL, p_create_if_missing[i], p_unfenced_allowed[i],
      NULL, NULL, NULL, 0) a;
    f := t + 1;
  END LOOP;
END $$;

-- migrate:down

DROP FUNCTION perdure_store.append_many_1;
DROP FUNCTION perdure_store.append_messages_1;
