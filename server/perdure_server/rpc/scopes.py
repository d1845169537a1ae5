"""Which scope each method needs. A method that is not listed is refused."""

READ, WRITE, APPROVE, ADMIN, OPERATOR = "read", "write", "approve", "admin", "operator"

SCOPE_OF: dict[str, str] = {
    "/perdure.v1.HistoryService/CreateConversation": WRITE,
    "/perdure.v1.HistoryService/GetConversation": READ,
    "/perdure.v1.HistoryService/ListConversations": READ,
    "/perdure.v1.HistoryService/AppendMessages": WRITE,
    "/perdure.v1.HistoryService/ReadMessages": READ,
    "/perdure.v1.AgentService/AcquireAgents": WRITE,
    "/perdure.v1.AgentService/RenewLease": WRITE,
    "/perdure.v1.AgentService/ReleaseAgents": WRITE,
    "/perdure.v1.AgentService/ListAgents": READ,
    "/perdure.v1.CheckpointService/PutCheckpoint": WRITE,
    "/perdure.v1.CheckpointService/GetCheckpoint": READ,
    "/perdure.v1.CheckpointService/ListCheckpoints": READ,
    "/perdure.v1.CheckpointService/PruneCheckpoints": ADMIN,
    "/perdure.v1.RecoveryService/StartRecovery": ADMIN,
    "/perdure.v1.RecoveryService/RestoreAgents": WRITE,
    "/perdure.v1.RecoveryService/WatchRecovery": READ,
    "/perdure.v1.CommitService/Commit": WRITE,
    "/perdure.v1.AdminService/CreateTenant": OPERATOR,
    "/perdure.v1.AdminService/ListTenants": OPERATOR,
    "/perdure.v1.AdminService/CreateKey": ADMIN,
    "/perdure.v1.AdminService/ListKeys": ADMIN,
    "/perdure.v1.AdminService/RevokeKey": ADMIN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": READ,
}

# Load balancers ask without a key and learn nothing but "serving".
OPEN_METHODS = frozenset(
    {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
)
