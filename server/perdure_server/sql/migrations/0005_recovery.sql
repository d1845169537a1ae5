-- migrate:up

-- plan_agents_1 adds the next page of agents that a selector picks to a
-- recovery, in the order of their ids; with the last page also their subtrees,
-- since owning a parent owns its subtree. Returns whether the plan is complete.
-- A call that was lost is simply made again: the plan itself says how far it is.
CREATE FUNCTION perdure_store.plan_agents_1(
  p_tenant text, p_recovery uuid, p_agents text[], p_owner text, p_labels jsonb, p_lease_state text, p_framework text,
  p_agent_slug text, p_parent text, p_max_schema_version bigint, p_connected_ms bigint, p_limit bigint)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_after text;
  v_added bigint;
BEGIN
  PERFORM 1 FROM perdure_store.recoveries r
  WHERE r.tenant_id = p_tenant AND r.recovery_id = p_recovery AND r.planned_time IS NULL
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN true; END IF;
  SELECT max(q.agent_id) INTO v_after FROM perdure_store.recovery_agents q
  WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery;
  INSERT INTO perdure_store.recovery_agents (tenant_id, recovery_id, agent_id, planned_epoch)
  SELECT p_tenant, p_recovery, s.agent_id, s.epoch
  FROM perdure_store.select_agents_1(
    p_tenant, p_agents, p_owner, p_labels, p_lease_state, p_framework, p_agent_slug, p_parent, p_max_schema_version,
    p_connected_ms, v_after, p_limit) s;
  GET DIAGNOSTICS v_added = ROW_COUNT;
  IF v_added = p_limit THEN RETURN false; END IF;

  INSERT INTO perdure_store.recovery_agents (tenant_id, recovery_id, agent_id, planned_epoch)
  WITH RECURSIVE tree (agent_id, epoch, depth) AS (
    SELECT q.agent_id, q.planned_epoch, 0 FROM perdure_store.recovery_agents q
    WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery
    UNION
    SELECT a.agent_id, a.epoch, t.depth + 1
    FROM tree t
    CROSS JOIN LATERAL (
      SELECT x.agent_id, x.epoch FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.parent_agent_id = t.agent_id AND x.delete_time IS NULL
      LIMIT 100000) a
    WHERE t.depth < 100
  )
  SELECT p_tenant, p_recovery, t.agent_id, min(t.epoch)
  FROM tree t
  WHERE t.depth > 0
  GROUP BY t.agent_id
  ON CONFLICT DO NOTHING;
  UPDATE perdure_store.recoveries r SET planned_time = now()
  WHERE r.tenant_id = p_tenant AND r.recovery_id = p_recovery;
  RETURN true;
END $$;

-- fence_agents_1 fences the next planned agents of a recovery: each by
-- compare-and-set on its planned epoch, to nobody's lease. Agents locked by a
-- writer are passed over and stay planned; with p_wait, the last pass, each is
-- waited for up to lock_timeout and then reported busy. Returns how many were
-- decided.
CREATE FUNCTION perdure_store.fence_agents_1(
  p_tenant text, p_recovery uuid, p_limit bigint, p_even_live boolean, p_connected_ms bigint, p_wait boolean)
RETURNS bigint
LANGUAGE plpgsql
SET enable_sort = off
SET enable_bitmapscan = off AS $$
DECLARE
  r record;
  a perdure_store.agents%ROWTYPE;
  v_state text;
  v_claim uuid;
  v_live boolean;
  v_head bigint;
  v_bytes bigint;
  v_decided bigint := 0;
BEGIN
  FOR r IN
    SELECT q.agent_id, q.planned_epoch FROM perdure_store.recovery_agents q
    WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.state = 'planned'
    ORDER BY q.agent_id LIMIT p_limit
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    v_state := NULL;
    IF p_wait THEN
      BEGIN
        SELECT * INTO a FROM perdure_store.agents x
        WHERE x.tenant_id = p_tenant AND x.agent_id = r.agent_id
        FOR NO KEY UPDATE;
      EXCEPTION WHEN lock_not_available THEN
        v_state := 'busy';
      END;
    ELSE
      SELECT * INTO a FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.agent_id = r.agent_id
      FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
    END IF;
    IF v_state IS NULL THEN
      SELECT perdure_store.lease_is_live(x.revoke_time, x.expire_time, x.ttl_ms, p_connected_ms) INTO v_live
      FROM perdure_store.leases x WHERE x.tenant_id = p_tenant AND x.lease_id = a.lease_id;
      v_state := CASE
        WHEN a.epoch IS DISTINCT FROM r.planned_epoch OR a.delete_time IS NOT NULL THEN 'moved'
        WHEN coalesce(v_live, false) AND NOT p_even_live THEN 'live'
        ELSE 'fenced' END;
    END IF;
    IF v_state = 'fenced' THEN
      v_claim := gen_random_uuid();
      UPDATE perdure_store.agents x SET epoch = a.epoch + 1, claim_id = v_claim, lease_id = NULL
      WHERE x.tenant_id = p_tenant AND x.agent_id = r.agent_id;
      -- A later statement than the lock: the head that no one can move any more.
      SELECT b.head_step, CASE WHEN b.head_digest IS NULL THEN 0 ELSE b.chain_bytes END INTO v_head, v_bytes
      FROM perdure_store.branches b
      WHERE b.tenant_id = p_tenant AND b.agent_id = r.agent_id AND b.branch = a.canonical_branch;
    END IF;
    UPDATE perdure_store.recovery_agents q
    SET state = v_state, epoch = CASE WHEN v_state = 'fenced' THEN a.epoch + 1 END,
      head_step = coalesce(v_head, 0), chain_bytes = coalesce(v_bytes, 0)
    WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.agent_id = r.agent_id;
    v_head := NULL; v_bytes := NULL;
    v_decided := v_decided + 1;
  END LOOP;
  RETURN v_decided;
END $$;

-- pool_agents_1 locks and names agents of a recovery that wait for a worker. In
-- the order of an index, since a sort looks at the whole pool for each lot; a
-- setting holds for whatever a function calls, hence one for this alone. Not for
-- direct use.
CREATE FUNCTION perdure_store.pool_agents_1(
  p_tenant text, p_recovery uuid, p_again boolean, p_limit bigint, p_connected_ms bigint)
RETURNS text[]
LANGUAGE plpgsql
SET enable_sort = off
SET enable_bitmapscan = off AS $$
BEGIN
  -- A child waits for its parent and comes with it.
  IF NOT p_again THEN
    RETURN ARRAY(
      SELECT q.agent_id FROM perdure_store.recovery_agents q
      WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.state = 'fenced'
        AND coalesce((
          SELECT p.state NOT IN ('planned', 'fenced') FROM perdure_store.recovery_agents p
          WHERE p.tenant_id = p_tenant AND p.recovery_id = p_recovery AND p.agent_id <> q.agent_id
            AND p.agent_id = (
              SELECT c.parent_agent_id FROM perdure_store.agents c
              WHERE c.tenant_id = p_tenant AND c.agent_id = q.agent_id)), true)
      ORDER BY q.agent_id LIMIT p_limit
      FOR NO KEY UPDATE SKIP LOCKED);
  ELSE
    -- An agent that its new owner gave back does not hang on the lease any more.
    RETURN ARRAY(
      SELECT q.agent_id FROM perdure_store.recovery_agents q
      WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.state = 'restored'
        AND NOT coalesce((
          SELECT perdure_store.lease_is_live(x.revoke_time, x.expire_time, x.ttl_ms, p_connected_ms)
          FROM perdure_store.leases x
          WHERE x.tenant_id = p_tenant AND x.lease_id = q.lease_id), false)
        AND q.lease_id = (
          SELECT c.lease_id FROM perdure_store.agents c
          WHERE c.tenant_id = p_tenant AND c.agent_id = q.agent_id)
        AND coalesce((
          SELECT p.state <> 'restored' OR p.lease_id <> q.lease_id FROM perdure_store.recovery_agents p
          WHERE p.tenant_id = p_tenant AND p.recovery_id = p_recovery AND p.agent_id <> q.agent_id
            AND p.agent_id = (
              SELECT c.parent_agent_id FROM perdure_store.agents c
              WHERE c.tenant_id = p_tenant AND c.agent_id = q.agent_id)), true)
      ORDER BY q.agent_id LIMIT p_limit
      FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
END $$;

-- take_agents_1 hands fenced agents of a recovery to a lease by a second claim,
-- a parent with its subtree, one claim id of p_claims to each. With p_again it
-- hands out those that came back to the pool because their new worker's lease is
-- over. Rows as of claim_agents_1, in the order of p_claims.
CREATE FUNCTION perdure_store.take_agents_1(
  p_tenant text, p_recovery uuid, p_lease uuid, p_owner text, p_labels jsonb, p_ttl_ms bigint, p_connected_ms bigint,
  p_again boolean, p_claims uuid[])
RETURNS TABLE (outcome text, agent_id text, epoch bigint, claim_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l record;
  r record;
  a perdure_store.agents%ROWTYPE;
  k record;
  v_ids text[];
  v_claim uuid;
  v_used bigint := 0;
  v_taken text[] := '{}';
BEGIN
  l := perdure_store.touch_lease_1(p_tenant, p_lease, p_owner, p_labels, p_ttl_ms);
  IF l.outcome <> 'live' THEN
    outcome := l.outcome; RETURN NEXT; RETURN;
  END IF;
  v_ids := perdure_store.pool_agents_1(p_tenant, p_recovery, p_again, cardinality(p_claims), p_connected_ms);
  FOR r IN
    SELECT q.agent_id, q.epoch
    FROM unnest(v_ids) WITH ORDINALITY AS n (agent_id, place)
    CROSS JOIN LATERAL (
      SELECT x.agent_id, x.epoch FROM perdure_store.recovery_agents x
      WHERE x.tenant_id = p_tenant AND x.recovery_id = p_recovery AND x.agent_id = n.agent_id
      LIMIT 1) q
    ORDER BY n.place
  LOOP
    CONTINUE WHEN r.agent_id = ANY (v_taken);
    SELECT * INTO a FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = r.agent_id
    FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    IF a.epoch IS DISTINCT FROM r.epoch OR a.delete_time IS NOT NULL THEN
      UPDATE perdure_store.recovery_agents q SET state = 'moved'
      WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.agent_id = r.agent_id;
      CONTINUE;
    END IF;
    v_used := v_used + 1;
    v_claim := p_claims[v_used];
    FOR k IN
      SELECT s.agent_id, s.epoch
      FROM perdure_store.claim_subtree_1(p_tenant, r.agent_id, p_lease, v_claim, '', p_connected_ms) s
      ORDER BY s.agent_id <> r.agent_id, s.agent_id
    LOOP
      UPDATE perdure_store.recovery_agents q
      SET state = 'restored', epoch = k.epoch, lease_id = p_lease,
        message_count = (
          SELECT c.message_count FROM perdure_store.conversations c
          WHERE c.tenant_id = p_tenant AND c.conversation_id = (
            SELECT x.conversation_id FROM perdure_store.agents x
            WHERE x.tenant_id = p_tenant AND x.agent_id = k.agent_id))
      WHERE q.tenant_id = p_tenant AND q.recovery_id = p_recovery AND q.agent_id = k.agent_id;
      outcome := 'acquired'; agent_id := k.agent_id; epoch := k.epoch; claim_id := v_claim;
      v_taken := v_taken || k.agent_id;
      RETURN NEXT;
    END LOOP;
  END LOOP;
  PERFORM perdure_store.own_conversations_1(p_tenant, v_taken);
END $$;

-- migrate:down

DROP FUNCTION perdure_store.take_agents_1;
DROP FUNCTION perdure_store.pool_agents_1;
DROP FUNCTION perdure_store.fence_agents_1;
DROP FUNCTION perdure_store.plan_agents_1;
