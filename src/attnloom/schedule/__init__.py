"""The scheduler: lengths and mask bounds to work items, balanced over CTAs. Integers only, no GPU."""
