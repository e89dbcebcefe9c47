"""Tools for testing attention: poisoned inputs, derived tolerances, named workloads."""
