"""Text to tokens and back, how tokens are chosen, and how well they are predicted."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ethorch
from ethorch.language import Characters, Choice, Speaker, end_tokens, load_tokenizer, perplexity, scores
from ethorch.language.score import predictions, surprise, token_perplexity
from ethorch.language.tokens import byte_pairs
from ethorch.support.errors import EthorchError, SpecError

TEXT = "the cat sat on the mat, and the rat sat on the cat."


def successor(vocabulary: int = 10, sharp: float = 4.0, context: int = 16) -> Speaker:
    """A model that expects each token to be the one before plus one."""

    def decode(token: Tensor, position: Tensor) -> Tensor:
        logits = torch.zeros(1, vocabulary)
        logits[0, (int(token) + 1) % vocabulary] = sharp
        return logits

    return Speaker(decode, lambda: None, context)


def test_characters_go_there_and_back(tmp_path: Path) -> None:
    tokenizer = Characters.of(TEXT)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode("€") == [len(tokenizer) - 1]
    tokenizer.save(tmp_path / "letters.json")
    assert load_tokenizer(tmp_path / "letters.json").encode(TEXT) == tokenizer.encode(TEXT)


def test_byte_pairs_go_there_and_back(tmp_path: Path) -> None:
    made = byte_pairs([TEXT] * 9, 280, tmp_path / "tokenizer.json")
    assert made.decode(made.encode(TEXT + " é")) == TEXT + " é"
    assert len(made.encode(TEXT)) < len(TEXT) and len(made) <= 280
    assert load_tokenizer(tmp_path).encode(TEXT) == made.encode(TEXT)


def test_a_text_ends_where_the_model_says(tmp_path: Path) -> None:
    import tokenizers

    byte_pairs([TEXT] * 9, 280, tmp_path / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    begin, end = (tokenizer.token_to_id(name) for name in ("<s>", "</s>"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = load_tokenizer(tmp_path)
    assert words.encode("</s>") == [begin, end] and words.part("</s>") == [end]
    assert Characters.of(TEXT).part("cat") == Characters.of(TEXT).encode("cat")
    assert end_tokens(tmp_path) == ()
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert end_tokens(tmp_path) == end_tokens(tmp_path / "tokenizer.json") == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert end_tokens(tmp_path) == (3, 5)
    assert list(successor().generate([1], 9, stop=end_tokens(tmp_path))) == [2, 3]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(EthorchError, match=r"is not JSON.*Use a tokenizer\.json"):
        load_tokenizer(tmp_path / "x.json")
    with pytest.raises(EthorchError, match="without repetitions"):
        Characters("aa")


def test_choices() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, -1.0])
    assert Choice().next(logits, Choice().generator()) == 1
    drawn = Choice(temperature=1.0, top_k=2, seed=5)
    generator = drawn.generator()
    counted = Counter(drawn.next(logits, generator) for _ in range(400))
    assert set(counted) == {1, 2}
    assert abs(counted[1] / 400 - 1 / (1 + math.exp(-1))) < 0.1
    again = drawn.generator()
    assert [drawn.next(logits, again) for _ in range(20)] == [drawn.next(logits, g) for g in [drawn.generator()] for _ in range(20)]
    for wrong in ({"temperature": -1.0}, {"temperature": math.nan}, {"top_k": -1}):
        with pytest.raises(SpecError):
            Choice(**wrong)


def test_generation_stops_where_it_has_to() -> None:
    speaker = successor()
    assert list(speaker.generate([1, 2], 3)) == [3, 4, 5]
    speaker.reset()
    assert list(speaker.generate([1], 9, stop=[4])) == [2, 3, 4]
    speaker.reset()
    assert len(list(speaker.generate([1], 99))) == speaker.context
    with pytest.raises(EthorchError, match="context"):
        speaker.read([1])


def test_perplexity_is_that_of_the_distribution() -> None:
    certain, guess = successor(sharp=60.0), successor(sharp=0.0)
    assert perplexity(certain, [[1, 2, 3, 4]]) == pytest.approx(1.0)
    assert perplexity(guess, [[1, 2, 3, 4], [5, 1]]) == pytest.approx(10.0)
    likely = math.exp(4.0) / (math.exp(4.0) + 9)
    found = [surprise(logits, token) for token, logits in predictions(successor(), [3, 4, 4], 1)]
    assert found == pytest.approx([-math.log(likely), -math.log((1 - likely) / 9)])
    with pytest.raises(EthorchError, match="at least"):
        perplexity(guess, [[1]])


def test_columns_are_scored_side_by_side() -> None:
    found = scores({"float": successor(), "flat": successor(sharp=0.0)}, [[1, 2, 3, 4, 5]], prompt=2, write=3)
    assert found.perplexity["flat"] == pytest.approx(10.0)
    assert found.perplexity["float"] < 2
    assert found.agreement == {"float": 1.0, "flat": 0.0}
    assert found.free_running["flat"] > found.free_running["float"]
    assert "free running" in str(found) and found.to_json()["tokens"] == 3


def test_perplexity_is_a_metric_of_evaluate() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(12, 16), torch.nn.Linear(16, 12)).eval()
    samples = [(torch.randint(12, (1, 6), dtype=torch.int32), torch.randint(12, (6,))) for _ in range(4)]
    program = ethorch.compile(model, samples[0][:1], "ethos-u85-256", calibration=[x for x, _ in samples])
    found = ethorch.evaluate(program, samples, metric=token_perplexity).results
    with torch.no_grad():
        wanted = token_perplexity([[model(x)] for x, _ in samples], [label for _, label in samples])
    (name,) = set(found["float"])
    assert found["float"][name] == pytest.approx(wanted)
    assert found["npu"][name] == pytest.approx(wanted, rel=0.05) and 6 < wanted < 30
    with pytest.raises(EthorchError, match=r"expected [0-9]+ labels"):
        token_perplexity([[torch.zeros(3, 4)]], [torch.zeros(2)])
