"""Cases 50 and 51, the halves that need no GPU: no compiler on the box, and import that touches no driver."""

import os
import subprocess
import sys

import pytest

USE = """
import attnloom as al, torch
variant = al.Variant(
    logits_transform=lambda logits, kv_pos: logits + 0.1 * kv_pos,
    logits_mask=lambda q_pos, kv_pos: kv_pos <= q_pos,
)
q, k = torch.randn(5, 4, 64), torch.randn(9, 2, 64)
out = al.attention(q, k, k, variant=variant)
assert out.shape == (5, 4, 64) and out.isfinite().all()
assert not torch.cuda.is_initialized()
print("ran", [a.name for a in al.implementations() if a.available])
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.case(50)
def test_a_new_variant_runs_without_any_compiler(tmp_path):
    """No nvcc, no cc, no CUDA_HOME: what runs on this machine still runs."""
    empty = tmp_path / "bin"
    empty.mkdir()
    done = python(USE, PATH=str(empty), CUDA_HOME="", CC="", CXX="")
    assert done.returncode == 0, done.stderr
    assert "'cpu'" in done.stdout


@pytest.mark.case(51)
@pytest.mark.parametrize("archs", ["7.0;9.0+PTX", "5.2"])
def test_import_ignores_torch_cuda_arch_list(archs):
    done = python(USE, TORCH_CUDA_ARCH_LIST=archs, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr


@pytest.mark.case(51)
def test_import_touches_no_driver_and_no_compiler():
    code = """
import sys, torch
def forbidden(*args, **kwargs):
    raise SystemExit("import touched the CUDA driver")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = torch.cuda.get_device_properties = forbidden
import attnloom
assert not {"triton", "numba", "transformers"} & set(sys.modules), "import pulled in a heavy package"
attnloom.variants.causal() & attnloom.variants.soft_cap(30.0)
print("light")
"""
    done = python(code)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.strip() == "light"
