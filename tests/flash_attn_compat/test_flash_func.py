"""flash_attn_func against dense fp64."""

import pytest
import torch
from flash_dense import DTYPES, OPTIONS, check, normal

import attnloom as al
from attnloom.integrations.flash_attn import flash_attn_func

B, SQ, SK, H, HKV, D = 2, 7, 11, 4, 2, 32


def tensors(device, dtype=torch.float32, q_len=SQ, kv_len=SK, kv_heads=HKV):
    q = normal(B, q_len, H, D, dtype=dtype, seed=1, device=device)
    k, v = (normal(B, kv_len, kv_heads, D, dtype=dtype, seed=seed, device=device) for seed in (2, 3))
    return q, k, v


def slopes_of(kind, device):
    if kind == "none":
        return None
    return normal(*((H,) if kind == "heads" else (B, H)), seed=9, device=device).abs()


def check_all(q, k, v, slopes=None, **options):
    out, lse, probs = flash_attn_func(q, k, v, alibi_slopes=slopes, return_attn_probs=True, **options)
    assert out.shape == (*q.shape[:3], v.shape[3])
    assert out.dtype == q.dtype
    assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
    assert lse.is_contiguous()
    assert probs.numel() == 0
    for b in range(q.shape[0]):
        own = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
        check((out[b], lse[b]), (q[b], k[b], v[b]), slopes=own, **options)
    assert torch.equal(out, flash_attn_func(q, k, v, alibi_slopes=slopes, **options))


@pytest.mark.parametrize("slopes", ["none", "heads", "requests"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(device, name, slopes):
    check_all(*tensors(device), slopes=slopes_of(slopes, device), **OPTIONS[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["causal", "both", "all"])
def test_every_dtype(device, name, dtype):
    check_all(*tensors(device, dtype, 40, 70), slopes=slopes_of("heads", device), **OPTIONS[name])


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 2), (1, 9), (9, 1), (4, 0), (0, 4), (3, 3)])
@pytest.mark.parametrize("name", ["full", "causal", "both"])
def test_rows_that_see_nothing_and_empty_sides(device, name, q_len, kv_len):
    check_all(*tensors(device, q_len=q_len, kv_len=kv_len), **OPTIONS[name])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(device, kv_heads):
    check_all(*tensors(device, kv_heads=kv_heads), causal=True)


def test_the_causal_masks_of_the_documentation(device):
    """Sk = 5, Sq = 2 and Sk = 2, Sq = 5; values that tell which keys were seen: mean of 2**j over the visible j."""

    def seen(q_len, kv_len):
        q, k = torch.zeros(1, q_len, 1, 16, device=device), torch.zeros(1, kv_len, 1, 16, device=device)
        v = (2.0 ** torch.arange(kv_len, device=device)).view(1, kv_len, 1, 1).expand(1, kv_len, 1, 16)
        return flash_attn_func(q, k, v, causal=True)[0, :, 0, 0].tolist()

    assert seen(2, 5) == pytest.approx([15 / 4, 31 / 5], rel=1e-6)
    assert seen(5, 2) == pytest.approx([0, 0, 0, 1, 3 / 2], rel=1e-6)


def test_any_strides(device):
    q, k, v = tensors(device)
    expected = flash_attn_func(q, k, v, causal=True)
    packed = torch.stack((k, v), 2)  # [B, Sk, 2, H_kv, D]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    across = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v)]
    for given in ((q, packed[:, :, 0], packed[:, :, 1]), turned, across):
        assert torch.equal(flash_attn_func(*given, causal=True), expected)


def test_v_may_have_a_head_dim_of_its_own(device):
    q, k, v = tensors(device)
    check_all(q, k, v[..., :16], causal=True)


def test_an_empty_batch(device):
    q, k, v = (x[:0] for x in tensors(device))
    assert flash_attn_func(q, k, v).shape == (0, SQ, H, D)


def test_windows_wider_than_any_sequence_are_no_window(device):
    q, k, v = tensors(device)
    full = flash_attn_func(q, k, v)
    for wide in (100, 2**31 - 1, 2**40):
        assert torch.equal(flash_attn_func(q, k, v, window_size=(wide, wide)), full)
    assert torch.equal(flash_attn_func(q, k, v, window_size=[-1, -1]), full)


def test_a_softcap_that_is_not_positive_is_off(device):
    q, k, v = tensors(device)
    assert torch.equal(flash_attn_func(q, k, v, softcap=-3.0), flash_attn_func(q, k, v))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_are_refused(device, name):
    given = dict(zip("qkv", tensors(device), strict=True))
    given[name].requires_grad_(True)
    with pytest.raises(al.errors.GradientRequired, match=f"{name} requires a gradient"):
        flash_attn_func(**given)
    with torch.no_grad():
        assert flash_attn_func(**given).requires_grad is False


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"dropout_p": 0.1}, al.errors.NotYetSupported),
        ({"window_size": (1,)}, al.errors.InvalidArgument),
        ({"window_size": (1.5, 2)}, al.errors.InvalidArgument),
        ({"window_size": None}, al.errors.InvalidArgument),
        ({"softcap": float("nan")}, al.errors.InvalidArgument),
        ({"softmax_scale": float("inf")}, al.errors.InvalidArgument),
        ({"causal": "no"}, al.errors.InvalidArgument),
        ({"deterministic": 2}, al.errors.InvalidArgument),
        ({"alibi_slopes": torch.ones(H, dtype=torch.float64)}, al.errors.DtypeMismatch),
        ({"alibi_slopes": torch.ones(H + 1)}, al.errors.ShapeMismatch),
        ({"alibi_slopes": torch.ones(B + 1, H)}, al.errors.ShapeMismatch),
        ({"k": torch.zeros(B, SK, HKV, D, dtype=torch.float16)}, al.errors.DtypeMismatch),
        ({"k": torch.zeros(B, SK + 1, HKV, D)}, al.errors.ShapeMismatch),
        ({"k": torch.zeros(B, SK, 3, D), "v": torch.zeros(B, SK, 3, D)}, al.errors.InvalidArgument),
        ({"v": torch.zeros(SK, HKV, D)}, al.errors.ShapeMismatch),
        ({"q": [1.0]}, al.errors.DtypeMismatch),
    ],
)
def test_what_is_refused(changed, error):
    q, k, v = tensors("cpu")
    with pytest.raises(error):
        flash_attn_func(**{"q": q, "k": k, "v": v, **changed})
