"""Perdure's server: the state of AI agents in Postgres, over gRPC."""
