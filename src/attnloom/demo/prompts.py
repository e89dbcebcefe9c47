"""What the demo asks: ten built-in prompts in three waves, or the lines of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnloom.errors import InvalidArgument

SYSTEM = (
    "You are the assistant of a small library. People ask you short questions. Answer in plain English, be friendly, "
    "keep to the facts, and use one or two sentences unless the question asks for more."
)

# wave w arrives when this many steps are done
WAVE_STEPS = (0, 6, 14)
FILE_MAX_NEW_TOKENS = 48

_TEXT = """\
The lighthouse on the northern cape was built in 1874 by a crew of forty workers, who carried every stone up the \
cliff by hand. For ninety years a keeper lived there with his family and lit the lamp each evening. In storms the \
keeper rang a bronze bell every two minutes, so that ships which could not see the light would hear the coast. In \
1931 the lamp was changed from oil to electricity, and the old oil tanks became a store for fishing nets. The last \
keeper, Anna Holm, retired in 1964, when the light began to work by itself. The house stood empty for twenty years, \
and the roof fell in during the winter of 1979. In 1984 the people of the village collected money, repaired the roof \
and opened a small museum. Today it shows the bronze bell, the old oil lamp and the diaries of the keepers, and about \
nine thousand people visit it every summer. The diaries are the part that visitors like most. One keeper wrote down \
the weather three times a day for thirty-one years and missed only two days, both for the birth of his daughters. \
Another drew every bird that he saw from the gallery, one hundred and sixty kinds in all, and his drawings now hang on \
the stairs. From the gallery one can see four islands, the harbour, and on clear days the mountains on the far side of \
the bay."""


@dataclass(frozen=True)
class Prompt:
    """One question.

    Attributes:
        text: what the user says.
        max_new_tokens: most tokens of the answer.
        wave: 0, 1 or 2; see WAVE_STEPS.
        expect: a word that the packaged model's answer must hold, None for no such check.
    """

    text: str
    max_new_tokens: int
    wave: int
    expect: str | None = None


# The first wave writes long enough that the long text of the second is prefilled, in chunks, beside its decoding.
BUILT_IN = (
    Prompt("Write a short story about a fox and a river.", 64, 0),
    Prompt("What is the capital of France?", 24, 0, expect="Paris"),
    Prompt("Name the seven days of the week.", 32, 0),
    Prompt(f"Read this text.\n\n{_TEXT}\n\nWhat is this text about?", 48, 1),
    Prompt("How many legs does a spider have?", 16, 1),
    Prompt("Explain how rain forms.", 56, 1),
    Prompt("What is the chemical symbol for water?", 16, 2),
    Prompt("What is the capital of Japan?", 24, 2),
    Prompt("What is photosynthesis?", 40, 2),
    Prompt("Give me a recipe for pancakes.", 52, 2),
)


def read_prompts(path: Path | None, max_new_tokens: int | None) -> tuple[Prompt, ...]:
    """The prompts of `path`, one a line, spread evenly over the waves; the built-in ones for None.

    Args:
        max_new_tokens: a limit on every answer; None keeps each prompt's own.

    Raises:
        InvalidArgument: the file cannot be read as UTF-8 text, or holds no prompt.
    """
    prompts: Sequence[Prompt] = BUILT_IN if path is None else _of_file(path)
    if max_new_tokens is None:
        return tuple(prompts)
    limit = max_new_tokens
    return tuple(
        Prompt(p.text, min(p.max_new_tokens, limit) if path is None else limit, p.wave, p.expect) for p in prompts
    )


def _of_file(path: Path) -> list[Prompt]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidArgument(
            name="--prompts", given=str(path), supported=f"a readable text file ({reason})",
            fix="Give a file with one prompt a line.",
        ) from error  # fmt: skip
    texts = [line for line in lines if line]
    if not texts:
        raise InvalidArgument(
            name="--prompts", given=str(path), supported="at least one line of text", fix="The file holds no prompt."
        )
    waves = len(WAVE_STEPS)
    return [Prompt(text, FILE_MAX_NEW_TOKENS, i * waves // len(texts)) for i, text in enumerate(texts)]
