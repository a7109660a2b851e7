"""The names of everything in a run's folder: what is on disk, and which of it tells of single rows.

Encrypted, where a run is: DATA, QUALITY, MODELS, CHECKPOINTS, PRIVATE, SENT, ANSWERS, CHARGES, SERVING, FORGOTTEN.
"""

from __future__ import annotations

import re
from pathlib import Path

# The run as a whole: settings, sums over rows, weights, secrets. No value of a single row.
JOB = "job.toml"  # as it was resolved
RUN = "run.json"  # which version wrote the folder, and who took part
DATA = "data.json"  # digests of the data
RECIPE = "recipe.json"  # as its digest sees it
ABOUT = "about.json"  # who takes part, with what; written as the run begins
EVENTS = "events.jsonl"  # one line an evaluation
HEARTBEAT = "pulse.json"  # the last sign of life: where time and bytes go, one round in detail
TIMELINE = "timeline.jsonl"  # now and then, where the time went
LOG = "log.jsonl"  # what a party's process did
LEDGER = "ledger.json"  # bytes and messages by sender, receiver and kind; written at the end
QUALITY = "quality.json"  # how good the model is on the test rows, counted
RESULT = "result.json"  # the run's summary, once it has ended
REPORT = "report.html"  # all of this, for people
DONE = "done.json"  # the summary of a run that is one of many
MODEL = "model.json"  # who is who, and how their models belong together
MODELS = "models"  # <party>.safetensors; <party>.preparation.json, <party>.labels.json: how a table became features
LAST = "last"  # below MODELS: the weights after the last round, where those of the best evaluation are delivered
PEERS = "peers.json"  # what a party remembers of the others
SERVING = "serving.json"  # which models the others offered
CHARGES = "charges.jsonl"  # of the privacy ledger
PRIVATE = "private.json"  # secrets of the noise and of the checkpoints' MAC, and the newest generation
ENCRYPTION = "encryption.json"  # where the run is encrypted: which key opens it
FORGOTTEN = "forgotten.jsonl"  # rows that were erased
LOCK = "lock"
LOCK_GUARD = "lock.guard"

# These tell of single rows.
CHECKPOINTS = "checkpoints"  # two generations of surrogates, worksets, shared labels: a value or more for every row
SENT = "sent"  # what was sent, to be sent again after a failure
ANSWERS = "answers"
NEW_ROWS = "new-rows"  # which of a party's new rows the others have too

_NAMES = frozenset(value for name, value in dict(globals()).items() if name.isupper() and isinstance(value, str))
_NUMBERED = re.compile(r"incarnation-\d+|lock\.[0-9a-f]+|charges(-[A-Za-z0-9_-]+)?\.(jsonl|lock)")


def is_known(name: str) -> bool:
    """Whether a run of ours writes a file or folder of this name."""
    return name in _NAMES or _NUMBERED.fullmatch(name) is not None


def model_file(folder: Path, name: str) -> Path:
    """The weights of a party's bottom model, or of "top"."""
    return folder / MODELS / f"{name}.safetensors"


def last_model_file(folder: Path, name: str) -> Path:
    """The weights after the last round, where another round's are delivered."""
    return folder / MODELS / LAST / f"{name}.safetensors"


def model_files(folder: Path) -> list[Path]:
    return sorted((folder / MODELS).glob("*.safetensors"))


def metadata_file(folder: Path, party: str, what: str) -> Path:
    """What a party's model needs beside its weights, as JSON; or a table of it, as CSV."""
    return folder / MODELS / f"{party}.{what if what.endswith('.csv') else f'{what}.json'}"
