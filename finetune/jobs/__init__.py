"""One function a run; everything is put together here and only here."""

from finetune.jobs.adapt import adapt
from finetune.jobs.fit import fit, folder_of
from finetune.jobs.pretrain import make_tokenizer, pretrain

__all__ = ["adapt", "fit", "folder_of", "make_tokenizer", "pretrain"]
