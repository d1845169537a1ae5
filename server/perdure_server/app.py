"""Composition root: builds every object of a server, starts it, and stops it.

The order of a stop: NOT_SERVING, no new calls, streams end with a token, open calls
finish within the grace time, the pool closes, the embedded Postgres stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from perdure.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    agent_service_pb2,
    agent_service_pb2_grpc,
    checkpoint_service_pb2,
    checkpoint_service_pb2_grpc,
    commit_service_pb2,
    commit_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    recovery_service_pb2,
    recovery_service_pb2_grpc,
)
from perdure_server.config import Config
from perdure_server.credentials import ensure_credentials
from perdure_server.embedded.postgres import EmbeddedPostgres
from perdure_server.lifecycle import Lifecycle
from perdure_server.rpc.admin_service import AdminService
from perdure_server.rpc.agent_service import AgentService
from perdure_server.rpc.authentication import Authentication
from perdure_server.rpc.checkpoint_service import CheckpointService
from perdure_server.rpc.commit_service import CommitService
from perdure_server.rpc.history_service import HistoryService
from perdure_server.rpc.interceptor import CallInterceptor
from perdure_server.rpc.recovery_service import RecoveryService
from perdure_server.rpc.restored_agents import RestoredAgents
from perdure_server.startup import StartupError, check_port_free, write_port_file
from perdure_server.store.agents import Agents
from perdure_server.store.append_queue import AppendQueue
from perdure_server.store.checkpoints import Checkpoints
from perdure_server.store.commits import Commits
from perdure_server.store.conversations import Conversations
from perdure_server.store.database import Database
from perdure_server.store.hints import Hints
from perdure_server.store.keys import Keys
from perdure_server.store.messages import Messages
from perdure_server.store.preflight import check_database, prepare_database
from perdure_server.store.recoveries import Recoveries
from perdure_server.store.restores import Restores
from perdure_server.store.retention import Retention, Sweeper
from perdure_server.store.tenants import Tenants

_LOG = logging.getLogger(__name__)

MAX_RECEIVE_BYTES = 4 * 1024 * 1024
MAX_CALLS = 10_000
# gRPC cuts what arrives while it closes with a bare CANCELLED; callers who were told
# that the server is stopping are elsewhere by then.
_REFUSAL_S = 0.2
_REVIVE_INTERVAL_S = 1.0
_SWEEP_INTERVAL_S = 600.0

SERVICES = (
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
    checkpoint_service_pb2.DESCRIPTOR.services_by_name["CheckpointService"],
    commit_service_pb2.DESCRIPTOR.services_by_name["CommitService"],
    history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"],
    recovery_service_pb2.DESCRIPTOR.services_by_name["RecoveryService"],
)


async def serve(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Raises:
        StartupError: The start cannot work; nothing is left running.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    check_port_free(config.listen.host, config.listen.port)
    async with contextlib.AsyncExitStack() as stack:
        dsn, where = await _open_postgres(config, stack)
        database = await Database.open(
            dsn,
            pooler=config.pooler,
            transaction_timeout_s=config.transaction_timeout_s,
            idle_transaction_timeout_s=config.idle_transaction_timeout_s,
        )
        stack.push_async_callback(database.close)
        lifecycle = Lifecycle()
        hints = Hints(None if config.pooler else dsn)
        server, health = _build(config, database, hints, lifecycle)
        port = server.add_insecure_port(str(config.listen))
        if port == 0:
            raise StartupError(f"cannot listen on {config.listen}")
        target = f"{config.listen.host}:{port}"
        key_file = await ensure_credentials(
            config.data_dir, target, Tenants(database), Keys(database)
        )
        stopping = _on_signals()
        await server.start()
        await stack.enter_async_context(_running(hints.run()))
        await stack.enter_async_context(_sweeping(database))
        await _set_health(health, health_pb2.HealthCheckResponse.SERVING)
        if config.port_file is not None:
            write_port_file(config.port_file, target)
        print(f"serving on {target}, {where}, key in {key_file}", flush=True)
        await stopping.wait()
        await _set_health(health, health_pb2.HealthCheckResponse.NOT_SERVING)
        lifecycle.stop()
        hints.wake_all()
        await asyncio.sleep(_REFUSAL_S)
        await server.stop(config.shutdown_grace_s)
    return 0


async def _open_postgres(
    config: Config, stack: contextlib.AsyncExitStack
) -> tuple[str, str]:
    if config.dsn is not None:
        await check_database(config.dsn)
        return config.dsn, "store of --dsn"
    embedded = EmbeddedPostgres(config.data_dir)
    dsn = await asyncio.to_thread(embedded.start)
    stack.push_async_callback(asyncio.to_thread, embedded.stop)
    await stack.enter_async_context(_reviving(embedded))
    await prepare_database(dsn)
    adopted = "adopted" if embedded.adopted else "started"
    return dsn, f"embedded Postgres {adopted} in {config.data_dir}"


def _build(
    config: Config, database: Database, hints: Hints, lifecycle: Lifecycle
) -> tuple[grpc.aio.Server, health_aio.HealthServicer]:
    keys = Keys(database)
    messages = Messages(database)
    agents = Agents(database)
    checkpoints = Checkpoints(database)
    recoveries = Recoveries(database, agents)
    restores = Restores(database)
    server = grpc.aio.server(
        interceptors=[
            CallInterceptor(
                Authentication(keys),
                lifecycle,
                config.unary_timeout_s,
                config.stream_idle_timeout_s,
            )
        ],
        maximum_concurrent_rpcs=MAX_CALLS,
        options=[
            ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ],
    )
    history_service_pb2_grpc.add_HistoryServiceServicer_to_server(
        HistoryService(
            Conversations(database), messages, AppendQueue(messages), hints, lifecycle
        ),
        server,
    )
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(
        AgentService(agents), server
    )
    checkpoint_service_pb2_grpc.add_CheckpointServiceServicer_to_server(
        CheckpointService(checkpoints, Retention(database, agents), agents), server
    )
    commit_service_pb2_grpc.add_CommitServiceServicer_to_server(
        CommitService(Commits(database), hints), server
    )
    recovery_service_pb2_grpc.add_RecoveryServiceServicer_to_server(
        RecoveryService(
            recoveries,
            agents,
            restores,
            RestoredAgents(restores, checkpoints),
            lifecycle,
        ),
        server,
    )
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
        AdminService(Tenants(database), keys), server
    )
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [service.full_name for service in SERVICES]
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    return server, health


async def _set_health(health: health_aio.HealthServicer, status: int) -> None:
    for name in ("", *(service.full_name for service in SERVICES)):
        await health.set(name, status)


def _on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


@contextlib.asynccontextmanager
async def _reviving(embedded: EmbeddedPostgres) -> AsyncIterator[None]:
    """Start the embedded Postgres again when it dies under a living server."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(_REVIVE_INTERVAL_S)
            try:
                if await asyncio.to_thread(embedded.revive):
                    _LOG.warning("the embedded Postgres had died; started it again")
            except StartupError as error:
                _LOG.error("the embedded Postgres does not come back: %s", error)

    async with _running(watch()):
        yield


@contextlib.asynccontextmanager
async def _sweeping(database: Database) -> AsyncIterator[None]:
    retention = Retention(database, Agents(database))
    async with _running(Sweeper(retention, _SWEEP_INTERVAL_S).run()):
        yield


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
