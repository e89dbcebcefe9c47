"""From a traced variant to device code: emitted source, importable module, cache on disk."""
