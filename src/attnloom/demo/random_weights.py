"""Models without their weights: a configuration, numbers drawn from a seed, a tokenizer without a vocabulary."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnloom.demo import weights
from attnloom.demo.configs import KNOWN, PACKAGED
from attnloom.errors import ModelUnavailable

SEED = 0


@dataclass(frozen=True)
class RandomSource:
    """Where the configuration comes from: `known` is a key of `configs.KNOWN`, else `model` holds it."""

    known: str | None
    model: weights.Source | None

    @property
    def name(self) -> str:
        """What to call the model."""
        name = self.known if self.model is None else self.model.name
        return f"{name} (random weights)"


def find(model: Path | None, known: str | None) -> RandomSource:
    """The configuration of `model`, of a known name, or of the packaged model.

    Without either it is the packaged model's own, or the copy in `configs` where the package is not installed.

    Raises:
        ModelUnavailable: `model` is no model.
    """
    if known is not None:
        return RandomSource(known, None)
    if model is not None:
        return RandomSource(None, weights.find(model))
    try:
        return RandomSource(None, weights.find(None))
    except ModelUnavailable:
        return RandomSource(PACKAGED, None)


def load(source: RandomSource, *, device: str, dtype: str, bars: bool) -> weights.Loaded:
    """A model with weights drawn on `device` (in evaluation mode, eager attention), and a tokenizer.

    The projections keep the scale of what goes through them, so that attention is far from uniform and every
    answer depends on it. No token ends an answer. Arguments and errors are those of `weights.load`.
    """
    hub = weights.transformers()
    import torch

    begin = time.perf_counter()
    config, tokenizer = _known(hub, source.known) if source.model is None else _of_model(hub, source.model, bars)
    config.initializer_range = config.get_text_config().hidden_size ** -0.5
    torch.manual_seed(SEED)
    with torch.device(device):
        model = hub.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="eager"
        ).eval()
    model.generation_config.eos_token_id = -1  # no token: an answer of chance would end by chance
    return weights.Loaded(model.requires_grad_(False), tokenizer, time.perf_counter() - begin)


def _known(hub: Any, name: str | None) -> tuple[Any, Any]:
    known = KNOWN[name or PACKAGED]
    config = hub.AutoConfig.for_model(known.kind, **known.values)
    return config, WordTokens(config.vocab_size)


def _of_model(hub: Any, source: weights.Source, bars: bool) -> tuple[Any, Any]:
    with weights.reading(source, bars=bars) as options:
        config = hub.AutoConfig.from_pretrained(str(source.folder), **options)
        return config, weights.chat_tokenizer(hub, source, options)


class WordTokens:
    """A tokenizer without a vocabulary: a word is a token whose number is drawn from its letters.

    Equal words give equal tokens, so prompts that begin alike share pages as they would with a real one.
    """

    chat_template = "role: content"
    eos_token_id = None

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def apply_chat_template(self, chat: Sequence[dict[str, str]], **_: Any) -> str:
        """The turns one after the other."""
        return " ".join(f"{turn['role']}: {turn['content']}" for turn in chat) + " assistant:"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """`input_ids` of the words of `text`."""
        return {"input_ids": [zlib.crc32(word.encode()) % self._vocab_size for word in text.split()]}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """The numbers themselves."""
        return " ".join(f"#{token}" for token in tokens)
