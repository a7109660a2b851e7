"""A job file from a look at the parties' files: types, gaps, the id they share, a template for the case."""

from thinwire.init.asked import Asked
from thinwire.init.draft import Written, written_job
from thinwire.init.templates import TEMPLATES

__all__ = ["TEMPLATES", "Asked", "Written", "written_job"]
