"""One function a run; everything is put together here and only here."""

from finetune.runs.adapting import adapt
from finetune.runs.fine_tuning import fit, folder_of
from finetune.runs.pretraining import make_tokenizer, pretrain

__all__ = ["adapt", "fit", "folder_of", "make_tokenizer", "pretrain"]
