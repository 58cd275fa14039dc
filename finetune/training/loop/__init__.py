"""The loop of training: data in order, Lightning modules, checkpoints, resuming, progress."""
