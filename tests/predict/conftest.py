"""Commands in this process, where a process of their own would add nothing."""

from cli.conftest import here

__all__ = ["here"]
