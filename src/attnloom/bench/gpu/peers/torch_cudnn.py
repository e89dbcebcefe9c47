"""cuDNN's attention through torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend

from attnloom.bench.gpu.case import GpuCase
from attnloom.bench.gpu.inputs import DeviceBatch
from attnloom.bench.gpu.peer import Peer, Setting, no_cuda_reason
from attnloom.bench.gpu.peers.torch_fa2 import half_types_only, sdpa, square_or_decode_only


class TorchCuDNN(Peer):
    """scaled_dot_product_attention with the cuDNN back end, for batches of one length."""

    id = "torch-cudnn"
    engine = "cuDNN (torch)"

    def unavailable_reason(self) -> str | None:
        """See Peer."""
        return no_cuda_reason() or (None if torch.backends.cudnn.is_available() else "torch finds no cuDNN")

    def unfit_reason(self, gpu_case: GpuCase) -> str | None:
        """See Peer."""
        if len(set(gpu_case.case.lengths.kv)) > 1:
            return "called on batches of one length only"
        return half_types_only(gpu_case) or square_or_decode_only(gpu_case)

    def settings(self, batch: DeviceBatch) -> Sequence[Setting]:
        """See Peer."""
        return [
            Setting("enable_gqa", lambda: sdpa(batch, SDPBackend.CUDNN_ATTENTION, expand=False)),
            Setting("expanded heads", lambda: sdpa(batch, SDPBackend.CUDNN_ATTENTION, expand=True)),
        ]
