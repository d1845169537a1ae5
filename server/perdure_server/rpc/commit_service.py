"""CommitService: all that belongs to one step, or nothing."""

from perdure.v1 import commit_service_pb2 as pb
from perdure.v1 import commit_service_pb2_grpc
from perdure_server.caller import current_caller
from perdure_server.errors import LimitExceeded, PerdureError, ValueNotStorable
from perdure_server.rpc.checkpoint_messages import read_checkpoint, receipt_message
from perdure_server.rpc.checks import check_count, check_id, check_items
from perdure_server.rpc.fences import read_fence
from perdure_server.rpc.history_service import append_response, read_supersedes
from perdure_server.rpc.interceptor import Context
from perdure_server.rpc.new_messages import read_new_messages
from perdure_server.store.append import Append, Appended
from perdure_server.store.checkpoints import Receipt
from perdure_server.store.commits import Commits, Operation, RefusedOperation
from perdure_server.store.hints import Hints

MAX_OPERATIONS = 100
MAX_COMMIT_BYTES = 3_670_016


class CommitService(commit_service_pb2_grpc.CommitServiceServicer):
    """Serves commits."""

    def __init__(self, commits: Commits, hints: Hints) -> None:
        self._commits = commits
        self._hints = hints

    async def Commit(
        self, request: pb.CommitRequest, context: Context
    ) -> pb.CommitResponse:
        """Carry out operations under one fence."""
        fence = read_fence(request.fence, "fence")
        step = check_count(request.step, "step")
        if not request.operations:
            raise ValueNotStorable("a commit needs an operation", path="operations")
        check_items(len(request.operations), "operations", MAX_OPERATIONS)
        if request.ByteSize() > MAX_COMMIT_BYTES:
            raise LimitExceeded(
                f"the commit is larger than {MAX_COMMIT_BYTES} bytes",
                path="operations",
                limit=MAX_COMMIT_BYTES,
                actual=request.ByteSize(),
            )
        operations = [
            await _operation(operation, f"operations[{n}]")
            for n, operation in enumerate(request.operations)
        ]
        try:
            results = await self._commits.commit(
                current_caller().tenant_id, fence, step, operations
            )
        except RefusedOperation as refused:
            raise _located(request, refused) from refused
        for operation in operations:
            if isinstance(operation, Append):
                # The agent's own conversation has its id unless it chose another; a
                # follower of that one finds the messages at its next poll.
                self._hints.tell(
                    operation.tenant_id, operation.conversation_id or fence.agent_id
                )
        return pb.CommitResponse(results=[_result(result) for result in results])


async def _operation(message: pb.Operation, path: str) -> Operation:
    kind = message.WhichOneof("kind")
    if kind == "append":
        return _append(message.append, f"{path}.append")
    if kind == "put_checkpoint":
        return await read_checkpoint(message.put_checkpoint, f"{path}.put_checkpoint")
    raise ValueNotStorable("an operation sets nothing", path=path)


def _append(message: pb.AppendOperation, path: str) -> Append:
    expected_seq = supersedes = None
    if message.HasField("expected_seq"):
        expected_seq = check_count(message.expected_seq, f"{path}.expected_seq")
    if message.HasField("supersedes"):
        supersedes = read_supersedes(message.supersedes, f"{path}.supersedes")
    if message.conversation_id:
        check_id(message.conversation_id, f"{path}.conversation_id")
    return Append(
        tenant_id=current_caller().tenant_id,
        conversation_id=message.conversation_id,
        messages=read_new_messages(message.messages, f"{path}.messages"),
        expected_seq=expected_seq,
        supersedes=supersedes,
    )


def _located(request: pb.CommitRequest, refused: RefusedOperation) -> PerdureError:
    kind = request.operations[refused.index].WhichOneof("kind")
    return refused.error.at(f"operations[{refused.index}].{kind}")


def _result(result: Appended | Receipt) -> pb.OperationResult:
    if isinstance(result, Appended):
        return pb.OperationResult(append=append_response(result))
    return pb.OperationResult(put_checkpoint=receipt_message(result))
