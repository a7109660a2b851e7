"""Job files from a look at files: types, gaps, the id they share, a template for the case."""

from thinwire.job.wizard.answers import TEMPLATES, CoreAnswers, JobAnswers, PartAnswers
from thinwire.job.wizard.job_writer import WrittenCore, WrittenJob, WrittenPart, write_core, write_job, write_part

__all__ = ["TEMPLATES", "CoreAnswers", "JobAnswers", "PartAnswers", "WrittenCore", "WrittenJob", "WrittenPart"]
__all__ += ["write_core", "write_job", "write_part"]
