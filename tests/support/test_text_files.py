"""Damaged settings, source tables and Hugging Face folders: one sentence that names the file, never another kind of error."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from ethorch.language import Characters, end_tokens, from_folder, load_tokenizer
from ethorch.models.zoos import load, torchvision_models
from ethorch.npu import Sources
from ethorch.support.errors import EthorchError
from ethorch.support.text_files import read_text
from ethorch.targets.settings import Settings

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**63, 10**400, 1.5, -0.0, math.inf, math.nan, "", "x", "\0", "9" * 5000, "-1K", "1e999", "1x2,", "٣x٤",
    "9" * 400 + "G", "../" * 3000, "--optimise", "head", [], [[]], ["a"], [1, [2, {}]], {}, {"a": 1}, {"a": {"b": [1]}},
)  # fmt: skip
SETTINGS = {
    "target": "ethos-u55-128", "scheme": "int8", "modules": {"head": "a16w8"}, "io": "int8", "io_layout": "nchw",
    "partition": "npu", "shapes": [[[1, 3, 8, 8]]], "system_config": "Ethos_U55_High_End_Embedded", "memory_mode": "Shared_Sram",
    "config_ini": "Arm/vela.ini", "vela_flags": ["--optimise", "Size"], "arena": "64K", "constants": "flash", "ram": 1000,
    "flash": "1M", "latency_ms": 1.5, "min_sqnr_db": 20, "board": "corstone-300", "verify": True, "etrecord": False,
    "share_weights": True, "stream": "vela",
    "samples": {"calibrate": ["images"], "max_samples": 9, "mean": [0.5], "std": [0.5], "weights": "w.pth"},
}  # fmt: skip
SOURCES = {
    "sources": [{"name": "y", "operator": "Conv2D", "op_cycles": 9, "npu_cycles": 8, "macs": 7, "origin": "aten.conv2d"}] * 3,
    "ends": [[4, 0], [12, 1], [30, 2]],
}


def nest(depth: int) -> str:
    return "[" * depth + "]" * depth


def damaged(rng: random.Random, good: dict[str, Any], dumps: Callable[[Any], str], assign: str) -> Iterator[bytes]:
    """Yield texts with a wrong value, an unknown key, a missing end, deep nesting, a huge number, or bytes that are not UTF-8."""
    while True:
        data = copy.deepcopy({key: value for key, value in good.items() if rng.random() < 0.9})
        for _ in range(rng.randint(1, 2)):
            holder: Any = data
            while rng.random() < 0.5:
                inside = list(holder.values()) if isinstance(holder, dict) else holder
                inside = [one for one in inside if isinstance(one, (dict, list)) and one]
                if not inside:
                    break
                holder = rng.choice(inside)
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if keys:
                holder[rng.choice([*keys, "zz"] if isinstance(holder, dict) else keys)] = copy.deepcopy(rng.choice(VALUES))
        try:
            text = dumps(data).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError):  # a value that this format has no form for
            continue
        place = rng.randrange(len(text))
        deep, huge = assign.format(nest(20000)).encode(), assign.format("9" * 5000).encode()
        yield rng.choice([text, text, text, text[:place], text[:place] + b"\xff\xfe" + text[place:], deep, huge, b"[]", b"null"])


def check(read: Callable[[], Any], file: str) -> bool:
    """Return True if the reader accepts the file; its refusal is a short sentence that names the file."""
    try:
        read()
    except EthorchError as error:
        said = str(error)
        assert file in said and len(said) < 1200 and said.endswith((".", "]", "Save the program again to write it.)")), said
        return False
    return True


def fuzz(file: Path, texts: Iterator[bytes], count: int, *reads: Callable[[], Any]) -> None:
    verdicts = set()
    for _ in range(count):
        file.write_bytes(next(texts))
        verdicts |= {check(read, str(file.parent)) for read in reads}
    assert verdicts == {True, False}, "the fuzzer reaches both"


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    fuzz(file, damaged(random.Random(0), SETTINGS, tomli_w.dumps, "target = {}"), 400, lambda: Settings.read(file))
    with pytest.raises(EthorchError, match=r"cannot read .*none.toml: No such file"):
        Settings.read(tmp_path / "none.toml")


def test_sources(tmp_path: Path) -> None:
    file = tmp_path / "a.sources.json"
    text = json.dumps(SOURCES)
    assert json.loads(Sources.from_json(text).to_json())["ends"] == SOURCES["ends"]
    fuzz(
        file,
        damaged(random.Random(0), SOURCES, json.dumps, '{{"sources": {}}}'),
        500,
        lambda: Sources.from_json(read_text(file), str(file)).at(5),
    )


def test_hugging_face_folders(tmp_path: Path) -> None:
    torchvision_models(needed=False)
    import transformers

    file, vocabulary = tmp_path / "config.json", tmp_path / "tokenizer.json"
    Characters("abc").save(vocabulary)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=40, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    texts = damaged(random.Random(0), json.loads(file.read_text()), json.dumps, '{{"architectures": {}}}')
    fuzz(
        file,
        texts,
        60,
        lambda: load("hf", str(tmp_path)),
        lambda: from_folder(tmp_path, context=8, prompt=4),
        lambda: end_tokens(vocabulary),
    )
    good = {"characters": "abc"}
    fuzz(vocabulary, damaged(random.Random(0), good, json.dumps, '{{"characters": {}}}'), 200, lambda: load_tokenizer(vocabulary))
