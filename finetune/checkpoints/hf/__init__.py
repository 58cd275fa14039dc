"""Folders of Hugging Face: their settings and weights into ours, and ours into theirs.

Reading order: form (what a table holds), forms (the tables), files, reading, writing. It needs no
`transformers`.
"""

from finetune.checkpoints.hf.form import Form
from finetune.checkpoints.hf.forms import FORMS
from finetune.checkpoints.hf.reading import Imported, is_hf_folder, read_hf
from finetune.checkpoints.hf.writing import export_form, their_weights

__all__ = [
    "FORMS",
    "Form",
    "Imported",
    "export_form",
    "is_hf_folder",
    "read_hf",
    "their_weights",
]
