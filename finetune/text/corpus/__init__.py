"""A corpus as blocks of token ids: documents, split, packing, masking, statistics."""
