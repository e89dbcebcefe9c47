import pytest
import torch
import transformers


def pytest_report_header():
    return f"transformers {transformers.__version__} from {transformers.__path__[0]}"


@pytest.fixture(autouse=True)
def _quiet_and_single_threaded():
    """Tiny models: more threads only cost time, and transformers' advice is not about us."""
    before, verbosity = torch.get_num_threads(), transformers.logging.get_verbosity()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    yield
    transformers.logging.set_verbosity(verbosity)
    torch.set_num_threads(before)


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
        ),
    ]
)
def device(request):
    """Where the model lies; fp32 products are IEEE, not TF32, for tokens are compared exactly."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield request.param
    torch.set_float32_matmul_precision(before)
