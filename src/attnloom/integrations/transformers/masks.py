"""The mask function that transformers calls once a step, and what a padding mask says.

transformers describes a mask twice: as a function of positions, here, and as keywords of the attention
function (`is_causal`, `sliding_window`). We compute from the keywords, so a mask function that they do not
cover is refused rather than dropped. The refusal waits for the first layer that would use the mask: up to 5.23
transformers builds one for continuous batching too, whose layers have no need of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from attnloom.errors import InvalidMetadata, NotYetSupported

_NOTE = "_attnloom_padding"
_WINDOW = "sliding_window_overlay.<locals>.inner_mask"
_ALL_OF = "and_masks.<locals>.and_mask"


@dataclass(frozen=True)
class Padding:
    """Which keys a step hides from every query of a request.

    Attributes:
        kind: None (nothing is hidden), "left" (the first `operand[i]` keys), "mask" (where `operand` is False).
        operand: int32 [B] for "left", bool [B, kv_len] for "mask".
    """

    kind: Literal["left", "mask"] | None
    operand: torch.Tensor | None


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of one step: None, or bool [B, kv_len] that is True where a key may be seen.

    kv_len is the number of keys that exist. A static cache hands over more slots than that: the attention
    function cuts them off by this mask's width. A `mask_function` that is more than causal, causal within a
    window, or unmasked makes a mask that `padding_of` refuses.
    """
    try:
        causal = _describes_causal(mask_function)
    except NotYetSupported as refusal:
        return _note(torch.ones(batch_size, 0, dtype=torch.bool), refusal)
    present = int(q_offset) + q_length - kv_offset if causal else kv_length
    if present > kv_length:
        raise InvalidMetadata(
            name="cache", given=f"{present} keys up to the last query", expected=f"at most the cache's {kv_length}",
            fix="The cache evicted keys that this mask needs.",
        )  # fmt: skip
    if attention_mask is None:
        if present == kv_length:
            return None
        device = q_offset.device if isinstance(q_offset, torch.Tensor) else kwargs.get("device")
        return _note(torch.ones(batch_size, present, dtype=torch.bool, device=device), Padding(None, None))
    missing = kv_offset + present - attention_mask.shape[-1]
    if missing > 0:
        attention_mask = torch.nn.functional.pad(attention_mask, (0, missing), value=False)
    keep = attention_mask[:, kv_offset : kv_offset + present].to(torch.bool)
    padding = _read(keep)
    return None if present == kv_length and padding.kind is None else _note(keep, padding)


def padding_of(mask: torch.Tensor | None) -> Padding:
    """What a mask made by `attention_mask` hides. Looks at the values (one synchronisation) only once per mask.

    Raises:
        NotYetSupported: the mask is none of these, or stands for a mask function that was refused.
    """
    if mask is None:
        return Padding(None, None)
    note = getattr(mask, _NOTE, None)
    if isinstance(note, Exception):
        raise note
    # a mask moved to another device loses its note and is read again there
    return note if isinstance(note, Padding) else _read(mask)


def _note(mask: torch.Tensor, note: Padding | Exception) -> torch.Tensor:
    setattr(mask, _NOTE, note)
    return mask


def _read(mask: torch.Tensor) -> Padding:
    if mask.ndim != 2:
        raise NotYetSupported(
            feature=f"an attention mask of {mask.ndim} dimensions in transformers' generate()",
            fix="Pass a 2-D padding mask [batch, keys], or call attnloom.attention with variants.custom_mask.",
        )
    hidden = ~mask
    pad = hidden.sum(dim=1, dtype=torch.int32)
    leading = hidden.to(torch.int32).cumprod(dim=1).sum(dim=1, dtype=torch.int32)
    some, ragged = torch.stack([pad.any(), (pad != leading).any()]).tolist()
    if not some:
        return Padding(None, None)
    return Padding("mask", mask) if ragged else Padding("left", pad)


def _describes_causal(mask_function: Callable[..., Any] | None) -> bool:
    """True for causal (within a window or not), False for unmasked; anything else raises."""
    names = _atoms(mask_function) if mask_function is not None else {"causal_mask_function"}
    if names <= {"causal_mask_function", _WINDOW} and "causal_mask_function" in names:
        return True
    if names == {"bidirectional_mask_function"}:
        return False
    raise NotYetSupported(
        feature=f"a transformers mask built of {sorted(names)}",
        fix="Supported are causal, causal within a sliding window, unmasked, and padding on top. Packed sequences "
        "belong into generate_batch(); for other masks use attn_implementation='sdpa' or 'flex_attention'.",
    )


def _atoms(mask_function: Callable[..., Any]) -> set[str]:
    """Names of the functions that a mask function intersects; a function we do not know is its own name."""
    name = getattr(mask_function, "__qualname__", repr(mask_function))
    if name != _ALL_OF:
        return {name}
    cells = dict(zip(mask_function.__code__.co_freevars, mask_function.__closure__ or (), strict=True))
    return set().union(*(_atoms(part) for part in cells["mask_functions"].cell_contents))
