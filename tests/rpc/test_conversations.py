"""CreateConversation, GetConversation, ListConversations."""

from typing import Any

from perdure.v1 import history_service_pb2 as pb
from tests.support.wire import Wire, refused, said


async def get(wire: Wire, conversation_id: str) -> Any:
    request = pb.GetConversationRequest(conversation_id=conversation_id)
    response = await wire.history.GetConversation(request, metadata=wire.key)
    return response.conversation


async def page(wire: Wire, **fields: Any) -> tuple[list[str], str]:
    request = pb.ListConversationsRequest(**fields)
    response = await wire.history.ListConversations(request, metadata=wire.key)
    ids = [conversation.conversation_id for conversation in response.conversations]
    return ids, response.next_page_token


async def test_what_was_stated_is_returned_and_the_id_is_kept_exactly(
    wire: Wire,
) -> None:
    odd = " Ünïcode/with spaces\n\t'\";--\u202e "
    metadata = '{ "b":1.10, "a":[1e400, 2] }'
    made = await wire.create(
        odd,
        user_id="u1",
        agent_slug="planner",
        metadata_json=metadata,
        source_format="their.format",
        source_id="7",
    )
    assert not made.replayed
    found = await get(wire, odd)
    assert found == made.conversation
    assert found.conversation_id == odd
    assert found.metadata_json == metadata
    assert (found.message_count, found.generation, found.owned) == (0, 1, False)


async def test_creating_again_returns_the_conversation_as_it_is_now(
    wire: Wire,
) -> None:
    await wire.create("again", user_id="u1")
    await wire.append("again", said("a"))
    second = await wire.create("again", user_id="u1")
    assert second.replayed
    assert second.conversation.message_count == 1


async def test_creating_with_other_content_is_refused_with_both_digests(
    wire: Wire,
) -> None:
    await wire.create("differs", user_id="u1", agent_slug="x")
    # The same characters in other fields are other content.
    with refused("ID_REUSED") as refusal:
        await wire.create("differs", user_id="u1x")
    assert refusal.code == "ALREADY_EXISTS"
    assert refusal.metadata["digest"] != refusal.metadata["stored_digest"]
    assert (await get(wire, "differs")).user_id == "u1"


async def test_a_missing_conversation_is_not_found(wire: Wire) -> None:
    with refused("CONVERSATION_NOT_FOUND") as refusal:
        await get(wire, "not-there")
    assert refusal.metadata["conversation_id"] == "not-there"


async def test_pages_follow_the_byte_order_of_ids_and_cover_all(wire: Wire) -> None:
    ids = sorted((f"page-{name}" for name in "Zz0é~aA"), key=lambda text: text.encode())
    for conversation_id in reversed(ids):
        await wire.create(conversation_id, user_id="pager")
    seen: list[str] = []
    token = ""
    for _ in range(10):
        found, token = await page(wire, user_id="pager", page_size=2, page_token=token)
        assert len(found) <= 2
        seen += found
        if not token:
            break
    assert seen == ids


async def test_the_list_can_be_narrowed_to_a_kind_of_agent(wire: Wire) -> None:
    await wire.create("slug-1", agent_slug="writer")
    await wire.create("slug-2", agent_slug="reader")
    assert (await page(wire, agent_slug="writer"))[0] == ["slug-1"]


async def test_a_page_token_of_another_list_is_refused(wire: Wire) -> None:
    for token in ("garbage", "AAAA" * 10):
        with refused("PAGE_TOKEN_INVALID") as refusal:
            await page(wire, page_token=token)
        assert refusal.code == "INVALID_ARGUMENT"


async def test_a_negative_page_size_is_refused(wire: Wire) -> None:
    with refused("VALUE_NOT_STORABLE") as refusal:
        await page(wire, page_size=-1)
    assert refusal.metadata["path"] == "page_size"
