"""A tiny corpus, a tiny SST-2, their settings as YAML, and one run of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.__main__ import main
from tests.made.texts import has_the, write_corpus, write_sst2

SHAPE = """\
encoder:
  hidden_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  intermediate_size: 32
  max_position_embeddings: 32
"""
PRETRAIN = f"""\
{SHAPE}vocabulary: {{vocab_size: 60}}
data: {{max_length: 16, validation_fraction: 0.1}}
loader: {{batch_size: 16}}
optimizer: {{learning_rate: 1.0e-2}}
length: {{max_steps: 12}}
trainer: {{log_every_steps: 5, validate_every_steps: 6}}
checkpoints: {{checkpoint_every_steps: 4}}
tracking: {{wandb: false}}
"""
GLUE = f"""\
{SHAPE}max_length: 16
loader: {{batch_size: 8}}
optimizer: {{learning_rate: 1.0e-2}}
length: {{max_epochs: 2}}
trainer: {{log_every_steps: 5}}
checkpoints: {{checkpoint_every_steps: 4}}
tracking: {{wandb: false}}
"""


@dataclass(frozen=True)
class World:
    """Files to run on, and the runs that every test may read and none may change."""

    root: Path
    corpus: Path
    data: Path
    pretrain_config: Path
    glue_config: Path
    tokenizer: Path
    pretrained: Path
    tuned: Path

    def pretrain(self, out: Path, *more: object) -> list[str]:
        """The words of a pretraining."""
        words = ["pretrain", "--config", self.pretrain_config, "--corpus", self.corpus]
        return [str(word) for word in [*words, "--out", out, *more]]

    def glue(self, out: Path, *more: object, encoder: object = None) -> list[str]:
        """The words of a fine-tuning on SST-2."""
        words = ["glue", "sst2", "--config", self.glue_config, "--data", self.data]
        start = ["--encoder", encoder or self.pretrained]
        return [str(word) for word in [*words, *start, "--out", out, *more]]


def make_world(root: Path) -> World:
    """Write the files, and make the runs."""
    made = World(
        root=root,
        corpus=write_corpus(root / "corpus.txt"),
        data=write_sst2(root / "data", has_the),
        pretrain_config=root / "pretrain.yaml",
        glue_config=root / "glue.yaml",
        tokenizer=root / "tokenizer",
        pretrained=root / "pretrained",
        tuned=root / "tuned",
    )
    made.pretrain_config.write_text(PRETRAIN)
    made.glue_config.write_text(GLUE)
    learn = ["tokenizer", "--corpus", made.corpus, "--vocab-size", 60, "--out", made.tokenizer]
    cache = ["--cache-dir", root / "cache"]
    assert main([str(word) for word in learn]) == 0
    assert main(made.pretrain(made.pretrained, "--tokenizer", made.tokenizer, *cache)) == 0
    assert main(made.glue(made.tuned, *cache)) == 0
    return made
