"""Built-in variants. Each is written with the public `Variant`; a user can write every one of them again."""

from attnloom.variant.library.alibi import alibi, alibi_slopes
from attnloom.variant.library.causal import causal
from attnloom.variant.library.custom_mask import custom_mask, packed_mask
from attnloom.variant.library.document_mask import document_mask
from attnloom.variant.library.full import full
from attnloom.variant.library.not_yet import rope, streaming_llm
from attnloom.variant.library.prefix_lm import prefix_lm
from attnloom.variant.library.sigmoid import sigmoid
from attnloom.variant.library.sinks import sinks
from attnloom.variant.library.sliding_window import sliding_window
from attnloom.variant.library.soft_cap import soft_cap
from attnloom.variant.library.tree_mask import packed_tree_mask, tree_mask

__all__ = [
    "alibi",
    "alibi_slopes",
    "causal",
    "custom_mask",
    "document_mask",
    "full",
    "packed_mask",
    "packed_tree_mask",
    "prefix_lm",
    "rope",
    "sigmoid",
    "sinks",
    "sliding_window",
    "soft_cap",
    "streaming_llm",
    "tree_mask",
]
