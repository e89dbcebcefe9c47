"""Configurations of known models, for runs with random weights: shapes and options, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownConfig:
    """One model's configuration.

    Attributes:
        kind: transformers' model type.
        dtype: the type that its weights are published in, or float32 for one small enough to be compared exactly.
        values: arguments of the configuration class.
    """

    kind: str
    dtype: str
    values: Mapping[str, Any]


KNOWN = {
    "smollm2-135m": KnownConfig(
        "llama",
        "float32",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
            "tie_word_embeddings": True,
        },
    ),
    "llama-3.1-8b": KnownConfig(
        "llama",
        "bfloat16",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": False,
        },
    ),
}
PACKAGED = "smollm2-135m"
"""The configuration of the packaged model, where its package is not installed."""
