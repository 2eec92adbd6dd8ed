"""Decoders of every family compute the same by prefill and decode as without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ethorch import language
from ethorch.language import Speaker, from_folder, language_model
from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError
from tests.helpers.decoders import CONTEXT, FAMILIES, PROMPT, VOCABULARY, WINDOW, Rotary

IDS = [(k * 7 + k * k) % VOCABULARY for k in range(CONTEXT)]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_compute_what_the_model_computes(family: str) -> None:
    model = FAMILIES[family](32, 2)
    length = PROMPT * 2 + 5  # beyond a sliding window
    assert length > WINDOW
    speaker = Speaker.of_model(model)
    mixed = speaker.read(IDS[:length])
    assert speaker.calls["prefill"] >= 1
    stepped = Speaker.of_model(model)
    if model.source is None:
        stepped.prompt = 0
    for k in range(length if model.source is None else 0):
        by_steps = stepped.read(IDS[k : k + 1])
    if model.source is None:
        torch.testing.assert_close(mixed, by_steps, rtol=1e-4, atol=1e-5)
    if hasattr(model.decoder, "config"):  # transformers' own way, without a cache
        network = model.decoder.model.set_attn_implementation("eager") or model.decoder.model
        ids = torch.tensor([IDS[:length]])
        for part in network.modules():
            vars(part).pop("compute_bias", None)
        given = {"input_ids": ids} if model.source is None else {network.main_input_name: model.source, "decoder_input_ids": ids}
        with torch.no_grad():
            wanted = network(**given, use_cache=False).logits[0, -1]
        torch.testing.assert_close(mixed, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "refusal"),
    [
        ("Llama", ""),
        ("Gemma", ""),
        ("GPT-2", ""),
        ("Qwen2", "requires tied embeddings"),
        ("plain", "expected a transformers model"),
    ],
)
def test_a_tied_table_can_be_read_first(family: str, refusal: str) -> None:
    """What the model computes stays the same: the adapter compares it."""
    known = FAMILIES[family](32, 2)
    network = known.decoder.model
    if refusal:
        with pytest.raises(EthorchError, match=refusal):
            language_model(network, context=CONTEXT, prompt=PROMPT, store_table_once=True)
        return
    model = language_model(network, context=CONTEXT, prompt=PROMPT, store_table_once=True)
    table = network.get_input_embeddings().weight
    assert network.get_output_embeddings().weight is table
    assert not any(isinstance(part, nn.Linear) and part.weight is table for part in network.modules())
    again = language_model(network, context=CONTEXT, prompt=0, store_table_once=True)
    torch.testing.assert_close(Speaker.of_model(model).read(IDS[:9]), Speaker.of_model(again).read(IDS[:9]), rtol=1e-4, atol=1e-5)


def test_a_model_that_takes_no_mask_of_each_call_is_refused() -> None:
    torchvision_models(needed=False)
    import transformers

    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(EthorchError, match=r"does not run with a static cache.*\. Wrap the model in"):
        language_model(transformers.BloomForCausalLM(config), context=CONTEXT, prompt=PROMPT)


def test_caches_are_found_and_given_back_what_they_held() -> None:
    model = FAMILIES["plain"](32, 2)
    assert set(model.caches) == {f"model.blocks.{n}.{name}" for n in (0, 1) for name in ("k", "v")}
    speaker = Speaker.of_model(model)
    first = speaker.read(IDS[:5])
    assert any(model.decoder.get_buffer(name).any() for name in model.caches)
    speaker.reset()
    assert not any(model.decoder.get_buffer(name).any() for name in model.caches)
    assert torch.equal(speaker.read(IDS[:5]), first)


def test_a_session_is_calls_in_order() -> None:
    model = FAMILIES["plain"](32, 2)
    calls = model.session(IDS[: PROMPT + 2])
    assert [name for name, _ in calls] == ["prefill", "decode", "decode"]
    assert [inputs[-1].tolist() for _, inputs in calls] == [[PROMPT - 1], [PROMPT], [PROMPT + 1]]
    with pytest.raises(EthorchError, match="context"):
        model.session(IDS * 2)


def test_a_folder_of_safetensors_is_read(tmp_path: Path) -> None:
    model = FAMILIES["Llama"](32, 2)
    model.decoder.model.save_pretrained(tmp_path)
    read = from_folder(tmp_path, context=CONTEXT, prompt=PROMPT)
    assert torch.equal(Speaker.of_model(read).read(IDS[:9]), Speaker.of_model(model).read(IDS[:9]))
    with pytest.raises(EthorchError, match="cannot read"):
        from_folder(tmp_path / "nothing")


def test_what_is_no_decoder_is_refused() -> None:
    torchvision_models(needed=False)
    with pytest.raises(EthorchError, match="got Linear"):
        language_model(nn.Linear(3, 3))
    with pytest.raises(EthorchError, match="prompt=9"):
        language_model(Rotary(), context=8, prompt=9)
    import transformers

    mamba = transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            vocab_size=8, hidden_size=16, num_hidden_layers=1, num_heads=4, head_dim=8, state_size=4, n_groups=1
        )
    )
    with pytest.raises(EthorchError):
        language_model(mamba, context=8, prompt=0)
    with pytest.raises(EthorchError, match="expected at most 48"):
        language_model(FAMILIES["GPT-2"](32, 2).decoder.model, context=CONTEXT + 1)


def test_the_package_hands_on_its_names() -> None:
    assert all(hasattr(language, name) for name in language.__all__)
