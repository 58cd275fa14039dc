"""From raw text to a tokenizer and to a pretrained encoder."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from finetune.checkpoints.folder import find_tokenizer, load_checkpoint
from finetune.checkpoints.hf import exports_as
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.files.writing import new_folder
from finetune.jobs.baselines import ngrams_of
from finetune.jobs.find_lr import check_search, find, left_to_first
from finetune.jobs.inputs import corpus_inputs, tokenizer_input
from finetune.jobs.session import Session, check_machine, with_devices
from finetune.jobs.word_vectors import check_vectors, start_from_vectors, vector_input
from finetune.machine.processes import is_first_process
from finetune.runs.folder import RunFolder, cache_folder, note, say
from finetune.runs.opening import after_restart, check_folder, check_inputs, check_writable, opened
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, CorpusRun, PretrainRun, TokenizerRun
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus, source_digests
from finetune.text.corpus.documents import read_documents
from finetune.text.corpus.mixture import MixedBlocks
from finetune.text.corpus.sources import corpus_sources
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.tokenizer_files import holds_tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.loop.data import CorpusData
from finetune.training.loop.launching import machines_of, taking_part
from finetune.training.loop.pretrainer import Pretrainer, masked_lm_metrics
from finetune.training.loop.sharding import first_weights
from finetune.training.loop.trainer import check_training
from finetune.training.randomness import seed_weights
from finetune.training.ranks import Ranks, pick_device


def make_tokenizer(run: TokenizerRun) -> Tokenizer:
    """Train a tokenizer and write its folder.

    Raises:
        ConfigError: The folder holds something already.
    """
    folder = Path(run.out)
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a new folder for --out")
    tokenizer = _train_tokenizer(
        run.corpus, run.vocabulary, text_field=run.text_field, file_is_document=run.file_is_document
    )
    with new_folder(folder) as made:
        tokenizer.save(made)
    say(f"{tokenizer.vocab_size:,} tokens; tokenizer saved to {folder}")
    return tokenizer


def _train_tokenizer(
    corpus: list[str], config: TokenizerConfig, *, text_field: str, file_is_document: bool
) -> Tokenizer:
    note(
        f"training a {config.algorithm} tokenizer of {config.vocab_size:,} tokens on "
        f"{' '.join(corpus)}"
    )
    texts = read_documents(
        corpus_sources(corpus), text_field=text_field, file_is_document=file_is_document
    )
    return train_tokenizer(texts, config)


def pretrain(run: PretrainRun) -> Results:
    """From raw text to a pretrained encoder.

    >>> import finetune
    >>> from finetune.text import TokenizerConfig
    >>> from finetune.tracking import TrackingConfig
    >>> from finetune.training.loop.progress import LengthConfig
    >>> run = finetune.PretrainRun(
    ...     ["data/corpus.txt"], "runs/pretrained",
    ...     encoder=finetune.EncoderConfig(hidden_size=16, num_hidden_layers=2,
    ...                                    num_attention_heads=2, intermediate_size=32),
    ...     vocabulary=TokenizerConfig(vocab_size=80),
    ...     length=LengthConfig(max_steps=2),
    ...     tracking=TrackingConfig(wandb=False),
    ... )
    >>> results = finetune.pretrain(run)
    >>> sorted(results["metrics"])
    ['loss', 'masked_accuracy', 'perplexity']

    Args:
        run: All settings.

    Returns:
        What RUN/results.json holds.
    """
    if not any(dataclasses.astuple(run.length)):
        raise ConfigError(
            "how long to train is not said: give --max-steps, --max-epochs or --max-minutes"
        )
    with taking_part(run.trainer.devices) as devices:
        return _pretrain(with_devices(run, devices))


def _pretrain(run: PretrainRun) -> Results:
    folder = RunFolder(Path(run.out))
    if run.find_lr and not is_first_process():
        return left_to_first(run, "pretrain")
    run = after_restart(run)
    check_machine(run)
    if run.find_lr:
        check_search(run)
    check_length(run.data.max_length, run.encoder)
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    tokenizer = _tokenizer_for(run, folder)
    config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    run = dataclasses.replace(run, encoder=config)  # what is recorded is what is used
    check_training(config, run.trainer, language_model=True)
    check_vectors(run.word_vectors, config)
    cache = cache_folder(run.cache_dir)
    digests = source_digests(run.corpus, cache)
    inputs = {
        **corpus_inputs(digests),
        **tokenizer_input(tokenizer, run.tokenizer or str(folder.tokenizer)),
        **vector_input(run.word_vectors),
    }
    check_inputs(folder, run, inputs)  # before a corpus that has changed is tokenized
    corpus = build_corpus(run.corpus, tokenizer, run.data, run.seed, cache, digests=digests)
    check_memory(config, run.data, corpus)
    batch = _sequences(run, corpus), run.data.max_length
    check_training(config, run.trainer, language_model=True, batch=batch)
    if line := config.without_effect():
        say(line)
    say(exports_as(config, {"kind": "masked_lm"}))  # when nothing can be refused any more
    seed_weights(run.seed)
    with first_weights(run.trainer):
        module = Pretrainer(
            Encoder(config), optimizer=run.optimizer, schedule=run.schedule, seed=run.seed
        )
    start_from_vectors(module.encoder, run.word_vectors, tokenizer)
    if run.find_lr:
        data = corpus_data(run, module, tokenizer, corpus, run.data)
        return find(run, folder, module, data, "pretrain")
    with opened(folder, run, inputs):
        if run.tokenizer is None and is_first_process():
            _keep_tokenizer(tokenizer, folder.tokenizer)
        return train_language_model(
            run, module, tokenizer, corpus, run.data, "pretrain", run.corpus
        )


def _sequences(run: PretrainRun, corpus: Corpus) -> int:
    """Sequences that a process reads at once."""
    parts = run.trainer.devices * machines_of(run.trainer) * run.loader.micro_batches
    return -(-min(run.loader.batch_size, len(corpus.train)) // parts)


def train_language_model(
    run: PretrainRun | AdaptRun,
    module: Pretrainer,
    tokenizer: Tokenizer,
    corpus: Corpus,
    text: CorpusConfig,
    task: str,
    sources: list[str],
    imported: Mapping[str, str] | None = None,
) -> Results:
    """Train encoder and language-model head on a corpus, in a folder that is open for the run.

    Args:
        run: The settings.
        module: With the weights to start from.
        tokenizer: The one that the corpus was cut by.
        corpus: Its blocks.
        text: How they were cut.
        task: What the run is called.
        sources: What the corpus was made of, for results.json.
        imported: Where an encoder that was imported is from, for results.json.

    Returns:
        What RUN/results.json holds.
    """
    folder = RunFolder(Path(run.out))
    show_corpus(corpus)
    module.lm_fraction = None if module.encoder.config.causal else run.masks.mask_rate
    module.separate = text.documents == "separate"
    data = corpus_data(run, module, tokenizer, corpus, text)
    session = Session(run, folder, module, data, tokenizer, head={"kind": "masked_lm"})
    session.train(
        monitor="val/loss",
        task=task,
        unigram_entropy=corpus.statistics.unigram_entropy,
    )
    scored = min(len(corpus.validation), run.loader.validation_batches * run.loader.batch_size)
    device = pick_device(run.trainer.accelerator)
    metrics = _score_best(folder, module, data, device, session.ranks)
    results = session.results(task, "validation", metrics, scored)
    results["data"] = {"corpus": sources, **dataclasses.asdict(corpus.statistics)}
    if corpus.inputs:
        results["data"]["inputs"] = [dataclasses.asdict(one) for one in corpus.inputs]
    # An n-gram model sees what a causal encoder sees, and not what a masked token is read off.
    wanted = isinstance(run, PretrainRun) and run.baselines and module.encoder.config.causal
    if wanted and is_first_process():
        note("fitting the baseline n gram …")
        results["baselines"] = {"n_gram": ngrams_of(data, tokenizer.vocab_size)}
    if imported:
        results["imported"] = dict(imported)
    folder.write_results(results)
    session.close(results)
    return results


def show_corpus(corpus: Corpus) -> None:
    """Say what is in a corpus, and warn where much of it is unknown to the tokenizer."""
    say("\n".join([corpus.statistics.as_text(), *(one.as_text() for one in corpus.inputs)]))
    for message in corpus.statistics.warnings() if is_first_process() else ():
        warnings.warn(message, stacklevel=2)


def prepare_corpus(run: CorpusRun) -> dict[str, Any]:
    """Tokenize and split a corpus into the cache, where pretraining finds it; train nothing.

    Commands that prepare the same corpus at once, also on several machines that share the cache
    folder, share the work.

    >>> import finetune
    >>> from finetune.runs.settings import CorpusRun
    >>> facts = finetune.jobs.prepare_corpus(CorpusRun(["data/corpus.txt"], "runs/pretrained"))
    >>> facts["documents"] > 0
    True

    Args:
        run: All settings.

    Returns:
        `corpus` and `cache`, as named, and the statistics.
    """
    tokenizer = find_tokenizer(run.tokenizer)
    cache = cache_folder(run.cache_dir)
    corpus = build_corpus(run.corpus, tokenizer, run.data, run.seed, cache)
    show_corpus(corpus)
    statistics = dataclasses.asdict(corpus.statistics)
    return {"corpus": run.corpus, "cache": str(cache), **statistics}


def corpus_data(
    run: PretrainRun | AdaptRun,
    module: Pretrainer,
    tokenizer: Tokenizer,
    corpus: Corpus,
    text: CorpusConfig,
) -> CorpusData:
    """The blocks of a corpus as the encoder of a run learns from them."""
    return CorpusData(
        corpus,
        tokenizer,
        run.masks,
        run.loader,
        seed=run.seed,
        causal=module.encoder.config.causal,
        separate=text.documents == "separate",
        streams=module.encoder.config.memory > 0,
    )


def check_memory(config: EncoderConfig, text: CorpusConfig, corpus: Corpus) -> None:
    """Refuse a memory of what comes before a block, where nothing does.

    Raises:
        ConfigError: Documents do not see each other, or blocks of several corpora alternate.
    """
    if config.memory and text.documents == "separate":
        raise ConfigError(
            "memory: expected documents joined, as a block's memory is of the documents before it, "
            "got separate; choose one of the two"
        )
    if config.memory and isinstance(corpus.train, MixedBlocks):
        raise ConfigError(
            "memory: expected one stream of text, got corpora with weights, whose blocks "
            "alternate; leave the weights out"
        )


def _score_best(
    folder: RunFolder, module: Pretrainer, data: CorpusData, device: torch.device, ranks: Ranks
) -> dict[str, float]:
    """Score the best checkpoint on the validation blocks; nothing where there are none."""
    load_checkpoint(folder.path).load_into(module)
    return masked_lm_metrics(module.to(device), data.validation_loader(ranks), ranks)


def _tokenizer_for(run: PretrainRun, folder: RunFolder) -> Tokenizer:
    """The tokenizer that is named, or that of the resumed run, or one trained now."""
    if run.tokenizer is not None:
        return find_tokenizer(run.tokenizer)
    if not is_first_process() or (run.resume and holds_tokenizer(folder.tokenizer)):
        return Tokenizer.load(folder.tokenizer)
    return _train_tokenizer(
        run.corpus,
        run.vocabulary,
        text_field=run.data.text_field,
        file_is_document=run.data.file_is_document,
    )


def _keep_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a run's tokenizer, whole or not at all, unless it is there."""
    if not holds_tokenizer(folder):
        with new_folder(folder) as made:
            tokenizer.save(made)


def check_length(max_length: int, config: EncoderConfig) -> None:
    """Refuse sequences that are longer than learned positions reach.

    Raises:
        ConfigError: They are.
    """
    if config.position == "learned" and max_length > config.max_position_embeddings:
        raise ConfigError(
            f"max_length ({max_length}) must not exceed the encoder's max_position_embeddings "
            f"({config.max_position_embeddings}); lower it"
        )


def with_dropout(config: EncoderConfig, dropout: float | None) -> EncoderConfig:
    """The same shape with another dropout, on the embeddings too; None leaves it as it is."""
    if dropout is None:
        return config
    return dataclasses.replace(
        config,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        embedding_dropout_prob=None,  # follows hidden_dropout_prob
    )
