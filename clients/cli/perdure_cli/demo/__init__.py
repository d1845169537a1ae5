"""The demo: a fleet loses workers and server, and comes back whole."""
