"""Export a finished run: folders that other libraries read, each with a model card.

`source` finds the checkpoint to export, `place` checks the output folder, `card` writes the
README.md, `hf` and `onnx` write the two formats.
"""
