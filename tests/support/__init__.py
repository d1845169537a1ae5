"""Processes and clusters that tests start; nothing here replaces the real thing."""
