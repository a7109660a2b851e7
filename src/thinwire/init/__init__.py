"""Job files from a look at files: types, gaps, the id they share, a template for the case."""

from thinwire.init.asked import Asked, AskedCore, AskedPart
from thinwire.init.core import WrittenCore, written_core
from thinwire.init.draft import Written, written_job
from thinwire.init.part import WrittenPart, written_part
from thinwire.init.templates import TEMPLATES

__all__ = [
    "TEMPLATES",
    "Asked",
    "AskedCore",
    "AskedPart",
    "Written",
    "WrittenCore",
    "WrittenPart",
    "written_core",
    "written_job",
    "written_part",
]
