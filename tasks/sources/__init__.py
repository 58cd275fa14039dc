"""Where the data of a task come from: archives, tables, the hub."""
