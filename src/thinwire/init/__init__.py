"""Job files from a look at files: types, gaps, the id they share, a template for the case."""

from thinwire.init.answers import CoreAnswers, JobAnswers, PartAnswers
from thinwire.init.job_writer import WrittenJob, write_job
from thinwire.init.split_files import WrittenCore, WrittenPart, write_core, write_part
from thinwire.init.templates import TEMPLATES

__all__ = [
    "TEMPLATES",
    "CoreAnswers",
    "JobAnswers",
    "PartAnswers",
    "WrittenCore",
    "WrittenJob",
    "WrittenPart",
    "write_core",
    "write_job",
    "write_part",
]
