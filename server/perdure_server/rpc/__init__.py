"""The gRPC face of the server: check, call the store, convert."""
