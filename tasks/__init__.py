"""The benchmark tasks: each reads its official files and writes its official answers."""
