-- migrate:up

-- Whether a lease still protects its agents. A server that has been connected
-- for less than the lease's ttl (p_connected_ms) calls no lease expired, so an
-- outage of Postgres steals no fleet; a revoked one is over at once.
CREATE FUNCTION perdure_store.lease_is_live(
  p_revoke_time timestamptz, p_expire_time timestamptz, p_ttl_ms bigint, p_connected_ms bigint)
RETURNS boolean
LANGUAGE sql STABLE
RETURN p_revoke_time IS NULL AND (p_expire_time > clock_timestamp() OR p_ttl_ms > p_connected_ms);

-- How the statements of this file are written: the planner of a fresh database
-- has no statistics, and a join, a semi-join or an `= ANY` may then read a whole
-- table. Keys travel as sorted arrays; rows are looked up one by one, by LATERAL
-- with LIMIT, or by scalar subqueries, which it cannot turn into joins.

-- An agent and all below it. 100 levels at most.
CREATE FUNCTION perdure_store.subtree_1(p_tenant text, p_agent text)
RETURNS SETOF text
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE tree (agent_id, depth) AS (
    SELECT p_agent COLLATE "C", 0
    UNION
    SELECT a.agent_id, t.depth + 1
    FROM tree t
    CROSS JOIN LATERAL (
      SELECT x.agent_id FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.parent_agent_id = t.agent_id
      LIMIT 100000) a
    WHERE t.depth < 100
  )
  SELECT DISTINCT agent_id FROM tree
$$;

-- select_agents_1 answers an AgentSelector: NULL arguments do not filter. Pages
-- by agent_id: those after p_after, at most p_limit. Custom plans, since each
-- combination of filters wants its own; in the order of the index, since a sort
-- reads the whole tenant for each page.
CREATE FUNCTION perdure_store.select_agents_1(
  p_tenant text, p_agents text[], p_owner text, p_labels jsonb, p_lease_state text, p_framework text,
  p_agent_slug text, p_parent text, p_max_schema_version bigint, p_connected_ms bigint, p_after text, p_limit bigint)
RETURNS TABLE (
  agent_id text, conversation_id text, agent_slug text, parent_agent_id text, framework text, epoch bigint,
  lease_id uuid, lease_state text, owner text, labels jsonb, expire_time timestamptz, canonical_branch text,
  head_step bigint, schema_version bigint, chain_bytes bigint, message_count bigint, create_time timestamptz)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_sort = off
SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT a.agent_id, a.conversation_id, a.agent_slug, a.parent_agent_id, a.framework, a.epoch,
    a.lease_id, s.lease_state, l.owner, l.labels, l.expire_time, a.canonical_branch,
    coalesce(b.head_step, 0), coalesce(b.head_schema_version, 0),
    CASE WHEN b.head_digest IS NULL THEN 0 ELSE b.chain_bytes END, c.message_count, a.create_time
  FROM perdure_store.agents a
  LEFT JOIN LATERAL (
    SELECT x.* FROM perdure_store.leases x
    WHERE x.tenant_id = p_tenant AND x.lease_id = a.lease_id LIMIT 1) l ON true
  LEFT JOIN LATERAL (
    SELECT x.* FROM perdure_store.branches x
    WHERE x.tenant_id = p_tenant AND x.agent_id = a.agent_id AND x.branch = a.canonical_branch LIMIT 1) b ON true
  CROSS JOIN LATERAL (
    SELECT x.message_count FROM perdure_store.conversations x
    WHERE x.tenant_id = p_tenant AND x.conversation_id = a.conversation_id LIMIT 1) c
  CROSS JOIN LATERAL (
    SELECT CASE
      WHEN a.lease_id IS NULL THEN 'free'
      WHEN perdure_store.lease_is_live(l.revoke_time, l.expire_time, l.ttl_ms, p_connected_ms) THEN 'live'
      ELSE 'lost' END AS lease_state) s
  WHERE a.tenant_id = p_tenant AND a.delete_time IS NULL
    AND (p_after IS NULL OR a.agent_id > p_after)
    AND (p_agents IS NULL OR a.agent_id = ANY (p_agents))
    AND (p_owner IS NULL OR l.owner = p_owner)
    AND (p_labels IS NULL OR l.labels @> p_labels)
    AND (p_lease_state IS NULL OR s.lease_state = p_lease_state)
    AND (p_framework IS NULL OR a.framework = p_framework)
    AND (p_agent_slug IS NULL OR a.agent_slug = p_agent_slug)
    AND (p_parent IS NULL OR a.parent_agent_id = p_parent)
    AND (p_max_schema_version IS NULL OR coalesce(b.head_schema_version, 0) <= p_max_schema_version)
  ORDER BY a.agent_id
  LIMIT p_limit;
END $$;

-- touch_lease_1 makes or renews a lease; NULL when it was revoked. The expiry
-- counts from after any wait for the row. p_owner NULL: renew only.
CREATE FUNCTION perdure_store.touch_lease_1(
  p_tenant text, p_lease uuid, p_owner text, p_labels jsonb, p_ttl_ms bigint,
  OUT outcome text, OUT owner text, OUT labels jsonb, OUT ttl_ms bigint, OUT expire_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l perdure_store.leases%ROWTYPE;
  v_expire timestamptz;
BEGIN
  IF p_owner IS NOT NULL THEN
    v_expire := clock_timestamp() + p_ttl_ms * interval '1 ms';
    INSERT INTO perdure_store.leases (tenant_id, lease_id, ttl_ms, expire_time, owner, labels)
    VALUES (p_tenant, p_lease, p_ttl_ms, v_expire, p_owner, p_labels)
    ON CONFLICT DO NOTHING;
  END IF;
  SELECT * INTO l FROM perdure_store.leases x
  WHERE x.tenant_id = p_tenant AND x.lease_id = p_lease
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN outcome := 'no_lease'; RETURN; END IF;
  IF l.revoke_time IS NOT NULL THEN outcome := 'revoked'; RETURN; END IF;
  ttl_ms := coalesce(p_ttl_ms, l.ttl_ms);
  v_expire := clock_timestamp() + ttl_ms * interval '1 ms';
  -- Never shortens: a renewal by an open stream may race with the worker's.
  v_expire := greatest(v_expire, l.expire_time);
  UPDATE perdure_store.leases x
  SET expire_time = v_expire
  WHERE x.tenant_id = p_tenant AND x.lease_id = p_lease;
  outcome := 'live'; owner := l.owner; labels := l.labels; ttl_ms := l.ttl_ms; expire_time := v_expire;
END $$;

-- renew_lease_1 renews a lease and returns the agents among p_agents whose fence
-- is no longer current.
CREATE FUNCTION perdure_store.renew_lease_1(
  p_tenant text, p_lease uuid, p_agents text[], p_epochs bigint[], p_claims uuid[],
  OUT outcome text, OUT owner text, OUT labels jsonb, OUT ttl_ms bigint, OUT expire_time timestamptz,
  OUT stale_agents text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l record;
BEGIN
  l := perdure_store.touch_lease_1(p_tenant, p_lease, NULL, NULL, NULL);
  outcome := l.outcome; owner := l.owner; labels := l.labels; ttl_ms := l.ttl_ms; expire_time := l.expire_time;
  stale_agents := ARRAY(
    SELECT f.agent_id
    FROM unnest(p_agents, p_epochs, p_claims) AS f (agent_id, epoch, claim_id)
    WHERE NOT EXISTS (
      SELECT FROM perdure_store.agents a
      WHERE a.tenant_id = p_tenant AND a.agent_id = f.agent_id AND a.epoch = f.epoch AND a.claim_id = f.claim_id));
END $$;

-- lock_subtrees_1 locks agents and all below them, in the order of the house. Not
-- for direct use.
CREATE FUNCTION perdure_store.lock_subtrees_1(p_tenant text, p_agents text[])
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
BEGIN
  FOR v_id IN
    SELECT DISTINCT t.agent_id COLLATE "C"
    FROM unnest(p_agents) AS n (agent_id)
    CROSS JOIN LATERAL perdure_store.subtree_1(p_tenant, n.agent_id) AS t (agent_id)
    ORDER BY 1
  LOOP
    PERFORM 1 FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = v_id
    FOR NO KEY UPDATE;
  END LOOP;
END $$;

-- claim_subtree_1 gives an agent, whose row is locked, and its subtree to a
-- lease (NULL: to nobody) under a new claim. Sub-agents that a live lease of
-- somebody else holds stay where they are. Not for direct use.
CREATE FUNCTION perdure_store.claim_subtree_1(
  p_tenant text, p_agent text, p_lease uuid, p_claim uuid, p_framework text, p_connected_ms bigint)
RETURNS TABLE (agent_id text, epoch bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_old_lease uuid;
  v_id text;
BEGIN
  SELECT x.lease_id INTO v_old_lease FROM perdure_store.agents x
  WHERE x.tenant_id = p_tenant AND x.agent_id = p_agent;
  FOR v_id IN
    SELECT t.agent_id FROM perdure_store.subtree_1(p_tenant, p_agent) AS t (agent_id)
    ORDER BY t.agent_id COLLATE "C"
  LOOP
    -- Judged in a later statement than the lock, which sees a rival's renewed lease.
    PERFORM 1 FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = v_id AND x.agent_id <> p_agent
    FOR NO KEY UPDATE;
    UPDATE perdure_store.agents x
    SET epoch = x.epoch + 1, claim_id = p_claim, lease_id = p_lease,
      framework = CASE WHEN p_framework <> '' AND x.agent_id = p_agent THEN p_framework ELSE x.framework END
    WHERE x.tenant_id = p_tenant AND x.agent_id = v_id AND x.delete_time IS NULL
      AND (x.agent_id = p_agent OR x.lease_id IS NULL OR x.lease_id = v_old_lease OR x.lease_id = p_lease
        OR NOT (
          SELECT perdure_store.lease_is_live(l.revoke_time, l.expire_time, l.ttl_ms, p_connected_ms)
          FROM perdure_store.leases l
          WHERE l.tenant_id = p_tenant AND l.lease_id = x.lease_id))
    RETURNING x.agent_id, x.epoch INTO agent_id, epoch;
    IF FOUND THEN RETURN NEXT; END IF;
  END LOOP;
END $$;

-- acquire_agents_1 claims agents by id for a lease and makes what is missing.
--
-- One row per agent asked for (request: 1-based place): acquired, replayed,
-- held, conflict, deleted; and one for each sub-agent taken along. A single row
-- with request NULL refuses the call: revoked.
CREATE FUNCTION perdure_store.acquire_agents_1(
  p_tenant text, p_lease uuid, p_owner text, p_labels jsonb, p_ttl_ms bigint, p_connected_ms bigint,
  p_agents text[], p_conversations text[], p_agent_slugs text[], p_parents text[], p_frameworks text[], p_claims uuid[])
RETURNS TABLE (
  request bigint, outcome text, agent_id text, epoch bigint, claim_id uuid, conversation_id text,
  message_count bigint, event_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l record;
  i record;
  a perdure_store.agents%ROWTYPE;
  k record;
  v_live boolean;
  v_conversation text;
  v_taken text[] := '{}';
BEGIN
  l := perdure_store.touch_lease_1(p_tenant, p_lease, p_owner, p_labels, p_ttl_ms);
  IF l.outcome <> 'live' THEN
    outcome := l.outcome; RETURN NEXT; RETURN;
  END IF;

  INSERT INTO perdure_store.conversations (tenant_id, conversation_id, agent_slug)
  SELECT DISTINCT ON (n.conversation_id) p_tenant, n.conversation_id, n.agent_slug
  FROM unnest(p_agents, p_conversations, p_agent_slugs) AS n (agent_id, conversation_id, agent_slug)
  WHERE (SELECT x.epoch FROM perdure_store.agents x WHERE x.tenant_id = p_tenant AND x.agent_id = n.agent_id) IS NULL
  ORDER BY n.conversation_id
  ON CONFLICT DO NOTHING;
  INSERT INTO perdure_store.agents (tenant_id, agent_id, conversation_id, agent_slug, parent_agent_id, framework)
  SELECT p_tenant, n.agent_id, n.conversation_id, n.agent_slug, n.parent, n.framework
  FROM unnest(p_agents, p_conversations, p_agent_slugs, p_parents, p_frameworks)
    AS n (agent_id, conversation_id, agent_slug, parent, framework)
  ORDER BY n.agent_id
  ON CONFLICT DO NOTHING;

  PERFORM perdure_store.lock_subtrees_1(p_tenant, p_agents);

  FOR i IN
    SELECT n.* FROM unnest(p_agents, p_conversations, p_frameworks, p_claims)
      WITH ORDINALITY AS n (agent_id, conversation_id, framework, claim_id, place)
    ORDER BY n.place
  LOOP
    request := i.place; agent_id := i.agent_id; epoch := NULL; claim_id := NULL; event_time := NULL;
    SELECT * INTO a FROM perdure_store.agents x WHERE x.tenant_id = p_tenant AND x.agent_id = i.agent_id;
    conversation_id := a.conversation_id;
    SELECT c.message_count, c.delete_time INTO message_count, event_time FROM perdure_store.conversations c
    WHERE c.tenant_id = p_tenant AND c.conversation_id = a.conversation_id;
    SELECT perdure_store.lease_is_live(x.revoke_time, x.expire_time, x.ttl_ms, p_connected_ms) INTO v_live
    FROM perdure_store.leases x WHERE x.tenant_id = p_tenant AND x.lease_id = a.lease_id;
    IF a.delete_time IS NOT NULL OR event_time IS NOT NULL THEN
      outcome := 'deleted'; event_time := coalesce(a.delete_time, event_time); RETURN NEXT; CONTINUE;
    END IF;
    IF a.conversation_id <> i.conversation_id THEN
      outcome := 'conflict'; RETURN NEXT; CONTINUE;
    END IF;
    IF a.claim_id = i.claim_id AND a.lease_id = p_lease THEN
      outcome := 'replayed'; epoch := a.epoch; claim_id := a.claim_id; RETURN NEXT; CONTINUE;
    END IF;
    IF coalesce(v_live, false) THEN
      outcome := 'held'; RETURN NEXT; CONTINUE;
    END IF;
    FOR k IN
      SELECT s.agent_id, s.epoch
      FROM perdure_store.claim_subtree_1(p_tenant, i.agent_id, p_lease, i.claim_id, i.framework, p_connected_ms) s
      ORDER BY s.agent_id <> i.agent_id, s.agent_id
    LOOP
      request := CASE WHEN k.agent_id = i.agent_id THEN i.place END;
      outcome := 'acquired'; agent_id := k.agent_id; epoch := k.epoch; claim_id := i.claim_id;
      v_taken := v_taken || k.agent_id;
      SELECT x.conversation_id INTO v_conversation FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.agent_id = k.agent_id;
      SELECT c.message_count INTO message_count FROM perdure_store.conversations c
      WHERE c.tenant_id = p_tenant AND c.conversation_id = v_conversation;
      conversation_id := v_conversation;
      RETURN NEXT;
    END LOOP;
  END LOOP;

  PERFORM perdure_store.own_conversations_1(p_tenant, v_taken);
END $$;

-- own_conversations_1 marks the conversations of acquired agents: from now on
-- fences are required there.
CREATE FUNCTION perdure_store.own_conversations_1(p_tenant text, p_agents text[])
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_id text;
BEGIN
  FOR v_id IN
    SELECT DISTINCT a.conversation_id
    FROM unnest(p_agents) AS n (agent_id)
    CROSS JOIN LATERAL (
      SELECT x.conversation_id FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.agent_id = n.agent_id
      LIMIT 1) a
    ORDER BY a.conversation_id
  LOOP
    UPDATE perdure_store.conversations c
    SET owned = true, revision = c.revision + 1
    WHERE c.tenant_id = p_tenant AND c.conversation_id = v_id AND NOT c.owned;
  END LOOP;
END $$;

-- claim_agents_1 gives agents that a selector picked to a lease, each by
-- compare-and-set on the epoch that was seen. Agents locked by a writer or a
-- rival are passed over, so many workers may pull at once. One row per agent
-- taken (`acquired`, sub-agents too), or moved, or live; a single row with
-- agent_id NULL refuses the call: revoked, no_lease.
CREATE FUNCTION perdure_store.claim_agents_1(
  p_tenant text, p_lease uuid, p_owner text, p_labels jsonb, p_ttl_ms bigint, p_connected_ms bigint,
  p_agents text[], p_epochs bigint[], p_claims uuid[])
RETURNS TABLE (outcome text, agent_id text, epoch bigint, claim_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  l record;
  i record;
  a perdure_store.agents%ROWTYPE;
  v_live boolean;
  v_taken text[] := '{}';
  k record;
BEGIN
  l := perdure_store.touch_lease_1(p_tenant, p_lease, p_owner, p_labels, p_ttl_ms);
  IF l.outcome <> 'live' THEN
    outcome := l.outcome; RETURN NEXT; RETURN;
  END IF;
  FOR i IN
    SELECT n.agent_id, n.epoch, n.claim_id FROM unnest(p_agents, p_epochs, p_claims) AS n (agent_id, epoch, claim_id)
    ORDER BY n.agent_id
  LOOP
    CONTINUE WHEN i.agent_id = ANY (v_taken);
    SELECT * INTO a FROM perdure_store.agents x
    WHERE x.tenant_id = p_tenant AND x.agent_id = i.agent_id
    FOR NO KEY UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    agent_id := i.agent_id; epoch := NULL; claim_id := NULL;
    SELECT perdure_store.lease_is_live(x.revoke_time, x.expire_time, x.ttl_ms, p_connected_ms) INTO v_live
    FROM perdure_store.leases x WHERE x.tenant_id = p_tenant AND x.lease_id = a.lease_id;
    IF a.epoch <> i.epoch OR a.delete_time IS NOT NULL THEN
      outcome := 'moved'; RETURN NEXT; CONTINUE;
    END IF;
    IF coalesce(v_live, false) THEN
      outcome := 'live'; RETURN NEXT; CONTINUE;
    END IF;
    FOR k IN
      SELECT s.agent_id, s.epoch
      FROM perdure_store.claim_subtree_1(p_tenant, i.agent_id, p_lease, i.claim_id, '', p_connected_ms) s
      ORDER BY s.agent_id <> i.agent_id, s.agent_id
    LOOP
      outcome := 'acquired'; agent_id := k.agent_id; epoch := k.epoch; claim_id := i.claim_id;
      v_taken := v_taken || k.agent_id;
      RETURN NEXT;
    END LOOP;
  END LOOP;
  PERFORM perdure_store.own_conversations_1(p_tenant, v_taken);
END $$;

-- release_agents_1 frees agents whose fence is current, with their subtrees; the
-- fence is void afterwards. p_revoke_lease NULL: the lease goes on.
CREATE FUNCTION perdure_store.release_agents_1(
  p_tenant text, p_agents text[], p_epochs bigint[], p_claims uuid[], p_revoke_lease uuid)
RETURNS TABLE (agent_id text, released boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  i record;
  v_now timestamptz;
  v_id text;
BEGIN
  IF p_revoke_lease IS NOT NULL THEN
    PERFORM 1 FROM perdure_store.leases x
    WHERE x.tenant_id = p_tenant AND x.lease_id = p_revoke_lease
    FOR NO KEY UPDATE;
    v_now := clock_timestamp();
    UPDATE perdure_store.leases x SET revoke_time = v_now
    WHERE x.tenant_id = p_tenant AND x.lease_id = p_revoke_lease AND x.revoke_time IS NULL;
  END IF;
  PERFORM perdure_store.lock_subtrees_1(p_tenant, p_agents);
  FOR i IN
    SELECT n.agent_id, n.epoch, n.claim_id FROM unnest(p_agents, p_epochs, p_claims) AS n (agent_id, epoch, claim_id)
    ORDER BY n.agent_id
  LOOP
    agent_id := i.agent_id;
    released := EXISTS (
      SELECT FROM perdure_store.agents x
      WHERE x.tenant_id = p_tenant AND x.agent_id = i.agent_id AND x.epoch = i.epoch
        AND (x.claim_id = i.claim_id OR x.claim_id IS NULL));
    IF released THEN
      FOR v_id IN SELECT perdure_store.subtree_1(p_tenant, i.agent_id) LOOP
        UPDATE perdure_store.agents x SET lease_id = NULL, claim_id = NULL
        WHERE x.tenant_id = p_tenant AND x.agent_id = v_id AND x.claim_id = i.claim_id;
      END LOOP;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- migrate:down

DROP FUNCTION perdure_store.release_agents_1;
DROP FUNCTION perdure_store.claim_agents_1;
DROP FUNCTION perdure_store.own_conversations_1;
DROP FUNCTION perdure_store.acquire_agents_1;
DROP FUNCTION perdure_store.claim_subtree_1;
DROP FUNCTION perdure_store.lock_subtrees_1;
DROP FUNCTION perdure_store.renew_lease_1;
DROP FUNCTION perdure_store.touch_lease_1;
DROP FUNCTION perdure_store.select_agents_1;
DROP FUNCTION perdure_store.subtree_1;
DROP FUNCTION perdure_store.lease_is_live;
