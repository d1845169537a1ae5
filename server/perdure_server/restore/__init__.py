"""Bringing agents back: what is sound, what fits into a batch, what was sent. Pure."""
