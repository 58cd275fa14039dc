"""Offline unless the mode or a login says otherwise; nobody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.tracking.login import wandb_mode


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
