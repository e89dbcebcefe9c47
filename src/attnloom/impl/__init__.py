"""Implementations: the contract they share (base), their choice (dispatch), and one module for each."""
