"""Elementary baselines: what words alone say, by a regression of a second or without training.

A net that was fine-tuned is worth its time where it scores above these. They are fitted on the
training split alone, with nothing to tune, and give the same answers each time. Which of them apply
to a task is read off the form of its examples: `finetune.elementary.baselines`.
"""

TRIVIAL = "trivial"
"""Name of the baseline that reads no text: the most frequent label, the mean, or no answer."""
