"""Text for the bundled model: the sources of the standard library, as token ids.

Files are taken whole, in the order of a hash of their path; one in 32 is held out. Tests, tables of
character sets and installed packages are left out: they are either not prose and code that a reader
would want continued, or not the library's own.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 4096
HELD_OUT = 32
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}


def files() -> list[tuple[str, Path]]:
    """Every source file as (path relative to the library, path), in a fixed shuffled order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not SKIPPED.intersection(relative.parts):
            found.append((relative.as_posix(), path))
    return sorted(found, key=lambda item: hashlib.sha256(item[0].encode()).digest())


def texts(held_out: bool) -> Iterator[str]:
    for name, path in files():
        chosen = hashlib.sha256(name.encode()).digest()[-1] % HELD_OUT == 0
        if chosen == held_out:
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of VOCABULARY entries; id 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(held_out=False), trainer)
    return tokenizer


def ids(tokenizer: Tokenizer, held_out: bool) -> torch.Tensor:
    """All texts of one part, each followed by the end of text: [tokens], int64."""
    joined: list[int] = []
    for text in texts(held_out):
        joined.extend(tokenizer.encode(text).ids)
        joined.append(0)
    return torch.tensor(joined, dtype=torch.int64)
