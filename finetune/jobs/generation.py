"""A causal language model writes on: token after token, each drawn given all before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune.encoder.cache import Cache
from finetune.errors import ConfigError, DataError
from finetune.heads.sampling import greedy, sample
from finetune.jobs.sources import load_language_model, longest_context
from finetune.ranges import MOST_SEED, MOST_TOKENS, check_values, within
from finetune.text.corpus.counter_rng import random_bits, uniform
from finetune.text.features.in_memory import rows_of
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.randomness import keyed_seed
from finetune.training.ranks import ALONE

WINDOW_BATCHES = 32
"""Batches of prompts that are read ahead and sorted by length together."""
HELD_BACK = 16
"""Characters without a space that a stream holds back at most: they may belong to an odd token."""
Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Where each row is, and its values by field."""


@dataclass(frozen=True)
class GenerationConfig:
    """How a text is continued.

    Raises:
        ConfigError: A number lies outside its range, or a stop is no text.
    """

    max_tokens: int = within(1, MOST_TOKENS, default=64)
    """Most tokens to write for a prompt."""
    temperature: float = within(0, 1000, default=1.0)
    """The logits are divided by it; 0 = greedy: always the most probable token."""
    top_k: int | None = within(1, MOST_TOKENS, default=None)
    """Draw from the most probable tokens alone, this many; none = from all."""
    top_p: float = within(0, 1, above=True, default=1.0)
    """Draw from the smallest set of tokens with this probability (nucleus sampling)."""
    seed: int = within(0, MOST_SEED, default=0)
    """Seed of the draws; the same seed and prompt give the same text."""
    stop: list[str] = field(default_factory=list)
    """Texts that end the writing; they are left out."""

    def __post_init__(self) -> None:
        """Refuse what no text can be written by."""
        check_values(self)
        if not all(self.stop):
            raise ConfigError("stop must be texts that can appear, got an empty one; remove it")


@torch.no_grad()
def continue_ids(
    module: Pretrainer,
    prompts: Sequence[Sequence[int]],
    choose: Callable[[Tensor, Tensor], Tensor],
    goes_on: Callable[[int, int], bool],
    *,
    use_cache: bool = True,
) -> None:
    """Write tokens behind prompts until none of them goes on.

    Args:
        module: A causal encoder and its head, in eval mode.
        prompts: Token ids of each, at least one.
        choose: Logits (N, V) and the numbers of the prompts that they are for, int64 (N,) -> ids
            int64 (N,).
        goes_on: Takes the number of a prompt and its next token; whether more are wanted.
        use_cache: Whether keys and values are kept; without, and in blocks that have none, each
            step reads the whole text again.
    """
    device, length = next(module.parameters()).device, max(map(len, prompts))
    # Padded on the left, so that the next tokens of all stand in one column.
    padded = [[0] * (length - len(prompt)) + list(prompt) for prompt in prompts]
    counts = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    ids, numbers = torch.tensor(padded, device=device), torch.arange(len(prompts))
    mask = torch.arange(length, device=device) >= length - counts  # (B, T)
    config = module.encoder.config
    has_cache = use_cache and config.block == "transformer"
    cache = Cache(config.num_hidden_layers) if has_cache else None
    while len(numbers):
        read = cache.length if cache else 0
        batch = {
            "input_ids": ids[:, read:],
            "attention_mask": mask,
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, read:],
        }
        hidden = module.encoder(batch, cache=cache).last_hidden_state[:, -1]
        chosen = choose(module.head(hidden), numbers)
        pairs = zip(numbers.tolist(), chosen.tolist(), strict=True)
        rows = torch.tensor([goes_on(*pair) for pair in pairs]).nonzero()[:, 0]
        there = rows.to(device)
        if cache and len(rows) < len(numbers):
            cache.select(there)
        ids = torch.cat([ids[there], chosen.to(device)[there, None]], dim=1)
        mask = torch.cat([mask[there], mask.new_ones(len(rows), 1)], dim=1)
        numbers = numbers[rows]


class _Continuation:
    """The text behind one prompt, as it grows."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], config: GenerationConfig, reach: int
    ) -> None:
        self.tokenizer, self.prompt, self.config, self.reach = tokenizer, prompt, config, reach
        self.ids: list[int] = []
        self.text, self.ended = "", ""
        self._before = tokenizer.decode(prompt)
        key = keyed_seed(config.seed, "generate", *prompt)
        self.draws = uniform(random_bits(key, np.arange(config.max_tokens)))
        self._shown = 0

    def add(self, token: int) -> bool:
        """Write a token; returns whether another one is wanted."""
        if token == self.tokenizer.sep_token_id:
            self.ended = "end"
            return False
        self.ids.append(token)
        # With the prompt, whose last token decides what stands between it and the first new one.
        whole = self.tokenizer.decode([*self.prompt, *self.ids])
        is_longer = whole.startswith(self._before)
        self.text = whole[len(self._before) :] if is_longer else self.tokenizer.decode(self.ids)
        ends = [place for stop in self.config.stop if (place := self.text.find(stop)) >= 0]
        if ends:
            self.text, self.ended = self.text[: min(ends)], "stop"
        elif len(self.ids) == self.config.max_tokens:
            self.ended = "max_tokens"
        elif len(self.prompt) + len(self.ids) > self.reach:
            self.ended = "max_length"
        return not self.ended

    def piece(self) -> str:
        """What can be shown since the last call: nothing that a later token could change."""
        end = len(self.text)
        if not self.ended:
            longest = max(map(len, self.config.stop), default=1)
            end = min(max(self.text.rfind(" "), end - HELD_BACK), end - longest + 1)
        piece = self.text[self._shown : max(end, self._shown)]
        self._shown += len(piece)
        return piece


class TextGenerator:
    """A causal language model that continues texts; `finetune.load` makes one from a run."""

    def __init__(
        self, module: Pretrainer, tokenizer: Tokenizer, *, max_length: int, batch_size: int = 32
    ) -> None:
        """Keep the parts.

        Args:
            module: Causal encoder and language-model head, on their device and in eval mode.
            tokenizer: Its tokenizer.
            max_length: Tokens that the encoder can read.
            batch_size: Prompts in a batch.
        """
        self.module, self.tokenizer = module, tokenizer
        self.max_length, self.batch_size = max_length, batch_size
        self.ranks = ALONE
        """Processes that divide each window of rows, which all of them get."""
        # What no label ever was; the end of a document is one.
        banned = sorted(tokenizer.special_ids - {tokenizer.sep_token_id})
        self._banned = torch.tensor(banned, dtype=torch.int64)

    def generate(
        self,
        prompts: Any,
        *,
        max_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Continue one text or many.

        >>> import finetune
        >>> model = finetune.load("runs/causal")
        >>> (row,) = model.generate("the cat", max_tokens=5, temperature=0)
        >>> sorted(row)
        ['ended', 'id', 'ids', 'prompt', 'text']

        Args:
            prompts: A text, a dictionary with `text` and, if it has one, `id`; or many of these: a
                list, a DataFrame, a `datasets.Dataset`.
            max_tokens: Most tokens to write for a prompt.
            temperature: The logits are divided by it; 0 for the most probable token each time.
            top_k: Draw from the most probable tokens alone, this many.
            top_p: Draw from the smallest set of tokens with this probability.
            seed: Seed of the draws; the same seed and prompt give the same text in any batch.
            stop: Texts that end the writing; they are left out.
            on_text: Is given each new piece of the text, of a single prompt.

        Returns:
            A row for each prompt: its `id` or number, `prompt`, the `text` behind it, the `ids` of
            its tokens, and what `ended` it: end (of the document), stop, max_tokens or max_length.

        Raises:
            ConfigError: A setting lies outside its range; or pieces are wanted of many prompts.
            DataError: A prompt is empty, or longer than the encoder can read.
        """
        config = GenerationConfig(max_tokens, temperature, top_k, top_p, seed, list(stop))
        rows = [(f"prompts[{number}]", row) for number, row in enumerate(rows_of(prompts, "texts"))]
        if on_text is not None and len(rows) != 1:
            raise ConfigError(f"on_text is for one prompt, got {len(rows)}; leave it out")
        return list(self.stream(rows, config, on_text=on_text))

    def predict(self, texts: Any) -> list[dict[str, Any]]:
        """Continue texts by the most probable tokens; it has the name and inputs of `Predictor`'s.

        Args:
            texts: As the prompts of `generate`.

        Returns:
            As `generate`.
        """
        return self.generate(texts, temperature=0.0)

    def stream(
        self,
        rows: Rows,
        config: GenerationConfig | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Continue rows in order, holding only a bounded number of them at a time.

        Args:
            rows: Place for messages, and fields; `text` is read, and `id` where there is one.
            config: How; by default by the most probable tokens.
            on_text: Is given each new piece of text.

        Yields:
            As the rows of `generate`.

        Raises:
            DataError: A row has no text, or one that is empty or too long.
        """
        config = config or GenerationConfig(temperature=0.0)
        read = ((where, row, number) for number, (where, row) in enumerate(rows))
        while window := list(islice(read, WINDOW_BATCHES * self.batch_size)):
            texts = [_text(where, row) for where, row, _ in window]
            prompts = self._encoded([where for where, _, _ in window], texts)
            for (_, row, number), text, made in zip(
                window, texts, self._continued(prompts, config, on_text), strict=True
            ):
                yield {"id": row.get("id", number), "prompt": text, **made}

    def _encoded(self, places: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        prefix, encoded = text_prefix(self.tokenizer), []
        for where, ids in zip(places, self.tokenizer.encode_ids(texts), strict=True):
            if not ids:
                raise DataError(f"{where}: expected a text to continue, got none; write a word")
            if len(prefix) + len(ids) > self.max_length:
                raise DataError(
                    f"{where}: the prompt has {len(prefix) + len(ids):,} tokens, but the encoder "
                    f"reads {self.max_length:,}; shorten it"
                )
            encoded.append([*prefix, *ids])
        return encoded

    def _continued(
        self,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig,
        on_text: Callable[[str], None] | None,
    ) -> list[dict[str, Any]]:
        order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
        batches = [
            order[start:][: self.batch_size] for start in range(0, len(order), self.batch_size)
        ]
        own = [rows for rows in self.ranks.part(batches) if len(rows)]
        made = self.ranks.merged(
            [self._batch([prompts[row] for row in rows], config, on_text) for rows in own]
        )
        results: list[dict[str, Any]] = [{} for _ in prompts]
        for rows, batch in zip(batches, made, strict=True):
            for row, one in zip(rows.tolist(), batch, strict=True):
                results[row] = one
        return results

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig,
        on_text: Callable[[str], None] | None = None,
        *,
        use_cache: bool = True,
    ) -> list[dict[str, Any]]:
        texts = [
            _Continuation(self.tokenizer, prompt, config, self.max_length) for prompt in prompts
        ]

        def goes_on(number: int, token: int) -> bool:
            more = texts[number].add(token)
            if on_text is not None:
                on_text(texts[number].piece())
            return more

        choose = partial(self._choose, texts, config)
        continue_ids(self.module, prompts, choose, goes_on, use_cache=use_cache)
        return [{"text": one.text, "ids": one.ids, "ended": one.ended} for one in texts]

    def _choose(
        self,
        texts: Sequence[_Continuation],
        config: GenerationConfig,
        logits: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        # Rows of the table behind the vocabulary, which round it up, name nothing.
        logits = logits.float().cpu()[:, : self.tokenizer.vocab_size]
        logits = logits.index_fill(1, self._banned, -torch.inf)
        if config.temperature == 0:
            return greedy(logits)
        draws = [texts[number].draws[len(texts[number].ids)] for number in numbers.tolist()]
        return sample(
            logits,
            torch.tensor(draws),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
        )


def text_prefix(tokenizer: Tokenizer) -> list[int]:
    """The special tokens before a text; none where the unknown token would stand for them."""
    prefix = tokenizer.template(pair=False).prefix
    borrowed = tokenizer.special_tokens["unk_token"] in ROLES["unk_token"][:2]
    return [one for one in prefix if not (borrowed and one == tokenizer.unk_token_id)]


def _text(where: str, row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise DataError(
            f"{where}: expected the field 'text' with a text in it, got "
            f"{', '.join(map(str, row)) or 'no field'}"
        )
    return text


def load_generator(run: str | Path, *, batch_size: int | None = None) -> TextGenerator:
    """Load the best checkpoint of a causal pretraining run, to continue texts.

    Args:
        run: RUN, or a checkpoint with a language-model head.
        batch_size: Prompts in a batch; left out, 32.

    Raises:
        CheckpointError: There is no checkpoint, or its head is another one.
        ConfigError: The encoder is not causal.
    """
    module, tokenizer = load_language_model(Path(run))
    config = module.encoder.config
    if not config.causal:
        raise ConfigError(
            f"{run}: expected a causal encoder, which predicts the next token, got one that reads "
            "in both directions; it fills in [MASK] by finetune predict, and finetune pretrain "
            "--causal trains one that writes"
        )
    length = longest_context(Path(run), config)
    return TextGenerator(module, tokenizer, max_length=length, batch_size=batch_size or 32)
