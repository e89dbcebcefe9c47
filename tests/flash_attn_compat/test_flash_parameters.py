"""The three signatures are flash-attn's (2.8), and every parameter of them changes a result or raises."""

import inspect

import pytest
import torch
from flash_dense import cumulative, ints, normal

import attnloom as al
from attnloom.integrations import flash_attn

H, HKV, D = 4, 2, 32
NONE = inspect.Parameter.empty

# as flash_attn/flash_attn_interface.py of 2.8 has them
SCALED = {"softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0}
TAIL = {"alibi_slopes": None, "deterministic": False, "return_attn_probs": False}
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
OPTIONAL = ("k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table")
SIGNATURES = {
    "flash_attn_func": dict.fromkeys("qkv", NONE) | {"dropout_p": 0.0} | SCALED | TAIL,
    "flash_attn_varlen_func": dict.fromkeys(("q", "k", "v", *LENGTHS), NONE)
    | {"dropout_p": 0.0}
    | SCALED
    | TAIL
    | {"block_table": None},
    "flash_attn_with_kvcache": dict.fromkeys(("q", "k_cache", "v_cache"), NONE)
    | dict.fromkeys(OPTIONAL)
    | SCALED
    | {"rotary_interleaved": True, "alibi_slopes": None, "num_splits": 0, "return_softmax_lse": False},
}


def tensor(*shape, seed=0):
    return normal(*shape, seed=seed)


ANGLES = torch.linspace(0, 9, 24 * 8).view(24, 8)

DEFAULTS = {
    "flash_attn_func": {"q": tensor(2, 5, H, D), "k": tensor(2, 9, HKV, D, seed=1), "v": tensor(2, 9, HKV, D, seed=2)},
    "flash_attn_varlen_func": {
        "q": tensor(7, H, D), "k": tensor(16, HKV, D, seed=1), "v": tensor(16, HKV, D, seed=2),
        "cu_seqlens_q": cumulative([3, 4]), "cu_seqlens_k": cumulative([7, 9]), "max_seqlen_q": 4, "max_seqlen_k": 9,
    },
    "flash_attn_with_kvcache": {
        "q": tensor(2, 3, H, D), "k_cache": tensor(3, 24, HKV, D, seed=1), "v_cache": tensor(3, 24, HKV, D, seed=2),
        "k": tensor(2, 3, HKV, D, seed=3), "v": tensor(2, 3, HKV, D, seed=4), "rotary_cos": ANGLES.cos(),
        "rotary_sin": ANGLES.sin(), "cache_seqlens": ints([8, 5]),
    },
}  # fmt: skip


class Raises:
    """The value must be refused with this error."""

    def __init__(self, error, value):
        self.error, self.value = error, value


COMMON = {
    "softmax_scale": 0.9,
    "causal": True,
    "window_size": (2, 1),
    "softcap": 0.8,
    "alibi_slopes": torch.full((H,), 0.5),
}
ATTENTION = {
    "dropout_p": Raises(al.errors.NotYetSupported, 0.2),
    "deterministic": Raises(al.errors.InvalidArgument, "yes"),  # a flag of the backward pass: True is as False
    "return_attn_probs": True,
}
PAGES = {"block_table": ints([[1], [0]]), "k": tensor(2, 9, HKV, D, seed=5), "v": tensor(2, 9, HKV, D, seed=6)}
CHANGED = {
    "flash_attn_func": {
        "q": tensor(2, 5, H, D, seed=7), "k": tensor(2, 9, HKV, D, seed=7), "v": tensor(2, 9, HKV, D, seed=7),
        **COMMON, **ATTENTION,
    },
    "flash_attn_varlen_func": {
        "q": tensor(7, H, D, seed=7), "k": tensor(16, HKV, D, seed=7), "v": tensor(16, HKV, D, seed=7),
        "cu_seqlens_q": cumulative([4, 3]), "cu_seqlens_k": cumulative([8, 8]),
        "max_seqlen_q": Raises(al.errors.InvalidArgument, 3), "max_seqlen_k": Raises(al.errors.InvalidArgument, 8),
        **COMMON, **ATTENTION, "block_table": PAGES,
    },
    "flash_attn_with_kvcache": {
        "q": tensor(2, 3, H, D, seed=7),
        "k_cache": tensor(3, 24, HKV, D, seed=7), "v_cache": tensor(3, 24, HKV, D, seed=7),
        "k": tensor(2, 3, HKV, D, seed=7), "v": tensor(2, 3, HKV, D, seed=7),
        "rotary_cos": ANGLES.cos() * 2, "rotary_sin": ANGLES.sin() * 2, "cache_seqlens": ints([4, 5]),
        "cache_batch_idx": ints([2, 1]), "cache_leftpad": ints([3, 0]), "block_table": ints([[2], [1]]),
        **COMMON,
        "rotary_interleaved": False, "num_splits": Raises(al.errors.InvalidArgument, -1), "return_softmax_lse": True,
    },
}  # fmt: skip


def outcome(name, changed):
    """What a call returns and what it leaves in the caches, as one list of tensors."""
    given = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in {**DEFAULTS[name], **changed}.items()}
    result = getattr(flash_attn, name)(**given)
    return [*(result if isinstance(result, tuple) else [result]), *(given[n] for n in given if n.endswith("_cache"))]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_flash_attn(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters
    assert [(n, p.default) for n, p in parameters.items()] == list(SIGNATURES[name].items())
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_table_names_every_parameter(name):
    assert set(inspect.signature(getattr(flash_attn, name)).parameters) == set(CHANGED[name])
    assert set(flash_attn.__all__) == set(SIGNATURES)


@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n, each in CHANGED.items() for p in each])
def test_a_parameter_changes_a_result_or_raises(name, parameter):
    value = CHANGED[name][parameter]
    if isinstance(value, Raises):
        with pytest.raises(value.error, match=parameter):
            outcome(name, {parameter: value.value})
        return
    default = outcome(name, {})
    other = outcome(name, value if isinstance(value, dict) else {parameter: value})
    same = len(default) == len(other) and all(torch.equal(a, b) for a, b in zip(default, other, strict=True))
    assert not same, f"{name}({parameter}=...) is accepted and has no effect"


def test_hints_are_accepted_and_change_nothing():
    default = outcome("flash_attn_func", {})
    assert torch.equal(outcome("flash_attn_func", {"deterministic": True, "dropout_p": 0})[0], default[0])


def test_no_parameter_of_other_lines_is_taken():
    """Sinks, fp8 scales and seqused belong to flash-attn 3: a call with them fails instead of ignoring them."""
    for extra in ("s_aux", "sinks", "q_descale", "seqused_k", "leftpad_k"):
        with pytest.raises(TypeError, match=extra):
            flash_attn.flash_attn_varlen_func(**DEFAULTS["flash_attn_varlen_func"], **{extra: torch.ones(4)})
