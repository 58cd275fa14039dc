"""One function a run; everything is put together here and only here."""

from finetune.jobs.adapting import adapt
from finetune.jobs.fine_tuning import fit
from finetune.jobs.pretraining import make_tokenizer, pretrain

__all__ = ["adapt", "fit", "make_tokenizer", "pretrain"]
