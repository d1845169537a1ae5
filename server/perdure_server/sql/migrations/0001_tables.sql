-- migrate:up

-- Tables of the server. Everything in this schema may change; the views in
-- schema perdure are the public contract.
CREATE SCHEMA IF NOT EXISTS perdure_store;
CREATE SCHEMA perdure;

COMMENT ON SCHEMA perdure IS 'Public views of Perdure: stable names for people and SQL.';

CREATE TABLE perdure_store.tenants (
  tenant_id text COLLATE "C" NOT NULL,
  display_name text NOT NULL,
  token_key bytea NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id),
  CONSTRAINT tenants_tenant_id_check CHECK (tenant_id ~ '^[a-z0-9-]{1,63}$')
);
COMMENT ON TABLE perdure_store.tenants IS 'Written by AdminService. token_key signs page and resume tokens, so every server reads every other''s.';

CREATE TABLE perdure_store.api_keys (
  tenant_id text COLLATE "C" NOT NULL,
  key_id text COLLATE "C" NOT NULL,
  secret_digest bytea NOT NULL,
  scopes text[] NOT NULL,
  display_name text NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now(),
  expire_time timestamptz,
  revoke_time timestamptz,
  CONSTRAINT api_keys_pkey PRIMARY KEY (tenant_id, key_id),
  CONSTRAINT api_keys_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES perdure_store.tenants
);
COMMENT ON TABLE perdure_store.api_keys IS 'Written by AdminService. secret_digest is the SHA-256 of a random secret.';

CREATE TABLE perdure_store.conversations (
  tenant_id text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  message_count bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 1,
  generation bigint NOT NULL DEFAULT 1,
  owned boolean NOT NULL DEFAULT false,
  user_id text NOT NULL DEFAULT '',
  agent_slug text NOT NULL DEFAULT '',
  source_format text NOT NULL DEFAULT '',
  source_id text NOT NULL DEFAULT '',
  metadata text NOT NULL DEFAULT '',
  content_digest bytea,
  forked_from text COLLATE "C",
  fork_seq bigint,
  create_time timestamptz NOT NULL DEFAULT now(),
  close_time timestamptz,
  delete_time timestamptz,
  CONSTRAINT conversations_pkey PRIMARY KEY (tenant_id, conversation_id),
  CONSTRAINT conversations_message_count_check CHECK (message_count >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE perdure_store.conversations IS 'Appends lock this row. generation rises when a purged id is used again; content_digest is that of the creating request (NULL: made by an acquire or an append). close_time, delete_time, forked_from and fork_seq are read here and written by calls that are not served yet.';

CREATE INDEX conversations_user_idx ON perdure_store.conversations (user_id, tenant_id, conversation_id) WHERE user_id <> '';

CREATE TABLE perdure_store.messages (
  tenant_id text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  step bigint NOT NULL DEFAULT 0,
  epoch bigint NOT NULL DEFAULT 0,
  superseded_by bigint,
  record_time timestamptz NOT NULL DEFAULT now(),
  create_time timestamptz,
  message_id text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL DEFAULT '',
  branch text COLLATE "C" NOT NULL DEFAULT '',
  role text NOT NULL,
  digest bytea NOT NULL,
  body bytea NOT NULL,
  content text,
  tool_call_id text,
  tool_name text,
  tool_args text,
  tool_result text,
  model text,
  run_id text COLLATE "C",
  input_tokens bigint,
  cached_tokens bigint,
  output_tokens bigint,
  reasoning_tokens bigint,
  CONSTRAINT messages_pkey PRIMARY KEY (tenant_id, conversation_id, seq),
  CONSTRAINT messages_conversation_fkey FOREIGN KEY (tenant_id, conversation_id) REFERENCES perdure_store.conversations,
  CONSTRAINT messages_role_check CHECK (role IN ('user', 'assistant', 'tool', 'system'))
);
ALTER TABLE perdure_store.messages ALTER body SET STORAGE EXTERNAL;
COMMENT ON TABLE perdure_store.messages IS 'Written by append_messages_1 only. body is the client''s Message, byte for byte, and the truth; content and the columns after it are projections for people and SQL.';

CREATE TABLE perdure_store.message_keys (
  tenant_id text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  message_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  digest bytea NOT NULL,
  CONSTRAINT message_keys_pkey PRIMARY KEY (tenant_id, conversation_id, message_id)
);
COMMENT ON TABLE perdure_store.message_keys IS 'Where a message id stands. Written by append_messages_1 only. A table of its own with one index: as a second index of messages, the planner of a fresh database takes the primary key instead and reads the whole conversation.';

CREATE TABLE perdure_store.message_tool_calls (
  tenant_id text COLLATE "C" NOT NULL,
  conversation_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  ordinal bigint NOT NULL,
  call_id text NOT NULL,
  name text NOT NULL,
  arguments text NOT NULL,
  CONSTRAINT message_tool_calls_pkey PRIMARY KEY (tenant_id, conversation_id, seq, ordinal),
  CONSTRAINT message_tool_calls_message_fkey FOREIGN KEY (tenant_id, conversation_id, seq) REFERENCES perdure_store.messages
);
COMMENT ON TABLE perdure_store.message_tool_calls IS 'Projection: one row for each tool call of a message. Written by append_messages_1 only. arguments as the model wrote them, possibly not JSON.';

CREATE TABLE perdure_store.leases (
  tenant_id text COLLATE "C" NOT NULL,
  lease_id uuid NOT NULL,
  ttl_ms bigint NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now(),
  expire_time timestamptz NOT NULL,
  revoke_time timestamptz,
  owner text NOT NULL,
  labels jsonb NOT NULL DEFAULT '{}',
  CONSTRAINT leases_pkey PRIMARY KEY (tenant_id, lease_id),
  CONSTRAINT leases_ttl_ms_check CHECK (ttl_ms > 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE perdure_store.leases IS 'One row per worker process. Times are written and judged only inside functions, so that one clock judges. Nothing that a renewal changes is indexed.';

CREATE TABLE perdure_store.agents (
  tenant_id text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  claim_id uuid,
  lease_id uuid,
  generation bigint NOT NULL DEFAULT 1,
  conversation_id text COLLATE "C" NOT NULL,
  canonical_branch text COLLATE "C" NOT NULL DEFAULT 'main',
  parent_agent_id text COLLATE "C",
  agent_slug text NOT NULL DEFAULT '',
  framework text NOT NULL DEFAULT '',
  create_time timestamptz NOT NULL DEFAULT now(),
  delete_time timestamptz,
  CONSTRAINT agents_pkey PRIMARY KEY (tenant_id, agent_id),
  CONSTRAINT agents_conversation_fkey FOREIGN KEY (tenant_id, conversation_id) REFERENCES perdure_store.conversations
) WITH (fillfactor = 70);
COMMENT ON TABLE perdure_store.agents IS 'Updated by claims and releases only; every fenced write locks its row FOR SHARE to its commit. (epoch, claim_id) is the fence. epoch 0: never acquired. lease_id NULL: free. generation and delete_time are for deletion, which is not served yet.';

-- The column that picks comes first: an index that begins with tenant_id looks to
-- the planner of a fresh database as good as the primary key.
CREATE INDEX agents_lease_idx ON perdure_store.agents (lease_id, tenant_id) WHERE lease_id IS NOT NULL;
CREATE INDEX agents_conversation_idx ON perdure_store.agents (conversation_id, tenant_id);
CREATE INDEX agents_parent_idx ON perdure_store.agents (parent_agent_id, tenant_id) WHERE parent_agent_id IS NOT NULL;

CREATE TABLE perdure_store.branches (
  tenant_id text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  branch text COLLATE "C" NOT NULL,
  head_step bigint NOT NULL DEFAULT 0,
  keyframe_step bigint NOT NULL DEFAULT 0,
  chain_links bigint NOT NULL DEFAULT 0,
  chain_bytes bigint NOT NULL DEFAULT 0,
  head_epoch bigint NOT NULL DEFAULT 0,
  head_schema_version bigint NOT NULL DEFAULT 0,
  fork_step bigint,
  head_digest bytea,
  dropped_digest bytea,
  fork_branch text COLLATE "C",
  create_time timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT branches_pkey PRIMARY KEY (tenant_id, agent_id, branch),
  CONSTRAINT branches_agent_fkey FOREIGN KEY (tenant_id, agent_id) REFERENCES perdure_store.agents
) WITH (fillfactor = 50);
COMMENT ON TABLE perdure_store.branches IS 'Heads. head_step 0: no step yet. head_digest NULL with head_step > 0: the checkpoints were dropped and the next must be a keyframe; dropped_digest is then what it was, so that a retry of the head is still recognised. fork_step and fork_branch are for forks, which are not served yet. chain_links and chain_bytes count from keyframe_step.';

CREATE TABLE perdure_store.checkpoints (
  tenant_id text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  branch text COLLATE "C" NOT NULL,
  step bigint NOT NULL,
  parent_step bigint NOT NULL,
  base_step bigint,
  keyframe_step bigint NOT NULL,
  read_seq bigint NOT NULL,
  schema_version bigint NOT NULL,
  epoch bigint NOT NULL,
  raw_bytes bigint NOT NULL,
  frame_bytes bigint NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now(),
  delete_time timestamptz,
  raw_digest bytea NOT NULL,
  blob_digest bytea,
  run_id text COLLATE "C" NOT NULL DEFAULT '',
  metadata text NOT NULL DEFAULT '',
  frame bytea,
  CONSTRAINT checkpoints_pkey PRIMARY KEY (tenant_id, agent_id, branch, step),
  CONSTRAINT checkpoints_branch_fkey FOREIGN KEY (tenant_id, agent_id, branch) REFERENCES perdure_store.branches,
  CONSTRAINT checkpoints_step_check CHECK (step > 0 AND parent_step < step),
  CONSTRAINT checkpoints_frame_check CHECK ((frame IS NULL) <> (blob_digest IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE perdure_store.checkpoints ALTER frame SET STORAGE EXTERNAL;
COMMENT ON TABLE perdure_store.checkpoints IS 'Written by put_checkpoint_1, removed by retention. A keyframe and its deltas are a segment, named by keyframe_step; a row goes only when no survivor of its segment comes after it, else delete_time hides it. Dropping all of them loses nothing that cannot be rebuilt; no foreign key points here. blob_digest is for frames above the inline limit, which are not served yet.';

CREATE TABLE perdure_store.recoveries (
  tenant_id text COLLATE "C" NOT NULL,
  recovery_id uuid NOT NULL,
  even_live boolean NOT NULL,
  create_time timestamptz NOT NULL DEFAULT now(),
  planned_time timestamptz,
  selector_digest bytea NOT NULL,
  CONSTRAINT recoveries_pkey PRIMARY KEY (tenant_id, recovery_id)
);
COMMENT ON TABLE perdure_store.recoveries IS 'One row per StartRecovery. planned_time: when the list of its agents was complete.';

CREATE TABLE perdure_store.recovery_agents (
  tenant_id text COLLATE "C" NOT NULL,
  recovery_id uuid NOT NULL,
  planned_epoch bigint NOT NULL,
  epoch bigint,
  head_step bigint NOT NULL DEFAULT 0,
  chain_bytes bigint NOT NULL DEFAULT 0,
  message_count bigint NOT NULL DEFAULT 0,
  lease_id uuid,
  agent_id text COLLATE "C" NOT NULL,
  state text NOT NULL DEFAULT 'planned',
  CONSTRAINT recovery_agents_pkey PRIMARY KEY (tenant_id, recovery_id, agent_id),
  CONSTRAINT recovery_agents_recovery_fkey FOREIGN KEY (tenant_id, recovery_id) REFERENCES perdure_store.recoveries,
  CONSTRAINT recovery_agents_state_check CHECK (state IN ('planned', 'fenced', 'moved', 'live', 'busy', 'restored', 'broken'))
) WITH (fillfactor = 50);
COMMENT ON TABLE perdure_store.recovery_agents IS 'The plan of a recovery and how far each agent is. epoch is that of the fence, then of the new owner; message_count that at delivery. Resumed is derived: the new owner''s epoch stands at the head or in a message.';

CREATE INDEX recovery_agents_waiting_idx ON perdure_store.recovery_agents (recovery_id, tenant_id, agent_id) WHERE state IN ('planned', 'fenced');

CREATE TABLE perdure_store.retention_policies (
  tenant_id text COLLATE "C" NOT NULL,
  keep_steps bigint NOT NULL,
  keep_age_ms bigint NOT NULL,
  max_age_ms bigint NOT NULL,
  CONSTRAINT retention_policies_pkey PRIMARY KEY (tenant_id),
  CONSTRAINT retention_policies_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES perdure_store.tenants,
  CONSTRAINT retention_policies_check CHECK (keep_steps >= 1 AND keep_age_ms >= 0 AND max_age_ms >= keep_age_ms)
);
COMMENT ON TABLE perdure_store.retention_policies IS 'A tenant''s own policy. Without a row: 50 steps, a day, 30 days.';

-- migrate:down

DROP TABLE perdure_store.retention_policies, perdure_store.recovery_agents, perdure_store.recoveries,
  perdure_store.checkpoints, perdure_store.branches, perdure_store.agents, perdure_store.leases,
  perdure_store.message_tool_calls, perdure_store.message_keys, perdure_store.messages, perdure_store.conversations,
  perdure_store.api_keys, perdure_store.tenants;
DROP SCHEMA perdure;
