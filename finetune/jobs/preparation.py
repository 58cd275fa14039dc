"""Everything that a fine-tuning run needs, read and checked before its folder is touched."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from statistics import fmean
from typing import Any

from finetune.checkpoints.folder import Checkpoint, find_tokenizer
from finetune.checkpoints.hf import exports_as
from finetune.checkpoints.hub import find_checkpoint, head_left_out, origin
from finetune.checkpoints.stored import check_vocabulary
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import MaskedLM, PooledHead, Regression, Seq2Seq
from finetune.jobs.baselines import Scores, scored
from finetune.jobs.caching import Choice, choose, row_sets, sizes
from finetune.jobs.data_summary import show_data
from finetune.jobs.inputs import (
    encoder_inputs,
    example_inputs,
    other_shape,
    tokenizer_input,
    with_shape,
)
from finetune.jobs.pretraining import check_length, with_dropout
from finetune.jobs.scoring import task_data
from finetune.jobs.word_vectors import check_vectors, start_from_vectors, vector_input
from finetune.ranges import not_among
from finetune.runs.folder import say
from finetune.runs.inputs import Inputs
from finetune.runs.settings import FitRun
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.loop.finetuner import FineTuner, Scored
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import check_training
from finetune.training.prefix.cache import RowSet
from finetune.training.prefix.store import token_bytes
from finetune.training.randomness import seed_weights
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Pace
from finetune.training.unfreezing.plan_table import Row, plan_rows, plan_table
from finetune.training.unfreezing.policies import group_rates_with, make_plan, owned_parameters
from finetune.training.unfreezing.rates import RatePlan


@dataclasses.dataclass(frozen=True)
class Preparation:
    """All that a run needs, read and checked; nothing is written yet."""

    run: FitRun
    module: FineTuner
    tokenizer: Tokenizer
    data: TaskData
    trivial: Scores
    """Metrics of the trivial baseline on the validation splits."""
    plan: list[Row]
    """The phases of unfreezing."""
    sets: dict[str, RowSet]
    choice: Choice
    """What of the frozen layers' hidden states is cached."""
    start: Checkpoint | None
    """Where the encoder's weights are from; None for random ones."""
    unused: str
    """Which settings of an `encoder` section have no effect beside a checkpoint; "" if none."""

    def show(self) -> None:
        """Print where the encoder is from, what the splits contain, and the plan."""
        if self.start is not None:
            lines = origin(self.start), head_left_out(self.start), self.unused
            for line in filter(None, lines):
                say(line)
        elif line := self.module.encoder.config.without_effect():
            say(line)
        show_data(self.data)
        # A plan that trains everything all the time is shown only to one who asks for the plan.
        if self.run.dry_run or len(self.plan) > 1 or self.plan[0]["boundary"] > 0:
            width, mixes = self.module.encoder.config.hidden_size, self.module.head.all_layers
            size = token_bytes(width, self.run.caching.cache_precision)
            boundaries = [row["boundary"] for row in self.plan]
            cached = sizes(self.choice, size, boundaries, all_layers=mixes)
            say(plan_table(self.plan, self.run.unfreezing.policy, cached))
        if self.run.dry_run:
            family = None if self.start is None else self.start.source.get("family")
            config = self.module.encoder.config
            say(exports_as(config, self.head, first=family, reasons=True))

    @property
    def head(self) -> dict[str, Any]:
        """What a checkpoint says of the head."""
        head = self.module.head
        return {"kind": head.kind, **(head.settings() or dataclasses.asdict(self.run.head))}

    def inputs(self) -> Inputs:
        """What the run reads, by content; a resumed run must read the same."""
        task, run = self.data.task, self.run
        splits = [self.data.train_split, *task.validation_splits]
        splits += task.test_splits if run.test else ()
        if self.start is None:
            start = tokenizer_input(self.tokenizer, str(run.tokenizer))
            start = {**start, **vector_input(run.word_vectors)}
        else:
            start = encoder_inputs(self.start, run.encoder_from)
        return {**start, **example_inputs(self.data, splits)}


def prepare(run: FitRun, task: Task, trivial: Scores | None = None) -> Preparation:
    """Read the encoder and the data, and build what is trained.

    Args:
        run: The settings.
        task: What they name.
        trivial: Metrics of the trivial baseline, where they are known from another seed.

    Raises:
        ConfigError: The encoder, tokenizer or plan does not fit the settings.
        CheckpointError: There is no checkpoint to start from, or it is damaged.
        DataError: A file is missing or has a wrong row, or there is nothing to validate on.
    """
    start = None
    if run.encoder_from != "none":
        if run.word_vectors is not None:
            raise ConfigError(
                "word_vectors start the embeddings of a new encoder, but --encoder "
                f"{run.encoder_from} has its own; leave them out, or start from --encoder none"
            )
        start = find_checkpoint(run.encoder_from, run.cache_dir)
    tokenizer, config = _tokenizer_and_shape(run, start, task)
    check_length(run.max_length, config)
    check_vectors(run.word_vectors, config)
    trains_all = run.unfreezing.unfreeze == "all" and run.unfreezing.phases is None
    check_training(config, run.trainer, all_trained=trains_all)
    task.bind(tokenizer, encoder=config)
    data = task_data(run, task, tokenizer)
    data.features(data.train_split, training=True)
    for split in task.validation_splits:
        data.features(split)
    trivial = trivial or _trivial(data)
    if run.monitor is not None and run.monitor not in (monitors := [*trivial, "loss"]):
        raise not_among("--monitor", run.monitor, monitors)
    module = _module(run, data, config, start)
    start_from_vectors(module.encoder, run.word_vectors, tokenizer)
    plan = put_plan(run, module, data)
    sets = row_sets(module.phases, data)
    choice = choose(run, module, sets)
    unused = "" if start is None else other_shape(run.encoder, start)
    run = with_shape(run, start, tokenizer)  # what is recorded is what is used
    return Preparation(run, module, tokenizer, data, trivial, plan, sets, choice, start, unused)


def _tokenizer_and_shape(
    run: FitRun, start: Checkpoint | None, task: Task
) -> tuple[Tokenizer, EncoderConfig]:
    """The tokenizer and the shape: the checkpoint's, or those named for a fresh encoder."""
    if start is not None:
        tokenizer = find_tokenizer(run.tokenizer) if run.tokenizer else start.tokenizer()
        check_vocabulary(tokenizer, start.encoder_config, Path(run.tokenizer or start.folder))
        if tokenizer.fingerprint != start.tokenizer().fingerprint:
            raise CheckpointError(
                f"{run.tokenizer}: not the tokenizer that {run.encoder_from} was trained with; "
                "leave --tokenizer out, the checkpoint brings its own"
            )
        return tokenizer, with_dropout(start.encoder_config, run.dropout)
    if run.tokenizer is None and (texts := task.vocabulary_texts()) is not None:
        tokenizer = train_tokenizer(texts, TokenizerConfig(), at_most=True)
        say(f"no --tokenizer named: trained one of {tokenizer.vocab_size:,} tokens on these texts")
        config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
        return tokenizer, with_dropout(config, run.dropout)
    if run.tokenizer is None:
        raise ConfigError(
            "--encoder none starts from random weights: name a vocabulary by --tokenizer DIR"
        )
    tokenizer = find_tokenizer(run.tokenizer)
    config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    return tokenizer, with_dropout(config, run.dropout)


def _module(
    run: FitRun, data: TaskData, config: EncoderConfig, start: Checkpoint | None
) -> FineTuner:
    """The encoder with the checkpoint's weights and a new head."""
    seed_weights(run.seed)
    encoder = Encoder(config)
    if start is not None:
        encoder.load_state_dict(start.encoder().state_dict())
    if run.head.levels > 1 and not data.task.long.pools_windows:
        raise ConfigError(
            f"levels {run.head.levels} reads the windows of a text together: expected --long "
            "windows and --window-labels document, got texts that are read one sequence at a time; "
            "set both, or leave --levels out"
        )
    head = data.task.head(config, run.head)
    if isinstance(head, Seq2Seq):
        _check_encoder(config)
        _start_decoder(head, data.tokenizer, encoder if start is not None else None, run.cache_dir)
    if head.reads_ids:
        check_segments(data, str(run.head.pooling))
    if isinstance(head, PooledHead) and start is not None and (pooler := start.pooler()):
        head.start_from(pooler)
    if isinstance(head, Regression):
        labels = [example.label for example in data.examples(data.train_split)]
        head.start_at(fmean(label for label in labels if isinstance(label, int | float)))
    validation = {
        split: Scored(data.examples(split), data.features(split))
        for split in data.task.validation_splits
    }
    return FineTuner(
        encoder,
        head,
        data.task,
        validation=validation,
        optimizer=run.optimizer,
        schedule=run.schedule,
        regularization=run.regularization,
        lm_head=_language_model(encoder, start) if run.regularization.lm_weight else None,
        seed=run.seed,
    )


def _check_encoder(config: EncoderConfig) -> None:
    """Refuse a transformer that reads each token of a source without those behind it.

    An LSTM in one direction is accepted: its last state has read the whole source (Sutskever et
    al., 2014).

    Raises:
        ConfigError: It is one.
    """
    if config.causal and config.block == "transformer":
        raise ConfigError(
            "encoder: expected one that reads in both directions, got a causal one; turn it by "
            "finetune adapt --objective mlm, or give it as --decoder-from"
        )


def _start_decoder(
    head: Seq2Seq, tokenizer: Tokenizer, encoder: Encoder | None, cache_dir: str | None
) -> None:
    """Start a decoder from a causal language model, or with the words of a pretrained encoder.

    Raises:
        ConfigError: The model is not causal, or has another tokenizer.
    """
    if head.starts_from is None:
        if encoder is not None:
            head.start_from(encoder)
        return
    causal = find_checkpoint(head.starts_from, cache_dir)
    if not causal.encoder_config.causal:
        raise ConfigError(
            f"decoder_from {head.starts_from}: expected a causal language model, got one that "
            "reads in both directions; pretrain one with --causal"
        )
    if causal.tokenizer().fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"decoder_from {head.starts_from}: expected the encoder's tokenizer, got another one; "
            "pretrain it with --tokenizer ENCODER"
        )
    head.start_from(causal.encoder(), causal.weights_below("head."))


def _language_model(encoder: Encoder, start: Checkpoint | None) -> MaskedLM | None:
    """The checkpoint's language-model head as it is; None where it has another one.

    A head that is a product with the word embeddings alone has no weights of its own.
    """
    head = MaskedLM(encoder.config, encoder.embeddings.word_embeddings)
    is_pretrained = start is not None and start.head.get("kind") == "masked_lm"
    if list(head.parameters()) and not is_pretrained:
        return None
    if start is not None and is_pretrained:
        head.load_state_dict(start.weights_below("head."))
    return head.eval().requires_grad_(False)


def check_segments(data: TaskData, pooling: str) -> None:
    """Refuse to compare two texts where there is one, or where no separator shows which is which.

    Raises:
        ConfigError: The task has one text, or the tokenizer another template.
    """
    if len(data.examples(data.train_split)[0].texts) == 1:
        raise ConfigError(
            f"--pooling {pooling} compares two texts, and {data.task.name} has one text an "
            "example; choose --pooling mean, or attention"
        )
    template = data.tokenizer.template(pair=True)
    one_before, one_behind = len(template.prefix) == 1, len(template.suffix) == 1
    if not (one_before and one_behind and {*template.middle} == {*template.suffix}):
        raise ConfigError(
            f"--pooling {pooling} expects a tokenizer that writes [CLS] a [SEP] b [SEP], got "
            f"{len(template.prefix)} tokens before a pair, {len(template.middle)} between and "
            f"{len(template.suffix)} behind it; choose --pooling mean, or attention"
        )


def _trivial(data: TaskData) -> Scores:
    """Metrics of the trivial baseline on the validation splits.

    Raises:
        DataError: There is no split to score on, or it has no labels.
    """
    task = data.task
    if not task.validation_splits:
        raise DataError(
            f"{task.name}: no validation data; name a file by --validation, or hold out rows of "
            "your table by --holdout 0.2"
        )
    train, splits = data.examples(data.train_split), task.validation_splits
    scores = scored(
        task, {split: task.baseline_answers(train, data.examples(split)) for split in splits}
    )
    if task.monitor not in scores:
        raise DataError(
            f"{task.name}: expected a labelled {splits[0]} split to choose the best checkpoint on, "
            "got none of its answers; name another file by --validation"
        )
    return scores


def put_plan(run: FitRun, module: FineTuner, data: TaskData) -> list[Row]:
    """Make the plan that the settings name, and let the module follow it.

    Args:
        run: The settings.
        module: Gets the phases and the peak rate of each group.
        data: Says how many batches an epoch has.

    Returns:
        A row a phase, as plain data.

    Raises:
        ConfigError: The policy, a group or a phase is not there, or the run is too short.
    """
    config, layers = run.unfreezing, module.layers()
    pace = _pace(run, data)
    plan = make_plan(config, module.encoder.config.num_hidden_layers, pace.epochs)
    pace.check(plan)
    rates = RatePlan(plan, pace, run.schedule, config.schedule_scope, config.thaw_warmup_ratio)
    optimizer = run.optimizer
    module.phases = Phases(rates, config)
    module.peak_rates = group_rates_with(
        list(layers), optimizer.learning_rate, optimizer.rate_decay, config.group_rates
    )
    owned = owned_parameters(layers)
    counts = {name: sum(p.numel() for p in tensors) for name, tensors in owned.items()}
    return plan_rows(rates, module.peak_rates, counts)


def _pace(run: FitRun, data: TaskData) -> Pace:
    length = run.length.or_default()
    batches, steps = data.batches_per_epoch, length.max_steps
    if length.max_epochs is not None:
        steps = length.max_epochs * batches
    return Pace(batches, steps)
