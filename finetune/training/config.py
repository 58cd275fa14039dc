"""Settings of training whose readers need torch or Lightning, which take seconds to import.

They are here so that a run's settings are read at once; `optimizer.py`, `schedules.py`,
`loop/progress.py` and `unfreezing/policies.py` have theirs beside their readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finetune.ranges import MOST_STEPS, check_values, within

PRECISIONS = ("fp32", "bf16")
"""Of cached hidden states."""


@dataclass
class LoaderConfig:
    """Size of batches, how they are divided, and the processes that prepare them.

    >>> from finetune import FitRun, LoaderConfig
    >>> run = FitRun("runs/pretrained", "glue/cola", loader=LoaderConfig(batch_size=16))
    >>> run.loader.num_workers
    0
    """

    batch_size: int = within(1, 1_000_000, default=32)
    """Examples of an optimizer step, over all processes: the same step on any number of devices."""
    micro_batches: int = within(1, 1_000_000, default=1)
    """Gradient accumulation: micro-batches that each process makes of its part of a batch, one
    after the other; the same result in less memory. A device computes batch_size / (devices ×
    micro_batches) examples at once."""
    num_workers: int = within(0, 1024, default=0)
    """Processes that prepare batches; 0 = the training process itself."""
    validation_batches: int = within(1, MOST_STEPS, default=32)
    """Pretraining: number of batches (of batch_size examples) in a validation."""

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ConfigError: A count is out of range.
        """
        check_values(self)


@dataclass
class TrainerConfig:
    """Settings of Lightning's Trainer: hardware, precision, clipping, intervals.

    >>> from finetune import TrainerConfig
    >>> trainer = TrainerConfig(accelerator="cpu", devices=2)
    >>> trainer.gradient_clip
    1.0
    """

    accelerator: str = field(default="auto", metadata={"offers": ("auto", "cpu", "gpu")})
    """Device type, as Lightning names it: auto, cpu or gpu."""
    devices: int = within(1, 1024, default=1)
    """Number of processes on this machine, each with one device."""
    strategy: str = field(default="auto", metadata={"offers": ("auto", "ddp", "fsdp")})
    """Strategy for several processes: auto or ddp, or fsdp (FSDP2) for an encoder that is too large
    for one device: each stores a part of the weights, gradients and optimizer state."""
    precision: str = field(
        default="32-true", metadata={"offers": ("32-true", "bf16-mixed", "16-mixed")}
    )
    """Precision, as Lightning names it: 32-true, bf16-mixed or 16-mixed."""
    deterministic: bool = False
    """Same seed, same numbers, bit for bit, on a GPU too; slower (a CPU needs no such setting)."""
    compile: bool = False
    """Train with transformer blocks compiled by torch.compile: minutes at the start, and numbers
    equal to rounding only; for long runs on a GPU, where it is not measured yet."""
    gradient_clip: float | None = within(0, 1e12, default=1.0)
    """Maximum norm of the gradient over all weights; none = no clipping."""
    log_every_steps: int | None = within(1, MOST_STEPS, default=None)
    """Steps between log lines (metrics.jsonl); none = 50, or fewer for at least 20 lines a run."""
    validate_every_steps: int | None = within(1, MOST_STEPS, default=None)
    """Steps between validations; none = at the end of each epoch."""
    progress: bool = True
    """Show a progress bar (without a terminal, a line per minute); validations are always shown."""

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ConfigError: A count is below one.
        """
        check_values(self)


@dataclass
class CheckpointConfig:
    """When to save checkpoints, and when to stop early.

    >>> from finetune import CheckpointConfig, FitRun
    >>> run = FitRun("runs/pretrained", "glue/cola", checkpoints=CheckpointConfig(patience=3))
    >>> run.checkpoints.patience
    3
    """

    checkpoint_every_steps: int = within(1, MOST_STEPS, default=500)
    """Steps between checkpoints to resume from; one is also saved at the end of the run."""
    patience: int | None = within(1, MOST_STEPS, default=None)
    """Stop after this many validations without improvement; none = never."""
    requeue: bool = False
    """In a SLURM job: when SIGUSR1 comes (sbatch --signal=USR1@120), save a checkpoint and requeue
    the job, which then continues by itself."""

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ConfigError: A count is below one.
        """
        check_values(self)


@dataclass
class CacheConfig:
    """The cache of the frozen layers' hidden states.

    >>> from finetune import CacheConfig, FitRun
    >>> run = FitRun("runs/pretrained", "glue/cola", caching=CacheConfig(cache_gib=2))
    >>> run.caching.cache_precision
    'fp32'
    """

    cache: bool = True
    """Compute the frozen layers once and cache their hidden states on disk."""
    cache_gib: float = within(0, 1_000_000, default=8.0)
    """Maximum size of the cache, in GiB; what does not fit is recomputed in each epoch."""
    cache_precision: str = field(default="fp32", metadata={"words": PRECISIONS})
    """fp32 (same results as without the cache) or bf16 (half the size, rounded to 8 bits)."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: A value is out of range.
        """
        check_values(self)


@dataclass
class RegularizationConfig:
    """Regularization for fine-tuning on small data; all of it is off unless set.

    >>> from finetune import RegularizationConfig
    >>> regularization = RegularizationConfig(mixout=0.1)
    >>> regularization.label_smoothing
    0.0
    """

    reinit_blocks: int = within(0, 10_000, default=0)
    """Number of top blocks (and the pooler) that start from new random weights."""
    mixout: float = within(0, 1, below=True, default=0.0)
    """Mixout: probability of using the pretrained weight instead of the trained one, in [0, 1)."""
    l2_sp: float = within(0, 1_000_000, default=0.0)
    """Strength of L2-SP, weight decay towards the pretrained weights (0.01 is usual)."""
    label_smoothing: float = within(0, 1, below=True, default=0.0)
    """Fraction of the target distribution spread evenly over all classes, in [0, 1)."""
    r_drop: float = within(0, 1_000_000, default=0.0)
    """R-Drop: weight of the divergence between two passes with dropout (1 to 5 is usual)."""
    lm_weight: float = within(0, 1_000_000, default=0.0)
    """Causal encoders: weight of the language-model loss on the same texts (GPT: 0.5)."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A probability lies outside [0, 1), or a strength is negative.
        """
        check_values(self)
