"""Conversations through the client, on a real server."""

import asyncio
from contextlib import aclosing

import pytest

import perdure
from tests.client.conftest import Connect


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_payloads_come_back_as_they_went_in(
    client: perdure.AsyncClient, name: str
) -> None:
    turns = [
        user("Wie sp\u00e4t? \u0000 \U0001f600"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "now", "arguments": '{"zone": "CET"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
        {"role": "assistant", "content": "Zw\u00f6lf.", "refusal": None},
    ]

    await client.history.append(name, turns)

    assert await client.history.load(name) == turns


async def test_a_serialized_payload_comes_back_byte_for_byte(
    client: perdure.AsyncClient, name: str
) -> None:
    given = b'{ "content": "a",\n "role":"user" }'

    await client.history.append(name, [given])

    stored = [message async for message in client.history.read(name)]
    assert stored[0].message.native.payload == given
    assert stored[0].role == "user"


async def test_a_wrong_expected_seq_is_a_conflict_that_says_both(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("1"), user("2")])

    with pytest.raises(perdure.Conflict) as caught:
        await client.history.append(name, [user("3")], expected_seq=1)

    assert caught.value.reason == "SEQ_CONFLICT"
    assert caught.value.metadata["expected_seq"] == "1"
    assert caught.value.metadata["current_seq"] == "2"


async def test_the_same_ids_again_are_answered_as_before(
    client: perdure.AsyncClient, name: str
) -> None:
    first = await client.history.append(name, [user("1")], message_ids=["m1"])
    again = await client.history.append(name, [user("1")], message_ids=["m1"])

    assert [message.seq for message in again.messages] == [first.messages[0].seq]
    assert again.messages[0].replayed
    assert len(await client.history.load(name)) == 1


async def test_an_id_with_other_content_is_invalid(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("1")], message_ids=["m1"])

    with pytest.raises(perdure.Invalid) as caught:
        await client.history.append(name, [user("2")], message_ids=["m1"])

    assert caught.value.reason == "ID_REUSED"


async def test_reading_begins_ends_and_turns_where_it_is_told(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user(str(n)) for n in range(10)])

    async def seqs(**options: object) -> list[int]:
        read = client.history.read(name, **options)  # type: ignore[arg-type]
        return [message.seq async for message in read]

    assert await seqs() == list(range(10))
    assert await seqs(from_seq=7) == [7, 8, 9]
    assert await seqs(newest=2) == [8, 9]
    assert await seqs(limit=3) == [0, 1, 2]
    assert await seqs(backward=True, limit=2) == [9, 8]


async def test_the_canonical_view_says_who_speaks(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("hi")])

    read = client.history.read(name, view="canonical")
    messages = [message async for message in read]

    assert messages[0].role == "user"
    assert messages[0].canonical is not None
    assert messages[0].canonical.blocks[0].text.text == "hi"


async def test_following_delivers_what_is_committed_later(
    client: perdure.AsyncClient, name: str
) -> None:
    await client.history.append(name, [user("0")])
    seen = []

    async with aclosing(client.history.read(name, follow=True)) as messages:
        async for message in messages:
            seen.append(message.seq)
            if len(seen) < 3:
                await client.history.append(name, [user(str(len(seen)))])
            else:
                break

    assert seen == [0, 1, 2]


async def test_a_missing_conversation_is_not_found(
    client: perdure.AsyncClient, name: str
) -> None:
    with pytest.raises(perdure.NotFound) as caught:
        await client.history.load(name)
    assert caught.value.reason == "CONVERSATION_NOT_FOUND"

    with pytest.raises(perdure.NotFound):
        await client.history.get(name)
    with pytest.raises(perdure.NotFound):
        await client.history.append(name, [user("1")], create=False)


async def test_conversations_are_listed_over_pages(
    client: perdure.AsyncClient, name: str
) -> None:
    ids = [f"{name}-{n}" for n in range(5)]
    for each in ids:
        await client.history.create(each, user_id=name)

    listed = client.history.list(user_id=name, page_size=2)

    assert [found.conversation_id async for found in listed] == ids


async def test_a_batch_above_the_limit_is_refused_before_it_is_sent(
    connect: Connect, name: str
) -> None:
    nowhere = connect("127.0.0.1:1", timeout_s=0.2)
    big = user("x" * 1_500_000)

    with pytest.raises(perdure.Invalid) as caught:
        await nowhere.history.append(name, [big, big, big])

    assert caught.value.reason == "LIMIT_EXCEEDED"


async def test_an_unknown_key_is_denied_on_every_call_shape(
    connect: Connect, name: str
) -> None:
    stranger = connect(key="pd_default_nobody_" + "x" * 43)

    with pytest.raises(perdure.Denied) as caught:
        await stranger.history.get(name)
    assert caught.value.reason == "KEY_INVALID"
    with pytest.raises(perdure.Denied):
        await stranger.history.load(name)


async def test_a_key_without_the_scope_is_denied(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    made = await client.admin.create_key(scopes=["read"])
    reader = connect(key=made.key)

    with pytest.raises(perdure.Denied) as caught:
        await reader.history.append(name, [user("1")])

    assert caught.value.reason == "SCOPE_MISSING"
    assert made.key not in repr(made)


async def test_a_revoked_key_is_listed_and_soon_denied(
    client: perdure.AsyncClient, connect: Connect
) -> None:
    made = await client.admin.create_key(scopes=["read"], display_name="for a test")
    revoked = await client.admin.revoke_key(made.info.key_id)
    reader = connect(key=made.key)

    listed = {key.key_id: key async for key in client.admin.list_keys()}
    assert listed[made.info.key_id].HasField("revoke_time")
    assert revoked.display_name == "for a test"

    async def read_on() -> None:
        while True:
            await reader.history.list().__anext__()
            await asyncio.sleep(0.2)

    with pytest.raises(perdure.Denied):
        await asyncio.wait_for(read_on(), 10)


async def test_a_new_tenant_sees_nothing_of_others(
    client: perdure.AsyncClient, connect: Connect, name: str
) -> None:
    await client.history.append(name, [user("1")])
    made = await client.admin.create_tenant(f"t-{name[2:]}")
    stranger = connect(key=made.key)

    with pytest.raises(perdure.NotFound):
        await stranger.history.load(name)
    assert [found async for found in stranger.history.list()] == []


async def test_a_call_to_nobody_ends_at_its_deadline_and_says_what_to_do(
    connect: Connect, name: str
) -> None:
    nowhere = connect("127.0.0.1:1", timeout_s=0.5)
    began = asyncio.get_running_loop().time()

    with pytest.raises(perdure.Unavailable, match="perdure serve"):
        await nowhere.history.get(name)

    assert asyncio.get_running_loop().time() - began < 2.0


async def test_a_closed_client_says_so(connect: Connect, name: str) -> None:
    client = connect()
    async with client:
        pass

    with pytest.raises(perdure.Invalid) as caught:
        await client.history.get(name)

    assert caught.value.reason == "CLIENT_CLOSED"
