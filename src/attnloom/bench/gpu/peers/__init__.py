"""The peers, in the order of tables and charts; each an adapter in a file of its own."""

from __future__ import annotations

from attnloom.bench.gpu.peer import Peer
from attnloom.bench.gpu.peers.attnloom_pages import AttnLoomPages
from attnloom.bench.gpu.peers.fa3 import FA3
from attnloom.bench.gpu.peers.flashinfer_decode import FlashInferDecode
from attnloom.bench.gpu.peers.flashinfer_prefill import FlashInferPrefill
from attnloom.bench.gpu.peers.flex import Flex
from attnloom.bench.gpu.peers.torch_cudnn import TorchCuDNN
from attnloom.bench.gpu.peers.torch_fa2 import TorchFA2


def all_peers() -> tuple[Peer, ...]:
    """Every peer there is an adapter for, importable here or not."""
    return (
        TorchFA2(),
        TorchCuDNN(),
        Flex(),
        FA3(),
        *(FlashInferPrefill(storage, backend) for storage in ("paged", "ragged") for backend in ("fa2", "fa3")),
        *(FlashInferDecode(cores) for cores in ("cuda", "tensor")),
        AttnLoomPages(),
    )
