"""The three functions of the package flash-attn (2.8) on AttnLoom: change the import, keep the calls.

    from attnloom.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Signatures and meanings are flash-attn's: causal and windows are aligned bottom-right, softcap comes before the ALiBi
bias ``-slope * |i + seqlen_k - seqlen_q - j|``, lse is the natural logarithm, fp32, ``[B, H, S]`` or ``[H, total_q]``.

What is wider: fp32 and CPU tensors, any page_block_size, v with a head dim of its own, int64 index tensors, index
tensors on the host, cache_leftpad beside a block_table, rotary tables in fp32, rotary_dim any even number.
What differs:

- forward only: an input that requires a gradient raises, and so does dropout; head dims are those of AttnLoom;
- the lse of a row that sees no key is −inf (flash-attn writes +inf), so that states merge;
- with causal and ALiBi, lse contains the bias as documented (flash-attn's kernel leaves out a constant of each row);
- lengths on a GPU are read once a call, which waits for the device; flash-attn never waits. So no call can be captured
  in a CUDA graph (it raises), and torch.compile is not supported here: `attnloom.BatchAttention`, which plans once a
  step, is made for both;
- num_splits and deterministic are checked and change nothing: AttnLoom's scheduler splits, and a result is the same
  in every run.

Calls with equal lengths (the layers of one step) share one plan. Engines are kept per thread, stream and options.
"""

from attnloom.integrations.flash_attn.functions import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
