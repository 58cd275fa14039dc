"""What the library knows of a task: its interface, and how outputs become answers."""
