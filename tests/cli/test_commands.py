"""What each command prints, and does, on a real server."""

from __future__ import annotations

import asyncio

import perdure
from tests.cli.conftest import Run, take_steps


async def _run(run: Run, *arguments: str, **environment: str):
    return await asyncio.to_thread(run, *arguments, **environment)


async def test_an_agent_is_listed_and_shown_with_its_newest_checkpoint(
    run, client, name
) -> None:
    await take_steps(client, name, 3)

    (listed,) = (await _run(run, "agents", "list", "--id", name, "--json")).records
    assert listed["lease_state"] == "live"
    assert listed["owner"] == "worker-1"
    assert listed["labels"] == {"node": "n-1"}

    shown = (await _run(run, "agents", "show", name, "--json")).record
    assert shown["head_step"] == 3
    assert shown["checkpoint"]["step"] == 3


async def test_a_list_in_a_pipe_is_tab_separated(run, client, name) -> None:
    await take_steps(client, name, 1)
    listed = await _run(run, "agents", "list", "--id", name)
    (row,) = listed.rows
    assert row[:4] == [name, "live", "worker-1", "node=n-1"]


async def test_a_limit_is_told(run, client, name) -> None:
    for number in range(3):
        await client.history.create(f"{name}-{number}", user_id=name)
    listed = await _run(run, "conversations", "list", "--user", name, "--limit", "2")
    assert len(listed.rows) == 2
    assert "--limit 0" in listed.stderr


async def test_the_newest_messages_of_a_conversation_are_shown(
    run, client, name
) -> None:
    payloads = [{"role": "user", "content": f"word {n}"} for n in range(5)]
    await client.history.append(name, payloads)

    shown = await _run(run, "conversations", "show", name, "--newest", "2")
    assert "word 3" in shown.stdout
    assert "word 2" not in shown.stdout

    records = (await _run(run, "conversations", "show", name, "--json")).records
    assert [record["payload"] for record in records] == payloads
    assert [record["seq"] for record in records] == [0, 1, 2, 3, 4]


async def test_a_state_is_shown_as_far_as_json_can_say_it(run, client, name) -> None:
    await take_steps(client, name, 2)
    listed = (await _run(run, "checkpoints", "list", name, "--json")).records
    assert [record["step"] for record in listed] == [2, 1]

    shown = await _run(run, "checkpoints", "show", name, "--step", "1", "--json")
    assert shown.record["state"] == {
        "number": 0,
        "pair": [1, {"$bytes": "eA=="}],
        "5": "nan",
    }


async def test_prune_keeps_the_newest_and_a_dry_run_keeps_all(
    run, client, name
) -> None:
    await take_steps(client, name, 4)
    prune = ("checkpoints", "prune", "--id", name, "--keep-steps", "1")
    prune += ("--keep-age", "0s", "--max-age", "30d", "--json")

    assert (await _run(run, *prune, "--dry-run")).record["checkpoint_count"] == 3
    assert len([_ async for _ in client.checkpoints.list(name)]) == 4
    assert (await _run(run, *prune)).record["checkpoint_count"] == 3
    assert [found.step async for found in client.checkpoints.list(name)] == [4]


async def test_drop_all_asks_first_and_leaves_the_messages(run, client, name) -> None:
    await take_steps(client, name, 2)
    drop = ("checkpoints", "drop-all", "--id", name)

    refused = await _run(run, *drop)
    assert refused.status == 1
    assert "--yes" in refused.stderr
    assert len([_ async for _ in client.checkpoints.list(name)]) == 2

    done = await _run(run, *drop, "--yes", "--json")
    assert done.record["checkpoint_count"] == 2
    assert len(await client.history.load(name)) == 2


async def test_a_recovery_is_planned_started_and_watched_to_its_end(
    run, server, name
) -> None:
    label = ("--label", f"node={name}")
    async with perdure.connect(
        server.address, key=server.key, labels={"node": name}
    ) as dying:
        await take_steps(dying, name, 1)
        plan = ("recover", "plan", *label, "--json")
        assert (await _run(run, *plan)).record["live_count"] == 1
        start = ("recover", "start", *label, "--even-live", "--json")
        started = (await _run(run, *start)).record
    assert started["fenced_count"] == 1
    recovery_id = started["recovery_id"]

    once = await _run(run, "recover", "watch", recovery_id, "--once")
    assert "1 fenced, 0 restored, 0 resumed" in once.stdout

    async with perdure.connect(server.address, key=server.key) as heir:
        async for agent in heir.agents.restore(recovery_id=recovery_id):
            async with agent, agent.step() as step:
                step.append({"role": "assistant", "content": "back"})
        watched = await _run(run, "recover", "watch", recovery_id, "--json")
    assert watched.status == 0
    assert watched.records[-1]["recovery"]["resumed_count"] == 1


async def test_a_new_key_opens_the_server_until_it_is_revoked(run, name) -> None:
    made = await _run(run, "keys", "create", "--scope", "read", "--id", name, "--json")
    key = made.record["key"]
    assert made.record["scopes"] == ["read"]
    assert (await _run(run, "agents", "list", PERDURE_KEY=key)).status == 0

    denied = await _run(run, "keys", "list", PERDURE_KEY=key)
    assert denied.status == 1
    assert denied.stderr.startswith("perdure: SCOPE_MISSING")

    assert (await _run(run, "keys", "revoke", name)).status == 0
    listed = (await _run(run, "keys", "list", "--json")).records
    (found,) = [record for record in listed if record["key_id"] == name]
    assert found["revoke_time"] is not None


async def test_a_new_tenant_has_a_key_and_sees_nothing_of_others(
    run, client, name
) -> None:
    await client.history.create(name)
    made = await _run(run, "tenants", "create", name, "--json")
    listed = await _run(
        run, "conversations", "list", "--json", PERDURE_KEY=made.record["key"]
    )
    assert listed.records == []
    tenants = (await _run(run, "tenants", "list", "--json")).records
    assert name in [record["tenant_id"] for record in tenants]


async def test_status_counts_agents_by_node_and_names_the_next_command(
    run, server, name
) -> None:
    made = (await _run(run, "tenants", "create", name, "--json")).record
    empty = (await _run(run, "status", "--json", PERDURE_KEY=made["key"])).record
    assert empty["agents"]["total"] == 0
    assert empty["next"] == "perdure import FILE.jsonl"

    worker = perdure.connect(
        server.address, key=made["key"], labels={"node": "n-9"}, owner="w"
    )
    async with worker as client:
        await take_steps(client, "held", 2)
        report = (await _run(run, "status", "--json", PERDURE_KEY=made["key"])).record
        shown = await _run(run, "status", PERDURE_KEY=made["key"])
    assert report["agents"] == {"total": 1, "held": 1, "live": 1, "lost": 0, "free": 0}
    assert report["conversations"] == 1
    assert report["messages"] == 2
    assert report["checkpoints"]["count"] == 2
    (node,) = report["nodes"]
    assert (node["node"], node["live"], node["lost"]) == ("n-9", 1, 0)
    assert "1 held (1 live, 0 lost), 0 free" in shown.stdout

    # The worker's lease ended with its client.
    after = (await _run(run, "status", "--json", PERDURE_KEY=made["key"])).record
    assert after["agents"]["lost"] == 1
    assert after["next"] == "perdure recover plan --lease lost"


async def test_status_without_the_admin_scope_says_what_it_left_out(run, name) -> None:
    made = await _run(run, "keys", "create", "--scope", "read", "--id", name, "--json")
    shown = await _run(run, "status", PERDURE_KEY=made.record["key"])
    assert shown.status == 0
    assert "lacks the admin scope" in shown.stdout
