"""Train a small language model, compile it for the Ethos-U85, and generate text on the simulated NPU.

``python examples/story.py [--steps 400] [--model FOLDER] [--out story_out]`` trains on the docstrings of the standard library.
``--model`` skips training and loads a Llama-like model of Hugging Face (config.json, safetensors, tokenizer.json).
``make demo-llm`` runs this example.
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
    """Return the docstrings of the standard library, without importing its modules."""
    texts = []
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
        texts += [text + "\n" for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    return [text for text in dict.fromkeys(texts) if len(text) > 60]


def train(texts: list[str], folder: Path, steps: int, vocabulary: int, context: int) -> None:
    """Train a Llama of 2 million parameters, and write it to ``folder`` with its tokenizer."""
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
        starts = torch.randint(len(ids) - context - 1, (16,))
        batch = torch.stack([ids[start : start + context] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)


def compile_language_model(model: LanguageModel, sessions: list[Session], target: str, scheme: str) -> ethorch.Program:
    """Compile prefill and decode as the methods of one program."""
    return ethorch.compile(
        model.modules,
        model.example_inputs,
        target,
        calibration=sessions,
        scheme=scheme,
        settings=ethorch.Settings(system_config=SYSTEM, memory_mode=MODE),
    )


def write_text(speaker: Speaker, tokenizer: Tokenizer, prompt: str, count: int, choice: Choice) -> str:
    """Return the prompt followed by the text that the model generates."""
    ids = tokenizer.encode(prompt)
    speaker.reset()
    return tokenizer.decode([*ids, *speaker.generate(ids, count, choice)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a transformers model to use instead of training")
    parser.add_argument("--out", type=Path, default=Path("story_out"), help="folder of the results; default: %(default)s")
    parser.add_argument("--steps", type=int, default=400, help="steps of training; default: %(default)s")
    parser.add_argument("--vocabulary", type=int, default=1024, help="size of the vocabulary; default: %(default)s")
    parser.add_argument("--context", type=int, default=128, help="positions of the cache; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=60, help="number of tokens to generate; default: %(default)s")
    parser.add_argument("--prompt", default="Return the ", help="text to continue; default: %(default)r")
    parser.add_argument("--temperature", type=float, default=0.7, help="sampling temperature; default: %(default)s")
    parser.add_argument("--top-k", type=int, default=40, help="number of likeliest tokens to sample from; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sampling; default: %(default)s")
    parser.add_argument("--scheme", default="a16w8", help="quantization scheme; default: %(default)s")
    parser.add_argument("--npus", nargs="*", default=list(NPUS), help="NPUs to compare; the text is generated on the first")
    options = parser.parse_args()
    try:
        modules = ("transformers", "tokenizers", "safetensors")
        check_installed("examples/story.py", modules, 'pip install -e ".[language]"')
    except EthorchError as error:
        sys.exit(f"error: {error}")
    texts = docstrings()
    held_out, texts = texts[::50], [text for number, text in enumerate(texts) if number % 50]
    folder = options.model
    if folder is None:
        folder = options.out / "model"
        if not (folder / "config.json").exists():
            train(texts, folder, options.steps, options.vocabulary, options.context)
    tokenizer = load_tokenizer(folder)
    model = from_folder(folder, context=options.context, prompt=16)
    samples = [tokenizer.encode(text)[: options.context] for text in texts[:: len(texts) // 8]]
    start = time.perf_counter()
    program = compile_language_model(
        model, model.sessions([ids for ids in samples if len(ids) > 20]), options.npus[0], options.scheme
    )
    print(f"\ncompiled for {options.npus[0]} in {time.perf_counter() - start:.0f} s: {len(program.pte):,} bytes")
    program.save(options.out / "story.pte")

    choice = Choice(options.temperature, options.top_k, options.seed)
    columns = {
        "float": Speaker.of_model(model),
        "quantized": Speaker.of_quantized(program, model),
        "NPU": Speaker.of_methods({name: program[name] for name in program.methods}, program.reset, model),
    }
    for name, speaker in columns.items():
        print(f"\n--- {name}\n{write_text(speaker, tokenizer, options.prompt, options.tokens, choice)}")
    unseen = [ids for text in held_out if len(ids := tokenizer.encode(text)[:48]) > 24][:6]
    print(f"\n{scores(columns, unseen, write=16)}\n")

    costs: dict[str, DecodeCost] = {}
    for target in options.npus:
        candidate = (
            program
            if target == options.npus[0]
            else compile_language_model(model, model.sessions(samples[:1]), target, options.scheme)
        )
        costs[target] = decode_cost(candidate["decode"])
        print(costs[target].line())
    print(f"\n{costs[options.npus[0]]}")


if __name__ == "__main__":
    main()
