"""`attnloom bench` on a GPU: AttnLoom and its peers in one process on one card, interleaved, cold L2."""
