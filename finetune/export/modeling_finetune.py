"""An encoder of `finetune` and its heads, as `transformers` loads them with trust_remote_code=True.

This file is copied into exported folders, for encoders that no class of `transformers` computes. It
needs torch and transformers alone. Parameters have the names that they have in `finetune`. Sizes in
comments: B batch, T tokens, D hidden size, H heads, K head width, C classes or choices, V words.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
GATED_ACTIVATIONS = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}


class FinetuneConfig(PretrainedConfig):
    """Sizes and variants of the encoder, and how a classification head pools."""

    model_type = "finetune"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    embedding_dropout_prob: float | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    attention_score: str = "scaled_dot"
    position: str = "learned"
    rotary_theta: float = 10000.0
    norm_position: str = "post"
    norm: str = "layer"
    residual: bool = True
    first_attention_norm: bool = True
    embedding_norm: bool = True
    lm_transform: bool = True
    causal: bool = False
    local_attention: int = 0
    global_every: int = 3
    local_rotary_theta: float | None = None
    embedding_size: int | None = None
    tie_word_embeddings: bool = True
    pooling: str = "cls"
    classifier_dropout: float | None = None


def rotate(inputs: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn queries or keys (B, H, T, K) by their rotary positions; i makes a pair with i + K/2."""
    first, second = inputs.chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(inputs.dtype)


def angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Positions (..., T) over growing wavelengths, float32 (..., T, width / 2)."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions.unsqueeze(-1).float() * theta**-exponents


def make_norm(config: FinetuneConfig, size: int) -> nn.Module:
    """LayerNorm or RMSNorm of vectors of this size."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(size, eps=config.layer_norm_eps)


class Embeddings(nn.Module):
    """Word, position and segment embeddings, normalized; projected to D where they are narrower."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the tables that the config asks for."""
        super().__init__()
        self.config = config
        size = config.embedding_size or config.hidden_size
        self.word_embeddings: nn.Module = nn.Embedding(config.vocab_size, size, config.pad_token_id)
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.norm = make_norm(config, size) if config.embedding_norm else nn.Identity()
        rate = config.embedding_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        narrow = size != config.hidden_size
        self.projection = nn.Linear(size, config.hidden_size) if narrow else nn.Identity()

    def forward(self, input_ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Token ids, segments and positions, int64 (B, T) or (1, T), -> (B, T, D)."""
        embedded = self.word_embeddings(input_ids)
        if self.config.type_vocab_size:
            segments = torch.zeros_like(input_ids) if segments is None else segments
            embedded = embedded + self.token_type_embeddings(segments)
        if self.config.position == "learned":
            embedded = embedded + self.position_embeddings(positions)
        if self.config.position == "sinusoidal":
            turns = angles(positions, embedded.shape[-1], 10000.0)
            waves = torch.stack((turns.sin(), turns.cos()), dim=-1).flatten(-2)
            amplitude = self.config.initializer_range * 2**0.5
            embedded = embedded + (waves * amplitude).to(embedded.dtype)
        projected: Tensor = self.projection(self.dropout(self.norm(embedded)))
        return projected


class Score(nn.Module):
    """How well queries fit keys: scaled_dot, dot, bilinear or additive."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the weights of the score, where it has some."""
        super().__init__()
        self.kind = config.attention_score
        heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.scale = width**-0.5 if self.kind == "scaled_dot" else 1.0
        square = (heads, width, width)
        if self.kind == "bilinear":
            self.weight = nn.Parameter(torch.zeros(square))
        if self.kind == "additive":
            self.query_weight = nn.Parameter(torch.zeros(square))
            self.key_weight = nn.Parameter(torch.zeros(square))
            self.vector = nn.Parameter(torch.zeros(heads, width, 1))

    def fold(self, query: Tensor) -> Tensor:
        """Change the queries so that a product with the keys is left to do."""
        return query @ self.weight if self.kind == "bilinear" else query

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare all queries with all keys, 2 x (B, H, T, K) -> (B, H, T, T)."""
        if self.kind != "additive":
            return (self.fold(query) * self.scale) @ key.transpose(-2, -1)
        from_query = query @ self.query_weight.transpose(-2, -1)
        from_key = key @ self.key_weight.transpose(-2, -1)
        hidden = (from_query.unsqueeze(3) + from_key.unsqueeze(2)).tanh()  # (B, H, T, T, K)
        return (hidden @ self.vector.unsqueeze(1)).squeeze(-1)


class RelativePositions(nn.Module):
    """Transformer-XL's positions: (q + u)·k and (q + v)·(W R), R the sinusoids of distances."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make W, u and v."""
        super().__init__()
        size, self.num_heads = config.hidden_size, config.num_attention_heads
        width = size // self.num_heads
        self.scale = 1.0 if config.attention_score == "dot" else width**-0.5
        self.key = nn.Linear(size, size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(size))
        self.position_bias = nn.Parameter(torch.zeros(size))

    def content_query(self, query: Tensor) -> Tensor:
        """The queries that are compared with the keys, (B, H, T, K)."""
        return query + self.content_bias.view(self.num_heads, 1, -1)

    def forward(self, query: Tensor) -> Tensor:
        """What is added to the logits, (B, H, T, K) -> (B, H, T, T)."""
        length = query.shape[2]
        distances = torch.arange(length - 1, -length - 1, -1, device=query.device)
        turns = angles(distances, self.key.in_features, 10000.0)
        table = torch.cat([turns.sin(), turns.cos()], dim=-1).to(query.dtype)
        key = self.key(table).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
        query = (query + self.position_bias.view(self.num_heads, 1, -1)) * self.scale
        flat = (query @ key.transpose(-2, -1)).flatten(-2)  # columns are distances
        width = 2 * length - 1  # read in shorter rows, they are keys
        rows = flat[..., length - 1 : length - 1 + length * width]
        by_key: Tensor = rows.reshape(*query.shape[:2], length, width)[..., :length]
        return by_key


class SelfAttention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the four projections and the score."""
        super().__init__()
        self.num_heads = config.num_attention_heads
        size = config.hidden_size
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.value, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.score = Score(config)
        self.relative = RelativePositions(config) if config.position == "relative" else None
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, hidden: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor] | None, weigh: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Mix the values, (B, T, D) -> (B, T, D), and the weights (B, H, T, T) where wanted."""
        heads = (self.num_heads, -1)
        query, key, value = (
            layer(hidden).unflatten(-1, heads).transpose(1, 2)  # (B, H, T, K)
            for layer in (self.query, self.key, self.value)
        )
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        if self.relative is not None:
            by_position = self.relative(query)
            bias = by_position if bias is None else by_position + bias
            query = self.relative.content_query(query)
        weights = None
        if weigh or self.score.kind == "additive":
            logits = self.score(query, key)
            weights = (logits if bias is None else logits + bias).softmax(dim=-1)
            mixed = self.dropout(weights) @ value
        else:
            mixed = F.scaled_dot_product_attention(
                self.score.fold(query),
                key,
                value,
                attn_mask=bias,
                dropout_p=self.dropout.p if self.training else 0.0,
                scale=self.score.scale,
            )
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


class FeedForward(nn.Module):
    """Two layers with an activation between them, which may open and close a gate."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the layers D -> F (2 F with a gate) -> D."""
        super().__init__()
        self.gated = config.hidden_act in GATED_ACTIVATIONS
        width = config.intermediate_size
        self.intermediate = nn.Linear(config.hidden_size, 2 * width if self.gated else width)
        self.activation = activation(config)
        self.output = nn.Linear(width, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the layers to each token, (B, T, D) -> (B, T, D)."""
        inner = self.intermediate(hidden)
        if self.gated:
            gate, values = inner.chunk(2, dim=-1)
            outputs: Tensor = self.output(self.activation(gate) * values)
            return outputs
        plain: Tensor = self.output(self.activation(inner))
        return plain


def activation(config: FinetuneConfig) -> Any:
    """The function behind the name of a plain or a gated activation."""
    return ACTIVATIONS[GATED_ACTIVATIONS.get(config.hidden_act, config.hidden_act)]


class Block(nn.Module):
    """Attention and feed-forward, each with its residual and its norm: before, after or inside."""

    def __init__(self, config: FinetuneConfig, first: bool) -> None:
        """Make the sublayers; `first` says whether this is the encoder's first block."""
        super().__init__()
        norm = partial(make_norm, config, config.hidden_size)
        self.norm_position, self.residual = config.norm_position, config.residual
        self.attention = SelfAttention(config)
        unnormalized = first and not config.first_attention_norm
        self.attention_norm = nn.Identity() if unnormalized else norm()
        self.feedforward = FeedForward(config)
        self.feedforward_norm = norm()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, *context: Any) -> tuple[Tensor, Tensor | None]:
        """Update the states (B, T, D); the context is that of `SelfAttention`."""
        pre = self.norm_position == "pre"
        inputs = self.attention_norm(hidden) if pre else hidden
        attended, weights = self.attention(inputs, *context)
        hidden = self._add(hidden, attended, self.attention_norm)
        inputs = self.feedforward_norm(hidden) if pre else hidden
        return self._add(hidden, self.feedforward(inputs), self.feedforward_norm), weights

    def _add(self, hidden: Tensor, changed: Tensor, norm: nn.Module) -> Tensor:
        changed = self.dropout(norm(changed) if self.norm_position == "output" else changed)
        joined = hidden + changed if self.residual else changed
        return norm(joined) if self.norm_position == "post" else joined


class FinetunePreTrainedModel(PreTrainedModel):
    """What all models share: the config, and how new weights start."""

    config_class = FinetuneConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm1d):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.LayerNorm | nn.BatchNorm1d):
            nn.init.zeros_(module.bias)


class FinetuneModel(FinetunePreTrainedModel):
    """The encoder: token ids to hidden states."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make embeddings, blocks and, unless these end with a norm, a final one."""
        super().__init__(config)
        self.embeddings = Embeddings(config)
        count = config.num_hidden_layers
        self.blocks = nn.ModuleList(Block(config, number == 0) for number in range(count))
        normalized = config.norm_position == "post"
        self.final_norm = nn.Identity() if normalized else make_norm(config, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of the words, (V, E)."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace it."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """Encode a batch.

        Args:
            input_ids: int64 (B, T).
            attention_mask: 1 where there is a token, 0 for padding, (B, T).
            token_type_ids: Segment of each token, int64 (B, T).
            position_ids: int64 (B, T); 0 .. T - 1 if not given.
            output_hidden_states: Whether the states of all layers are wanted.
            output_attentions: Whether the attention weights are wanted.
            return_dict: Whether the answer has names; otherwise it is a tuple.
        """
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).unsqueeze(0)
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        states, attentions = [hidden], []
        for number, block in enumerate(self.blocks):
            local = bool(self.config.local_attention) and number % self.config.global_every != 0
            bias = self._bias(hidden, attention_mask, self.config.local_attention if local else 0)
            if self.config.position == "alibi":
                linear = self._alibi(hidden)
                bias = linear if bias is None else bias + linear
            rotary = self._rotary(position_ids, local)
            hidden, weights = block(hidden, bias, rotary, bool(output_attentions))
            hidden = self.final_norm(hidden) if number == len(self.blocks) - 1 else hidden
            states.append(hidden)
            attentions.append(weights)
        output = BaseModelOutput(
            last_hidden_state=hidden,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )
        return output.to_tuple() if return_dict is False else output

    def _alibi(self, hidden: Tensor) -> Tensor:
        """Linear biases by distance, (1, H, T, T)."""
        heads = self.config.num_attention_heads
        power = 2 ** (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        slopes += [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
        places = torch.arange(hidden.shape[1], device=hidden.device)
        distances = (places[:, None] - places).abs()
        steep = torch.tensor(slopes[:heads], device=hidden.device)[:, None, None]
        return (-steep * distances).unsqueeze(0).to(hidden.dtype)

    def _rotary(self, positions: Tensor, local: bool) -> tuple[Tensor, Tensor] | None:
        if self.config.position != "rotary":
            return None
        own = self.config.local_rotary_theta if local else None
        width = self.config.hidden_size // self.config.num_attention_heads
        turns = angles(positions, width, self.config.rotary_theta if own is None else own)
        return turns.cos().unsqueeze(1), turns.sin().unsqueeze(1)  # (1 or B, 1, T, K/2)

    def _bias(self, hidden: Tensor, attention_mask: Tensor | None, window: int) -> Tensor | None:
        """What is added to the logits: minus infinity where a token may not look."""
        causal, device = self.config.causal, hidden.device
        if attention_mask is None and not causal and not window:
            return None
        length = hidden.shape[1]
        mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device=device)
        if attention_mask is not None:
            mask = attention_mask[:, None, None].bool()
        if causal:
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=device).tril()
        if window:
            places = torch.arange(length, device=device)
            mask = mask & ((places[:, None] - places).abs() <= window)
        mask = mask | ~mask.any(dim=-1, keepdim=True)  # no softmax of nothing
        bias = torch.zeros(mask.shape, dtype=hidden.dtype, device=device)
        return bias.masked_fill_(~mask, -torch.inf)


class LanguageModelHead(nn.Module):
    """A transform D -> E, then a product with the word embeddings."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the transform and the output layer."""
        super().__init__()
        size = config.embedding_size or config.hidden_size
        self.transforms = config.lm_transform
        if self.transforms:
            self.dense = nn.Linear(config.hidden_size, size)
            self.activation = activation(config)
            self.norm = make_norm(config, size)
        self.decoder = nn.Linear(size, config.vocab_size, bias=self.transforms)

    def forward(self, hidden: Tensor) -> Tensor:
        """Score all words, (B, T, D) -> (B, T, V)."""
        if self.transforms:
            hidden = self.norm(self.activation(self.dense(hidden)))
        logits: Tensor = self.decoder(hidden)
        return logits


class FinetuneForMaskedLM(FinetunePreTrainedModel):
    """The encoder with its masked-language-model head."""

    _tied_weights_keys = {"head.decoder.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: FinetuneConfig) -> None:
        """Make encoder and head."""
        super().__init__(config)
        self.encoder = FinetuneModel(config)
        self.head = LanguageModelHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The output layer, (V, E)."""
        return self.head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace it."""
        self.head.decoder = new_embeddings

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **more: Any) -> Any:
        """Score the words of each position; `labels` int64 (B, T), -100 where there is none."""
        output = self.encoder(input_ids, **{**more, "return_dict": True})
        logits = self.head(output.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return _answer(MaskedLMOutput, output, more, loss=loss, logits=logits)


def last_place(mask: Tensor) -> Tensor:
    """The last attended token, bool (B, T) -> int64 (B,); 0 where there is none."""
    return (torch.arange(mask.shape[1], device=mask.device) * mask).amax(dim=1)


def pool(pooling: str, causal: bool, hidden: Tensor, mask: Tensor) -> Tensor:
    """One vector a text, (B, T, D) and bool (B, T) -> (B, D), or (B, 3D) of `concat`."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), last_place(mask)]
    attended = mask.unsqueeze(-1)
    if pooling == "mean":
        return (hidden * attended).sum(dim=1) / attended.sum(dim=1).clamp(min=1)
    if pooling == "max":
        largest = hidden.masked_fill(~attended, torch.finfo(hidden.dtype).min).amax(dim=1)
        return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)
    three = ("last" if causal else "cls", "max", "mean")
    return torch.cat([pool(name, causal, hidden, mask) for name in three], dim=-1)


def attended(query: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """Average by the softmax of the products with a query, (B, T, D) and bool (B, T) -> (B, D)."""
    scores: Tensor = query(hidden)  # (B, T, 1)
    scores = scores.masked_fill(~mask.unsqueeze(-1), torch.finfo(scores.dtype).min)
    return (scores.softmax(dim=1) * mask.unsqueeze(-1) * hidden).sum(dim=1)


def text_segments(input_ids: Tensor, mask: Tensor) -> Tensor:
    """1 in the first text of a pair, 2 in the second, 0 elsewhere; int64 and bool (B, T) -> (B, T).

    The token that ends a sequence separates its texts; the first token belongs to none.
    """
    separator = input_ids.gather(1, last_place(mask).unsqueeze(1))  # (B, 1)
    is_separator = mask & (input_ids == separator)
    segments = torch.where(is_separator.cumsum(dim=1) > 0, 2, 1)
    return segments * (mask & ~is_separator & (mask.cumsum(dim=1) > 1))


class AlignPooling(nn.Module):
    """Each token of a text beside the tokens of the other that it fits, compared by one layer."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the comparing layer and the weight of an equal token."""
        super().__init__()
        size, self.eps = config.hidden_size, config.layer_norm_eps
        self.same_token = nn.Parameter(torch.tensor(4.0))
        self.compare = nn.Linear(2 * size + 2, size)
        rate = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)

    def forward(self, hidden: Tensor, input_ids: Tensor, segments: Tensor) -> Tensor:
        """Hidden states (B, T, D), ids and segments int64 (B, T) -> (B, 4D)."""
        states = F.layer_norm(hidden, hidden.shape[-1:], eps=self.eps)
        others = segments.unsqueeze(2) + segments.unsqueeze(1) == 3  # (B, T, T): of texts 1 and 2
        same = others & (input_ids.unsqueeze(2) == input_ids.unsqueeze(1))
        scale = states.shape[-1] ** 0.5
        scores = states @ states.transpose(1, 2) / scale + self.same_token * same
        scores = scores.masked_fill(~others, torch.finfo(scores.dtype).min)
        aligned = (scores.softmax(dim=-1) * others) @ states
        product = states * aligned
        numbers = [
            product.sum(dim=-1, keepdim=True) / scale,
            scale * same.any(dim=-1, keepdim=True),
        ]
        features = [(states - aligned).abs(), product, *numbers]
        compared = F.relu(self.compare(self.dropout(torch.cat(features, dim=-1))))
        texts = (segments == 1, segments == 2)
        pooled = [pool(how, False, compared, text) for text in texts for how in ("mean", "max")]
        return torch.cat(pooled, dim=-1)


class PooledHead(nn.Module):
    """One vector a text, then its output layers."""

    def __init__(self, config: FinetuneConfig, outputs: int) -> None:
        """Make the layers that belong to the pooling."""
        super().__init__()
        self.pooling, self.causal = config.pooling, config.causal
        size, rate = config.hidden_size, config.classifier_dropout
        dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        layers = [dropout, nn.Linear(size, outputs)]
        if self.pooling == "cls":
            layers = [nn.Linear(size, size), nn.Tanh(), *layers]
        if self.pooling in ("attention", "segments-attention"):
            query = nn.ModuleDict({"query": nn.Linear(size, 1, bias=False)})
            alone = self.pooling == "attention"
            self.pool: nn.Module = query if alone else nn.ModuleDict({"each": query})
        if self.pooling == "align":
            self.pool = AlignPooling(config)
        if self.pooling in ("segments", "segments-attention", "align"):
            norm = nn.LayerNorm(4 * size, eps=config.layer_norm_eps)
            layers = [norm, dropout, nn.Linear(4 * size, size), nn.ReLU(), *layers]
        if self.pooling == "concat":
            layers = [nn.BatchNorm1d(3 * size), dropout, nn.Linear(3 * size, 50), nn.ReLU()]
            layers += [nn.BatchNorm1d(50), nn.Dropout(0.1), nn.Linear(50, outputs)]
        self.layers = nn.Sequential(*layers)

    def forward(self, hidden: Tensor, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Hidden states (B, T, D), ids and mask (B, T) -> (B, C)."""
        if attention_mask is None:
            attention_mask = torch.ones(hidden.shape[:2], device=hidden.device)
        outputs: Tensor = self.layers(self._pooled(hidden, input_ids, attention_mask.bool()))
        return outputs

    def _pooled(self, hidden: Tensor, input_ids: Tensor, mask: Tensor) -> Tensor:
        """One vector a text or pair, (B, D), or (B, 3D) of `concat` and (B, 4D) of a comparison."""
        if self.pooling == "attention":
            return attended(self.pool.get_submodule("query"), hidden, mask)
        if self.pooling in ("segments", "segments-attention"):
            segments = text_segments(input_ids, mask)
            texts = (segments == 1, segments == 2)
            if self.pooling == "segments":
                u, v = (pool("mean", self.causal, hidden, text) for text in texts)
            else:
                query = self.pool.get_submodule("each.query")
                u, v = (attended(query, hidden, text) for text in texts)
            return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
        if self.pooling == "align":
            compared: Tensor = self.pool(hidden, input_ids, text_segments(input_ids, mask))
            return compared
        return pool(self.pooling, self.causal, hidden, mask)


class FinetuneForSequenceClassification(FinetunePreTrainedModel):
    """The encoder with a head for one class, several classes or a number a text."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make encoder and head."""
        super().__init__(config)
        self.num_labels = int(config.num_labels or 2)
        self.encoder = FinetuneModel(config)
        self.head = PooledHead(config, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Score the classes (B, C); `labels` as the config's `problem_type` wants them."""
        output = self.encoder(input_ids, attention_mask, **{**more, "return_dict": True})
        logits = self.head(output.last_hidden_state, input_ids, attention_mask)
        loss = None if labels is None else self._loss(logits, labels)
        return _answer(SequenceClassifierOutput, output, more, loss=loss, logits=logits)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        problem = self.config.problem_type
        if problem == "regression" or (problem is None and self.num_labels == 1):
            return F.mse_loss(logits.squeeze(-1), labels.float().view(len(logits), -1).squeeze(-1))
        if problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.float())
        return F.cross_entropy(logits, labels)


class SpanHead(nn.Module):
    """First and last token of an answer; the first token stands for no answer."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make the output layer."""
        super().__init__()
        self.causal = config.causal
        self.dropout = nn.Dropout(config.classifier_dropout or 0.0)
        self.layer = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Hidden states (B, T, D) -> logits (B, T, 2), the lowest number at padding."""
        logits: Tensor = self.layer(self.dropout(hidden))
        mask = torch.ones(logits.shape[:2], device=logits.device, dtype=torch.bool)
        mask = mask if attention_mask is None else attention_mask.bool()
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(~mask.unsqueeze(-1), lowest)
        if not self.causal:
            return logits
        # The first token sees no other: the last one, which has seen all, is scored in its place.
        rows, last = torch.arange(len(logits), device=logits.device), last_place(mask)
        place = torch.arange(logits.shape[1], device=logits.device)
        moved = logits.masked_fill((place == last[:, None]).unsqueeze(-1), lowest)
        return torch.where(place[None, :, None] == 0, logits[rows, last][:, None], moved)


class FinetuneForQuestionAnswering(FinetunePreTrainedModel):
    """The encoder with a head for the span of an answer."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make encoder and head."""
        super().__init__(config)
        self.encoder = FinetuneModel(config)
        self.head = SpanHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Score each token as the first and as the last one of the answer, 2 x (B, T)."""
        output = self.encoder(input_ids, attention_mask, **{**more, "return_dict": True})
        starts, ends = self.head(output.last_hidden_state, attention_mask).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            wanted = ((starts, start_positions), (ends, end_positions))
            loss = sum(F.cross_entropy(logits, right.view(-1)) for logits, right in wanted) / 2
        made = {"loss": loss, "start_logits": starts, "end_logits": ends}
        return _answer(QuestionAnsweringModelOutput, output, more, **made)


class FinetuneForMultipleChoice(FinetunePreTrainedModel):
    """The encoder with a head that scores each option of a question."""

    def __init__(self, config: FinetuneConfig) -> None:
        """Make encoder and head."""
        super().__init__(config)
        self.encoder = FinetuneModel(config)
        self.head = PooledHead(config, 1)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Score the options (B, C); what goes in is (B, C, T)."""
        flat = [
            None if given is None else given.flatten(0, 1)
            for given in (input_ids, attention_mask, token_type_ids)
        ]
        output = self.encoder(*flat, **{**more, "return_dict": True})
        scores = self.head(output.last_hidden_state, *flat[:2]).view(input_ids.shape[:2])
        loss = None if labels is None else F.cross_entropy(scores, labels)
        return _answer(MultipleChoiceModelOutput, output, more, loss=loss, logits=scores)


def _answer(kind: Any, output: Any, asked: dict[str, Any], **made: Any) -> Any:
    """The answer of a model with a head, named or as a tuple."""
    answer = kind(hidden_states=output.hidden_states, attentions=output.attentions, **made)
    return answer.to_tuple() if asked.get("return_dict") is False else answer
