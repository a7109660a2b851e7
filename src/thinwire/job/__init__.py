"""A job: who trains what, by which recipe, for how long; and training it in this process."""

from thinwire.job.job import Job
from thinwire.job.result import Result
from thinwire.job.training import train

__all__ = ["Job", "Result", "train"]
