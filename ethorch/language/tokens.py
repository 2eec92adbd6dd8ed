"""Text as token ids and back: a vocabulary of characters, or a ``tokenizer.json`` of the tokenizers library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ethorch.formats.files import write_whole
from ethorch.models.zoos import SAVE_AGAIN
from ethorch.support.errors import EthorchError, FormatError
from ethorch.support.text_files import read_json
from ethorch.support.wording import shown


class Tokenizer(Protocol):
    """What turns text into ids and ids into text."""

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def part(self, text: str) -> list[int]:
        """Ids of a text that does not stand at the beginning: without a token that begins it."""

    def __len__(self) -> int: ...


class Characters:
    """A token for each character of a string; what is not in it is read as the last one.

    As a file it is JSON: ``{"characters": "abc..."}``.
    """

    def __init__(self, characters: str):
        if len(set(characters)) != len(characters) or not characters:
            raise EthorchError("a vocabulary of characters has each of them once, and at least one.")
        self.characters = characters
        self._ids = {character: number for number, character in enumerate(characters)}

    @classmethod
    def of(cls, text: str) -> Characters:
        """The characters of a text, in order, and a last one for all others."""
        return cls("".join(sorted(set(text) - {"\ufffd"})) + "\ufffd")

    def unknown(self, text: str) -> str:
        """The characters of a text that are none of these."""
        return "".join(sorted(set(text) - set(self.characters)))

    def encode(self, text: str) -> list[int]:
        """An id for each character."""
        return [self._ids.get(character, len(self.characters) - 1) for character in text]

    def part(self, text: str) -> list[int]:
        """An id for each character."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """A character for each id."""
        return "".join(self.characters[number] for number in ids)

    def __len__(self) -> int:
        return len(self.characters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that ``load_tokenizer`` reads."""
        write_whole(Path(path), json.dumps({"characters": self.characters}).encode())


class _Library:
    """A tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)

    def part(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())


def byte_pairs(texts: Iterable[str], size: int, path: str | os.PathLike[str]) -> Tokenizer:
    """Byte pairs learnt from texts, at most ``size`` of them; written to ``path`` as a ``tokenizer.json``."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    write_whole(Path(path), tokenizer.to_str().encode())
    return _Library(tokenizer)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a local file: ``tokenizer.json``, a folder with one, or a file of characters. Nothing is unpickled.

    Raises:
        EthorchError: there is no such file, it is another one, or the tokenizers library that it needs is not installed.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    remedy = 'Name a tokenizer.json of the tokenizers library, or a file {"characters": "abc..."}, as Characters.save writes it.'
    content = read_json(file, remedy)
    if isinstance(content.get("characters"), str):
        try:
            return Characters(content["characters"])
        except EthorchError as error:
            raise FormatError(f"{file}: {error}") from None
    library = _library()
    try:
        return _Library(library.Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises Exception itself
        raise EthorchError(f"the tokenizers library cannot read {file}: {error}.") from None


def end_tokens(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The tokens that end a text: ``eos_token_id`` of the generation_config.json or config.json beside a tokenizer; none without.

    Args:
        path: of the tokenizer, as for ``load_tokenizer``.

    Raises:
        FormatError: a file is damaged.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    for file in (folder / "generation_config.json", folder / "config.json"):
        found = read_json(file, SAVE_AGAIN).get("eos_token_id") if file.is_file() else None
        if found is not None:
            numbers = found if isinstance(found, list) else [found]
            if not all(type(number) is int for number in numbers):
                raise FormatError(f"{file}: eos_token_id is {shown(found)}; expected token numbers. {SAVE_AGAIN}")
            return tuple(numbers)
    return ()


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise EthorchError('the Python package tokenizers is not installed: pip install "ethorch[language]".') from None
    return tokenizers
