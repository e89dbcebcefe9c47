"""AttnLoom: an attention engine for LLM serving, all in Python."""

from attnloom import errors, variant
from attnloom.api import (
    BatchAttention,
    append_kv,
    attention,
    finish_state,
    implementations,
    merge_state,
    merge_states,
)
from attnloom.formats import BlockSparse, ComposedKV, Level, PagedKV, RaggedKV
from attnloom.variant import Variant, from_flex, param
from attnloom.variant import library as variants

__version__ = "0.1.0"

__all__ = [
    "BatchAttention",
    "BlockSparse",
    "ComposedKV",
    "Level",
    "PagedKV",
    "RaggedKV",
    "Variant",
    "append_kv",
    "attention",
    "errors",
    "finish_state",
    "from_flex",
    "implementations",
    "merge_state",
    "merge_states",
    "param",
    "variant",
    "variants",
]
