"""The public API: objects and functions that `attnloom` re-exports."""

from attnloom.api.append import append_kv
from attnloom.api.batch import BatchAttention
from attnloom.api.functional import attention, finish_state, implementations, merge_state, merge_states

__all__ = [
    "BatchAttention",
    "append_kv",
    "attention",
    "finish_state",
    "implementations",
    "merge_state",
    "merge_states",
]
