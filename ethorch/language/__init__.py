"""Language models: tokenizers, text generation, perplexity, and decoders split into two methods.

``language_model`` splits a decoder into prefill and decode modules for ``ethorch.compile``. ``Speaker`` runs these modules, or a
program, token by token.
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
