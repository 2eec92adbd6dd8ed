"""Tokenizers for a vocabulary of characters or a ``tokenizer.json``."""

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
from ethorch.support.wording import shorten


class Tokenizer(Protocol):
    """A converter from text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, including start tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text for token ids."""

    def part(self, text: str) -> list[int]:
        """Return the token ids of ``text`` without start tokens."""

    def __len__(self) -> int: ...


class Characters:
    """A tokenizer with one token per character. The last character represents unknown characters.

    The file format is JSON: ``{"characters": "abc..."}``.
    """

    def __init__(self, characters: str):
        if len(set(characters)) != len(characters) or not characters:
            raise EthorchError(f"expected a vocabulary of at least one character, without repetitions, got {characters[:40]!r}.")
        self.characters = characters
        self._ids = {character: number for number, character in enumerate(characters)}

    @classmethod
    def of(cls, text: str) -> Characters:
        """Create a tokenizer from the sorted characters of ``text``, plus U+FFFD for unknown characters."""
        return cls("".join(sorted(set(text) - {"\ufffd"})) + "\ufffd")

    def unknown(self, text: str) -> str:
        """Return the characters of ``text`` that are not in the vocabulary."""
        return "".join(sorted(set(text) - set(self.characters)))

    def encode(self, text: str) -> list[int]:
        """Return the id of each character."""
        return [self._ids.get(character, len(self.characters) - 1) for character in text]

    def part(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the characters with the given ids."""
        return "".join(self.characters[number] for number in ids)

    def __len__(self) -> int:
        return len(self.characters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ``load_tokenizer`` can load."""
        write_whole(Path(path), json.dumps({"characters": self.characters}).encode())


class _Library:
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
    """Train a byte-pair tokenizer with at most ``size`` tokens, and write it to ``path`` in the format of ``tokenizer.json``."""
    library = _import_tokenizers()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    write_whole(Path(path), tokenizer.to_str().encode())
    return _Library(tokenizer)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a ``tokenizer.json``, a folder that contains one, or a file written by ``Characters.save``. Code is not executed.

    Raises:
        EthorchError: The file does not exist or has another format, or the tokenizers library is not installed.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    remedy = (
        'Use a tokenizer.json written by the tokenizers library, or a file {"characters": "abc..."} written by Characters.save.'
    )
    content = read_json(file, remedy)
    if isinstance(content.get("characters"), str):
        try:
            return Characters(content["characters"])
        except EthorchError as error:
            raise FormatError(f"{file}: {error}") from None
    library = _import_tokenizers()
    try:
        return _Library(library.Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises plain Exceptions
        raise EthorchError(f"the tokenizers library cannot read {file}: {error}.") from None


def end_tokens(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Return ``eos_token_id`` from the generation_config.json or config.json next to a tokenizer, or () if neither file defines it.

    Raises:
        FormatError: A file is malformed.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    for file in (folder / "generation_config.json", folder / "config.json"):
        token_ids = read_json(file, SAVE_AGAIN).get("eos_token_id") if file.is_file() else None
        if token_ids is not None:
            numbers = token_ids if isinstance(token_ids, list) else [token_ids]
            if not all(type(number) is int for number in numbers):
                raise FormatError(f"{file}: expected token ids for eos_token_id, got {shorten(token_ids)}. {SAVE_AGAIN}")
            return tuple(numbers)
    return ()


def _import_tokenizers() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise EthorchError('the Python package tokenizers is not installed. Run pip install "ethorch[language]".') from None
    return tokenizers
