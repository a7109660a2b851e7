"""Commands in this process."""

from cli.conftest import here

__all__ = ["here"]
