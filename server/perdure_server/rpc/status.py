"""Turns a domain error into a gRPC status with its google.rpc details."""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from perdure_server.errors import PerdureError

DOMAIN = "perdure"
# Trailers above 8 KiB are dropped by gRPC, and the error with them.
MAX_MESSAGE_CHARS = 300
MAX_VALUE_BYTES = 255
MAX_METADATA_BYTES = 2048

DETAILS_KEY = "grpc-status-details-bin"


def code_of(error: PerdureError) -> grpc.StatusCode:
    """Return the status code of an error."""
    code: grpc.StatusCode = grpc.StatusCode[error.code]
    return code


def message_of(error: PerdureError) -> str:
    """Return the error's message, short and in ASCII: trailers are small."""
    ascii_only = error.message.encode("ascii", "replace").decode()
    return " ".join(ascii_only.split())[:MAX_MESSAGE_CHARS]


def details_of(error: PerdureError) -> bytes:
    """Return the serialized google.rpc.Status with ErrorInfo and RetryInfo."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason, domain=DOMAIN, metadata=_capped(error.metadata)
    )
    status = status_pb2.Status(code=code_of(error).value[0], message=message_of(error))
    _add(status, info)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration(nanos=int(error.retry_after_s * 1e9) % 10**9)
        delay.seconds = int(error.retry_after_s)
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    serialized: bytes = status.SerializeToString()
    return serialized


def _capped(metadata: dict[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    left_bytes = MAX_METADATA_BYTES
    for name, value in metadata.items():
        cut = value.encode(errors="replace")[:MAX_VALUE_BYTES]
        left_bytes -= len(name) + len(cut)
        if left_bytes < 0:
            break
        kept[name] = cut.decode(errors="ignore")
    return kept


def _add(
    status: status_pb2.Status,
    detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo,
) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)
