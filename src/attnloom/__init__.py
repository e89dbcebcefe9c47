"""AttnLoom: an attention engine for LLM serving, all in Python."""

__version__ = "0.1.0"
