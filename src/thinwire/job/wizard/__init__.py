"""Job files from a look at files: types, gaps, the id they share, a template for the case."""

from thinwire.job.wizard.answers import CoreAnswers, JobAnswers, PartAnswers
from thinwire.job.wizard.job_writer import WrittenJob, write_job
from thinwire.job.wizard.split_files import WrittenCore, WrittenPart, write_core, write_part
from thinwire.job.wizard.templates import TEMPLATES

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
