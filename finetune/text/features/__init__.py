"""Examples as token ids: pairs, windows of long texts, options; and rows of users' files."""
