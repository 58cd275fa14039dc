"""Taking a finished run elsewhere: folders that other libraries read, each with a model card.

`source` finds what is exported, `place` guards the folder it goes to, `card` writes the README.md,
`hf` and `onnx` write the two forms.
"""
