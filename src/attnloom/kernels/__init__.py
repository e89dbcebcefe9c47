"""Device code only: a small vocabulary per language (Triton, Gluon), then the kernels built from it."""
