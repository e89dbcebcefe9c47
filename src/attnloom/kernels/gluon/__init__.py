"""Device code in Gluon: Hopper's warp-specialised kernels. A small vocabulary, then the kernels."""
