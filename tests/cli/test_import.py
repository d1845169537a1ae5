"""`perdure import` and `conversations export`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def _write(path: Path, *lines: object) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return str(path)


def _talk(name: str, *words: object) -> dict[str, object]:
    return {
        "id": name,
        "messages": [{"role": "user", "content": word} for word in words],
    }


async def _import(run: Run, file: str, *flags: str):
    return await asyncio.to_thread(run, "import", file, *flags, "--json")


async def test_an_import_may_be_repeated(run, client, name, tmp_path) -> None:
    talks = (_talk(name, "one", "two"), _talk(f"{name}-b", "x"))
    file = _write(tmp_path / "a.jsonl", *talks)
    first = (await _import(run, file)).record
    assert (first["conversations"], first["new_messages"]) == (2, 3)
    again = (await _import(run, file)).record
    assert (again["conversations"], again["messages"]) == (2, 3)
    assert again["new_messages"] == 0
    assert len(await client.history.load(name)) == 2


async def test_a_conversation_that_has_grown_gets_what_is_new(
    run, client, name, tmp_path
) -> None:
    await _import(run, _write(tmp_path / "a.jsonl", _talk(name, "one", "two")))
    grown = _write(tmp_path / "b.jsonl", _talk(name, "one", "two", "three"))
    assert (await _import(run, grown)).record["new_messages"] == 1
    words = [message["content"] for message in await client.history.load(name)]
    assert words == ["one", "two", "three"]


async def test_bad_lines_are_told_by_number_and_the_others_are_imported(
    run, client, name, tmp_path
) -> None:
    file = _write(
        tmp_path / "a.jsonl",
        "not json",
        _talk(f"{name}-bad", "good", 5),
        _talk(name, "good"),
        '{"id": "half", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    )
    done = await _import(run, file)
    assert done.status == 1
    assert done.record["conversations"] == 1
    assert [fault["line"] for fault in done.record["faults"]] == [1, 2, 4]
    assert "messages[1]" in done.record["faults"][1]["reason"]
    found = [item.conversation_id async for item in client.history.list()]
    assert f"{name}-bad" not in found
    assert "half" not in found
    assert name in found

    told = await asyncio.to_thread(run, "import", file)
    assert f"{file}: line 2: VALUE_NOT_STORABLE" in told.stderr


async def test_a_fault_in_a_later_batch_keeps_the_first_out_too(
    run, client, name, tmp_path
) -> None:
    words: list[object] = [f"word {number}" for number in range(2100)]
    file = _write(
        tmp_path / "a.jsonl", _talk(f"{name}-bad", *words, 7), _talk(name, *words)
    )
    done = await _import(run, file)
    (fault,) = done.record["faults"]
    assert "messages[2100]" in fault["reason"]
    assert (await client.history.get(name)).message_count == 2100
    with pytest.raises(Exception, match="CONVERSATION_NOT_FOUND"):
        await client.history.get(f"{name}-bad")


async def test_a_conversation_with_other_messages_is_left_alone(
    run, client, name, tmp_path
) -> None:
    await client.history.append(name, [{"role": "user", "content": "live"}])
    file = _write(tmp_path / "a.jsonl", _talk(name, "old", "older"))
    done = await _import(run, file)
    assert "--prefix" in done.record["faults"][0]["reason"]
    assert len(await client.history.load(name)) == 1

    renamed = await _import(run, file, "--prefix", "old-")
    assert renamed.status == 0
    assert len(await client.history.load(f"old-{name}")) == 2


async def test_what_is_exported_can_be_imported(run, client, name, tmp_path) -> None:
    messages = [
        {"role": "user", "content": "Grüße \u2603", "n": 1.0},
        {"role": "assistant", "content": None, "refusal": "no"},
    ]
    await client.history.append(name, messages)
    exported = await asyncio.to_thread(run, "conversations", "export", name)
    assert exported.record == {"id": name, "messages": messages}

    file = _write(tmp_path / "a.jsonl", exported.stdout.strip())
    await _import(run, file, "--prefix", "copy-")
    assert await client.history.load(f"copy-{name}") == messages
