"""Settings that had another name, and values that had another spelling: both are still read.

And the names that other tools have for our settings, with ours to suggest.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from finetune.errors import ConfigError

NAMES = {
    "aids": "regularization",
    "unfreezing.span": "unfreezing.schedule_scope",
    "unfreezing.rewarm_fraction": "unfreezing.thaw_warmup_ratio",
    "unfreezing.moments": "unfreezing.optimizer_state",
    "table.unlabeled": "table.missing",
}
"""Old dotted key -> the key that it has now, in the same section."""
VALUES = {"unfreezing.optimizer_state": {"kept": "keep", "cleared": "reset"}}
"""Dotted key of now -> old spelling of a value -> new spelling."""

OLD_ACCUMULATION, DEFAULT_SIZE = "accumulate_grad_batches", 32
"""The key of `trainer` that said how many batches of `loader` a step had, and how large they were,
and a validation, where nothing was said."""

OTHER_TOOLS = {
    # the Trainer of Hugging Face, and its example scripts
    "lr": "--learning-rate",
    "epochs": "--max-epochs",
    "num_epochs": "--max-epochs",
    "num_train_epochs": "--max-epochs",
    "train_batch_size": "--batch-size",
    "per_device_train_batch_size": "--batch-size",
    "per_device_eval_batch_size": "--batch-size",
    "eval_batch_size": "--batch-size",
    "model": "--encoder",
    "model_name": "--encoder",
    "model_name_or_path": "--encoder",
    "pretrained_model_name_or_path": "--encoder",
    "config_name": "--config",
    "tokenizer_name": "--tokenizer",
    "data_dir": "--data",
    "dataset_name": "--dataset",
    "task_name": "--task",
    "train_file": "--train",
    "validation_file": "--validation",
    "eval_file": "--validation",
    "test_file": "--test",
    "output_dir": "--out",
    "overwrite_output_dir": "--overwrite",
    "resume_from_checkpoint": "--resume",
    "max_seq_length": "--max-length",
    "max_seq_len": "--max-length",
    "text_column_name": "--text-column",
    "label_column_name": "--label-column",
    "doc_stride": "--stride",
    "max_query_length": "--max-question-length",
    "n_best_size": "--n-best",
    "version_2_with_negative": "--without-answer",
    "mlm_probability": "--mask-rate",
    "gradient_accumulation_steps": "--micro-batches",
    "max_grad_norm": "--gradient-clip",
    "lr_scheduler_type": "--schedule",
    "warmup_steps": "--warmup-ratio",
    "num_warmup_steps": "--warmup-ratio",
    "beta1": "--adam-beta1",
    "beta2": "--adam-beta2",
    "label_smoothing_factor": "--label-smoothing",
    "early_stopping_patience": "--patience",
    "metric_for_best_model": "--monitor",
    "max_samples": "--limit",
    "max_train_samples": "--limit",
    "max_eval_samples": "--limit",
    "logging_steps": "--log-every-steps",
    "eval_steps": "--validate-every-steps",
    "save_steps": "--checkpoint-every-steps",
    "dataloader_num_workers": "--num-workers",
    "fp16": "--precision",
    "bf16": "--precision",
    "no_cuda": "--accelerator",
    "use_cpu": "--accelerator",
    "device": "--accelerator",
    "report_to": "--logger",
    "layerwise_lr_decay": "--rate-decay",
    "llrd": "--rate-decay",
    "freeze_encoder": "--unfreeze",
    # fastai
    "bs": "--batch-size",
    "wd": "--weight-decay",
    "n_epoch": "--max-epochs",
    "lr_max": "--learning-rate",
    "lr_find": "--find-lr",
    "drop_mult": "--dropout",
    "freeze_epochs": "--head-epochs",
    "freeze_to": "--phases",
    "seq_len": "--max-length",
    # Lightning
    "gpus": "--devices",
    "accumulate_grad_batches": "--micro-batches",
    "gradient_clip_val": "--gradient-clip",
    "val_check_interval": "--validate-every-steps",
    "log_every_n_steps": "--log-every-steps",
    "ckpt_path": "--resume",
    "default_root_dir": "--out",
    "max_time": "--max-minutes",
    "enable_progress_bar": "--progress",
}
"""A name that other tools have for a setting -> our flag."""


def our_flag(name: str, flags: Collection[str]) -> str | None:
    """The flag that stands for a name of another tool; None for any other name.

    Args:
        name: A flag or a key, with dashes or underscores.
        flags: Those that there are.
    """
    flag = OTHER_TOOLS.get(name.lstrip("-").replace("-", "_").lower())
    return flag if flag in flags else None


def with_new_names(content: Any, *, warn: bool = False, source: str = "", prefix: str = "") -> Any:
    """Settings under the names that they have now.

    Args:
        content: What was read from a file: a mapping; anything else is returned unchanged.
        warn: Warn of each old name.
        source: Where the content is from, for the message.
        prefix: The section that the content belongs to, with a dot at the end.

    Raises:
        ConfigError: A setting is given under its old name and under its new one.
    """
    if not isinstance(content, Mapping):
        return content
    if not prefix:
        content = _with_whole_batches(content, warn=warn, source=source)
    renamed = {}
    for old, value in content.items():
        key = NAMES.get(f"{prefix}{old}", f"{prefix}{old}")
        new = key.removeprefix(prefix) if key in NAMES.values() else old
        if new != old and new in content:
            raise ConfigError(
                f"{source}: {old} is the old name of {new}, and both are given; remove {old}"
            )
        if new != old and warn:
            warn_of_rename(old, new)
        value = new_value(key, value, warn=warn)
        renamed[new] = with_new_names(value, warn=warn, source=source, prefix=f"{key}.")
    return renamed


def _with_whole_batches(
    content: Mapping[str, Any], *, warn: bool, source: str
) -> Mapping[str, Any]:
    """Settings whose batch is that of a step, where they said how many batches a step has.

    Raises:
        ConfigError: Both are said.
    """
    from finetune.settings.values import show  # yaml: not for completion

    trainer, loader = content.get("trainer"), content.get("loader") or {}
    if not isinstance(trainer, Mapping) or OLD_ACCUMULATION not in trainer:
        return content
    if not isinstance(loader, Mapping):
        raise ConfigError(f"{source}: loader: expected a section with settings, got {show(loader)}")
    count = _at_least_1(trainer[OLD_ACCUMULATION], f"{source}: trainer.{OLD_ACCUMULATION}")
    trainer = {key: value for key, value in trainer.items() if key != OLD_ACCUMULATION}
    if "micro_batches" in loader:
        raise ConfigError(
            f"{source}: trainer.{OLD_ACCUMULATION} is the old name of loader.micro_batches, and "
            f"both are given; remove {OLD_ACCUMULATION}"
        )
    if count > 1:
        sizes = {
            key: _at_least_1(loader.get(key, DEFAULT_SIZE), f"{source}: loader.{key}")
            for key in ("batch_size", "validation_batches")
        }
        whole, read = count * sizes["batch_size"], -(-sizes["validation_batches"] // count)
        loader = {**loader, "batch_size": whole, "micro_batches": count, "validation_batches": read}
        if warn:
            warn_of_rename(
                f"{OLD_ACCUMULATION} {count} with batch_size {sizes['batch_size']}",
                f"micro_batches {count} with batch_size {whole}, the examples of a step",
            )
    return {**content, "trainer": trainer, "loader": loader}


def _at_least_1(value: object, where: str) -> int:
    """A number that is computed with before the settings are checked."""
    from finetune.settings.values import convert, show  # yaml: not for completion

    with suppress(ValueError):
        if (number := convert(value, int)) >= 1:
            return int(number)
    raise ConfigError(f"{where}: expected 1 or more, got {show(value)}")


def new_value(key: str, value: Any, *, warn: bool = False) -> Any:
    """The new spelling of the value of a setting (its dotted key); any other value as it is."""
    new = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    if warn:
        name = key.rpartition(".")[2]
        warn_of_rename(f"{name}: {value}", f"{name}: {new}")
    return new


def add_old_flags(parser: argparse._ActionsContainer, key: str, flag: str) -> None:
    """Give a parser the flags that a setting had before, which `--help` does not show.

    Args:
        parser: Gets them.
        key: Dotted key of the setting.
        flag: The flag that it has now.
    """
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for old in (old for old, new in NAMES.items() if new == key):
        name = "--" + old.rpartition(".")[2].replace("_", "-")
        parser.add_argument(name, action=_OldFlag, dest=key, metavar=flag, **hidden)


class _OldFlag(argparse.Action):
    def __call__(
        self, parser: object, space: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        warn_of_rename(str(flag), str(self.metavar))
        setattr(space, self.dest, value)


def warn_of_rename(old: str, new: str) -> None:
    """Warn that an old name was read; Python shows the same warning once."""
    warnings.warn(f"{old} is now {new}; please rename it", FutureWarning, stacklevel=2)
