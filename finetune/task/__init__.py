"""What the library knows of a task: its interface, and how outputs become answers."""

from finetune.task.interface import Answer, Example, Task

__all__ = ["Answer", "Example", "Task"]
