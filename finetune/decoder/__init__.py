"""The decoder: tokens so far and the encoder's states in, the states of the next tokens out.

It is torch only, as the encoder is; the letters of the shapes are the encoder's, and S counts the
tokens of a target. How a target is searched for, token by token, is in `search.py`.

Reading order: config, block, decoder, search.
"""

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.decoder.config import DecoderConfig, SearchConfig
    from finetune.decoder.decoder import Decoder, DecoderCache
    from finetune.decoder.search import Found, Step, beam_search, greedy_search, length_penalty

__all__ = [
    "Decoder",
    "DecoderCache",
    "DecoderConfig",
    "Found",
    "SearchConfig",
    "Step",
    "beam_search",
    "greedy_search",
    "length_penalty",
]

__getattr__ = lazy_names(__name__, __all__, ("config", "search", "decoder"))
