"""Read and write folders of Hugging Face: settings and weights, in both directions.

In this package "ours" means this framework's settings, keys and tensors, and "theirs" those of
`transformers`. Reading order: form (the columns of a table), forms (the tables), files, reading,
writing. `transformers` itself is not needed.
"""

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.checkpoints.hf.files import is_hf_folder
    from finetune.checkpoints.hf.form import Form
    from finetune.checkpoints.hf.forms import FORMS, OWN
    from finetune.checkpoints.hf.reading import Imported, read_hf
    from finetune.checkpoints.hf.writing import (
        export_form,
        export_lacks,
        exports_as,
        their_weights,
    )

__all__ = [
    "FORMS",
    "OWN",
    "Form",
    "Imported",
    "export_form",
    "export_lacks",
    "exports_as",
    "is_hf_folder",
    "read_hf",
    "their_weights",
]

__getattr__ = lazy_names(__name__, __all__, ("files", "form", "forms", "writing", "reading"))
