"""`perdure import`: conversations from a JSONL file of Chat Completions messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

import perdure
from perdure_cli.conversation_file import (
    DemoConversation,
    LineFault,
    parse_lines,
    read_lines,
)
from perdure_cli.output import Output
from perdure_cli.session import client_command

FORMAT = "openai.chat_completions"
BATCH_MESSAGES = 500
BATCH_BYTES = 1024 * 1024
MAX_FAULTS_TOLD = 20


@click.command("import")
@click.argument(
    "file", type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)
)
@click.option("--prefix", default="", help="Put before each conversation's id.")
@client_command
async def import_jsonl(
    client: perdure.AsyncClient, output: Output, file: Path, prefix: str
) -> None:
    """Import conversations: a line is {"id": ..., "messages": [...]}.

    Safe to run again: what is there already is recognised. A faulty line is reported
    by its number and nothing of it is written; the others are imported, and the exit
    status is 1.
    """
    columns = (
        TextColumn("importing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    total = sum(1 for _ in read_lines(file))
    faults: list[str] = []
    imported = messages = 0
    with Progress(
        *columns, console=Console(stderr=True), disable=output.as_json
    ) as bars:
        task = bars.add_task("", total=total)
        for item in parse_lines(read_lines(file)):
            bars.advance(task)
            if isinstance(item, LineFault):
                faults.append(str(item))
                continue
            try:
                messages += await _import_one(client, item, prefix)
                imported += 1
            except perdure.Invalid as error:
                faults.append(f"{item.conversation_id}: {error}")
    for fault in faults[:MAX_FAULTS_TOLD]:
        click.echo(f"{file}: {fault}", err=True)
    if len(faults) > MAX_FAULTS_TOLD:
        click.echo(f"{file}: {len(faults) - MAX_FAULTS_TOLD} more faults", err=True)
    output.record(
        {"conversations": imported, "messages": messages, "faults": len(faults)}
    )
    if faults:
        sys.exit(1)


async def _import_one(
    client: perdure.AsyncClient, source: DemoConversation, prefix: str
) -> int:
    conversation_id = prefix + source.conversation_id
    ids = [f"{conversation_id}-{place}" for place in range(len(source.messages))]
    # Whatever is wrong with a message is found here, before anything is written.
    bodies = [
        perdure.native_message(payload, message_id=message_id)
        for payload, message_id in zip(source.messages, ids, strict=True)
    ]
    await client.history.create(
        conversation_id, source_format=FORMAT, source_id=source.conversation_id
    )
    for batch in _batches(bodies):
        await client.history.append(conversation_id, batch, create=False)
    return len(bodies)


def _batches(bodies: Sequence[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    batch_bytes = 0
    for body in bodies:
        body_bytes = body.ByteSize()
        full = len(batch) >= BATCH_MESSAGES or batch_bytes + body_bytes > BATCH_BYTES
        if batch and full:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(body)
        batch_bytes += body_bytes
    if batch:
        yield batch
