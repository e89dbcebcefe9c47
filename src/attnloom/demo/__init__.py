"""`attnloom demo`: a real language model answers chat prompts with continuous batching on AttnLoom.

Importing this package imports neither torch nor transformers; `run` does.
"""

from __future__ import annotations

from attnloom.demo.app import main, run
from attnloom.demo.options import add_arguments

__all__ = ["add_arguments", "main", "run"]
