"""Language models: decoders with caches as two methods, text in and out of them, and how well they predict it.

``language_model`` makes prefill and decode modules of a decoder that somebody has; ``ethorch.compile`` takes them. ``Speaker`` runs
them, or what was compiled of them, token by token.
"""

from ethorch.language.cost import decode_cost
from ethorch.language.load import from_folder, language_model
from ethorch.language.model import LanguageModel
from ethorch.language.sampling import Choice
from ethorch.language.score import perplexity, scores
from ethorch.language.speaker import Speaker
from ethorch.language.tokens import Characters, Tokenizer, end_tokens, load_tokenizer

__all__ = [
    "Characters",
    "Choice",
    "LanguageModel",
    "Speaker",
    "Tokenizer",
    "decode_cost",
    "end_tokens",
    "from_folder",
    "language_model",
    "load_tokenizer",
    "perplexity",
    "scores",
]
