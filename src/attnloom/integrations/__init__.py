"""Adapters to serving frameworks, each a thin package over the public API."""
