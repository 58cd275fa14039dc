"""Which places a run's numbers go to; offline unless the mode or a login says otherwise."""

from __future__ import annotations

import importlib.util
import logging
import struct
from pathlib import Path

import pytest

from finetune.errors import ConfigError
from finetune.tracking import JsonlLogger, TrackingConfig, finish, loggers, opening
from finetune.tracking.opening import wandb_mode


def test_no_wandb_where_it_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(loggers(TrackingConfig(wandb=False), tmp_path, {})) == 1
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert len(loggers(TrackingConfig(), tmp_path, {})) == 1


def test_machine_without_wandb_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda name: False)
    with caplog.at_level(logging.INFO):
        opened = loggers(TrackingConfig(), tmp_path, {})
    assert [type(logger) for logger in opened] == [JsonlLogger]
    assert caplog.messages == [
        f"wandb is not installed; metrics go to {tmp_path / 'metrics.jsonl'} only"
    ]
    finish(opened, {"metrics": {}})


def test_name_of_a_logger_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="logger: expected tensorboard or csv, got 'wandb'"):
        TrackingConfig(logger=["wandb"])
    with pytest.raises(ConfigError, match="table_examples must be .* from 0 to .*, got -1"):
        TrackingConfig(table_examples=-1)


def test_names_may_have_commas_between_them() -> None:
    config = TrackingConfig(logger=["tensorboard,csv"], tags=["my tag, b", "c"])
    assert config.logger == ["tensorboard", "csv"]
    assert config.tags == ["my tag", "b", "c"]


def test_tensorboard_that_is_not_installed_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda name: False)
    with pytest.raises(
        ConfigError, match="tensorboard needs a package that is not installed; run pip"
    ):
        loggers(TrackingConfig(logger=["tensorboard"]), tmp_path / "run", {})
    assert not (tmp_path / "run").exists()


def test_csv_is_written_when_the_run_ends(tmp_path: Path) -> None:
    opened = loggers(TrackingConfig(wandb=False, logger=["csv"]), tmp_path, {})
    opened[0].log_metrics({"train/loss": 0.5}, 1)
    finish(opened)
    assert (tmp_path / "metrics.csv").read_text() == "step,train/loss\n1,0.5\n"


def test_tensorboard_gets_the_same_values_at_the_same_steps(tmp_path: Path) -> None:
    if not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
        pytest.skip("neither tensorboard nor tensorboardX is installed")
    opened = loggers(TrackingConfig(wandb=False, logger=["tensorboard"]), tmp_path, {})
    for step in range(3):
        for logger in opened:
            logger.log_metrics({"val/accuracy": step / 4}, step)
    finish(opened)
    (events,) = (tmp_path / "tensorboard").glob("events.*")
    content = events.read_bytes()
    assert content.count(b"val/accuracy") == 3
    assert struct.pack("<f", 0.5) in content


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k" * 40}, "online"),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "offline"),  # would ask for a login
        ({"WANDB_MODE": "dryrun"}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_offline_unless_mode_or_login_says_otherwise(
    variables: dict[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wandb_mode() == mode


def test_login_in_netrc_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "k" * 40)
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert wandb_mode() == "offline"


def test_login_that_wandb_keeps_in_its_settings_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    (tmp_path / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password " + "k" * 40)
    (tmp_path / "netrc").chmod(0o600)
    assert wandb_mode() == "offline"
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode() == "online"
