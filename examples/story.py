"""Train a small language model on the standard library's docstrings, compile it for Ethos-U85, and let the simulated NPU write.

``python examples/story.py [--steps 400] [--model FOLDER] [--out story_out]``; ``make demo-llm`` does it all. A folder with a
Llama-like model of Hugging Face (config.json, safetensors, tokenizer.json) takes the place of the one that is trained.
"""

import argparse
import ast
import sys
import sysconfig
import time
from pathlib import Path

import torch

import ethorch
from ethorch import EthorchError
from ethorch.language import Choice, LanguageModel, Speaker, Tokenizer, from_folder, load_tokenizer, scores
from ethorch.language.cost import DecodeCost, decode_cost
from ethorch.language.model import Session
from ethorch.language.tokens import byte_pairs
from ethorch.models.zoos import torchvision_models
from ethorch.support.versions import check_installed

SYSTEM, MODE = "Ethos_U85_SYS_DRAM_High", "Dedicated_Sram_512KB"
NPUS = ("ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048")


def docstrings() -> list[str]:
    """The docstrings of the standard library, longest modules last; nothing of it is imported."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")) + sorted(
        Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/*.py")
    ):
        if "site-packages" in path.parts or "test" in path.parts or "idlelib" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found += [text + "\n" for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    return [text for text in dict.fromkeys(found) if len(text) > 60]


def train(texts: list[str], folder: Path, steps: int, vocabulary: int, context: int) -> None:
    """A Llama of 2 million parameters, written to ``folder`` with its tokenizer."""
    torchvision_models(needed=False)
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_pairs(texts, vocabulary, folder / "tokenizer.json")
    ids = torch.tensor([token for text in texts for token in tokenizer.encode(text)])
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=context, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(ids):,} tokens of text")
    for step in range(steps):
        places = torch.randint(len(ids) - context - 1, (16,))
        batch = torch.stack([ids[place : place + context] for place in places])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)


def compiled(model: LanguageModel, sessions: list[Session], target: str, scheme: str) -> ethorch.Program:
    """Prefill and decode as the methods of one program."""
    return ethorch.compile(
        model.modules,
        model.example_inputs,
        target,
        calibration=sessions,
        scheme=scheme,
        settings=ethorch.Settings(system_config=SYSTEM, memory_mode=MODE),
    )


def written(speaker: Speaker, tokenizer: Tokenizer, prompt: str, count: int, choice: Choice) -> str:
    """The prompt, and what the model writes behind it."""
    ids = tokenizer.encode(prompt)
    speaker.reset()
    return tokenizer.decode([*ids, *speaker.generate(ids, count, choice)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder of transformers, instead of training")
    parser.add_argument("--out", type=Path, default=Path("story_out"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=60, help="to write")
    parser.add_argument("--prompt", default="Return the ")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scheme", default="a16w8")
    parser.add_argument("--npus", nargs="*", default=list(NPUS))
    options = parser.parse_args()
    try:
        modules = ("transformers", "tokenizers", "safetensors")
        check_installed("examples/story.py", modules, 'pip install -e ".[language]"')
    except EthorchError as error:
        sys.exit(f"error: {error}")
    texts = docstrings()
    held, texts = texts[::50], [text for number, text in enumerate(texts) if number % 50]
    folder = options.model
    if folder is None:
        folder = options.out / "model"
        if not (folder / "config.json").exists():
            train(texts, folder, options.steps, options.vocabulary, options.context)
    tokenizer = load_tokenizer(folder)
    model = from_folder(folder, context=options.context, prompt=16)
    read = [tokenizer.encode(text)[: options.context] for text in texts[:: len(texts) // 8]]
    began = time.perf_counter()
    program = compiled(model, model.sessions([ids for ids in read if len(ids) > 20]), options.npus[0], options.scheme)
    print(f"\ncompiled for {options.npus[0]} in {time.perf_counter() - began:.0f} s: {len(program.pte):,} bytes")
    program.save(options.out / "story.pte")

    choice = Choice(options.temperature, options.top_k, options.seed)
    columns = {
        "float": Speaker.of_model(model),
        "quantized": Speaker.of_quantized(program, model),
        "NPU": Speaker.of_methods({name: program[name] for name in program.methods}, program.reset, model),
    }
    for name, speaker in columns.items():
        print(f"\n--- {name}\n{written(speaker, tokenizer, options.prompt, options.tokens, choice)}")
    unseen = [ids for text in held if len(ids := tokenizer.encode(text)[:48]) > 24][:6]
    print(f"\n{scores(columns, unseen, write=16)}\n")

    costs: dict[str, DecodeCost] = {}
    for target in options.npus:
        one = program if target == options.npus[0] else compiled(model, model.sessions(read[:1]), target, options.scheme)
        costs[target] = decode_cost(one["decode"])
        print(costs[target].line())
    print(f"\n{costs[options.npus[0]]}")


if __name__ == "__main__":
    main()
