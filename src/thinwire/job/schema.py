"""What a job file may hold. Tables that name a method, compressor, model or optimiser are read by `calls`.

The simulator reads a whole job, `JobFile`. One party over the network reads a `RosterFile`: of the others it
needs the names only, and of its own section what `PartySection` or `LabelSection` asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from thinwire.data.prepare import Settings
from thinwire.data.prepare.settings import FOR_TREES, Finite, StrictModel
from thinwire.data.readers.sources import TableOrigin, require_no_secret
from thinwire.data.readers.text_format import Decimal, TextFormat, Thousands
from thinwire.net.links.endpoint import Endpoint

Table = dict[str, Any]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


def _place(text: str) -> str:
    return str(Endpoint.parse(text))


def _callable_place(text: str) -> str:
    place = Endpoint.parse(text)
    if not place.is_callable:
        raise ValueError(f"must be a host and port that others can reach, got {text!r}")
    return str(place)


def _approval(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{12,64}", text):
        raise ValueError(f"must be the digest of an agreement, or 12 or more of its first hex digits, got {text!r}")
    return text.lower()


class JobFileSection(StrictModel):
    """No unknown keys; a number in quotes is not a number."""


class FileSource(JobFileSection):
    """A file, a folder or an address of data, or a query; and how a CSV file writes its cells."""

    file: str | None = None
    sql: Text | None = None  # a query, of the database that `connection` names
    connection: Text | None = None  # a file or an address without a password; "$NAME": an environment variable has it
    key: str | None = None
    delimiter: Delimiter | None = None  # a comma
    encoding: Text | None = None  # UTF-8
    decimal: Decimal | None = None  # a point
    thousands: Thousands | None = None  # not grouped

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        _ = self.text_format
        for address in (self.file, self.connection):
            require_no_secret(address or "")
        if (self.file is None) == (self.sql is None) or (self.sql is None) != (self.connection is None):
            raise ValueError('takes either file = "..." or both sql = "SELECT ..." and connection = "..."')
        return self

    def find_origin(self, folder: Path) -> TableOrigin:
        """Where the data is; paths start from the job file's folder."""
        return TableOrigin(folder, self.file, self.sql, self.connection)

    @property
    def text_format(self) -> TextFormat:
        return TextFormat(self.delimiter or ",", self.encoding or "utf-8", self.decimal or ".", self.thousands)


class Source(FileSource):
    """Features: an array of an NPZ file, or columns of a table."""

    columns: list[str] | None = None
    all_but: list[str] | None = None


class ColumnSource(FileSource):
    """Labels or row ids: an array of an NPZ file, or one column of a table."""

    column: str | None = None


class LabelSource(ColumnSource):
    """Labels with a task are read from text or numbers, their classes' names kept; without, they are numbers."""

    task: Literal["auto", "binary", "multiclass", "regression"] | None = None
    classes: Annotated[list[Text], Field(min_length=2)] | None = None  # in their order; sorted unless given


Share = Annotated[Finite, Field(ge=0, lt=1)]


class SplitSection(JobFileSection):
    """Which rows train, by a keyed hash of each row's id: the same at every party, without talking."""

    test: Share = 0.2
    validation: Share = 0.0  # they steer: early stopping, the best model, targets; test rows then wait for the end
    key: str = "thinwire"  # another key, another split
    evaluate: Literal["test", "validation"] | None = None  # in files of earlier versions; has no effect


class Target(JobFileSection):
    metric: str
    value: Finite


class BudgetSection(JobFileSection):
    """Of privacy: what no row of a feature party may lose more than."""

    epsilon: Positive
    delta: Annotated[Finite, Field(gt=0, lt=1)] = 1e-5
    observer: Literal["label_party", "feature_party", "all_others"] = "label_party"


class JobSection(JobFileSection):
    """How long, how often, and until when."""

    epochs: Positive = 10.0
    batch_size: Count | None = None
    batches: Literal["derived", "announced"] = "derived"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    eval_every: Count | None = None
    metrics: list[str] = ["accuracy"]
    target: Target | None = None
    stop: bool = True
    patience: Count | None = None  # evaluations without a better validation score, then the run stops
    deliver: Literal["best", "last"] = "best"
    byte_budget: Count | None = None
    link_seconds_budget: Positive | None = None
    diagnostics: bool = False  # gradient norm, distortion and scores on training rows at every evaluation
    baselines: bool = False  # plain models beside this one, trained at the end of the run
    importance: bool = False  # of parties, and of columns that are at hand, at the end; nothing is sent for it
    column_importance: bool = False  # of feature parties' columns over the network: an exchange at the end
    effort: Literal["small", "fast"] = "small"
    device: str = "cpu"
    memory_limit_mb: Annotated[Finite, Field(ge=0)] = 4096.0  # of each surrogate, and of a workset
    scratch: Text | None = None  # a folder for what is larger
    training: str | Table = "raw_rows"  # of the bottom models
    budget: BudgetSection | None = None
    split: SplitSection | None = None  # test rows come from the same tables as training rows


class PretrainSection(JobFileSection):
    """Networks learn from their party's own rows, aligned or not, before the first round; no label, no message."""

    epochs: Count = 10
    lr: Positive = 0.001
    batch_rows: Annotated[int, Field(ge=2)] = 256
    hidden_share: Annotated[Finite, Field(ge=0, lt=1)] = 0.25


class LinkSection(JobFileSection):
    """The simulated link; `parties` holds whole links for single feature parties."""

    bandwidth_mbit: Positive | None = None
    latency_ms: Annotated[Finite, Field(ge=0)] = 0.0
    down_bandwidth_mbit: Positive | None = None
    down_latency_ms: Annotated[Finite, Field(ge=0)] | None = None
    compute_ms: Annotated[Finite, Field(ge=0)] | None = None
    parties: dict[str, LinkSection] | None = None


class NetworkSection(JobFileSection):
    """Where the parties meet, and how long they wait for each other."""

    listen: Annotated[str, AfterValidator(_place)] | None = None
    address: Annotated[str, AfterValidator(_callable_place)] | None = None
    certs: Text = "certs"
    wait_seconds: Positive = 600.0
    checkpoint_seconds: Positive = 10.0
    max_message_mb: Positive | None = None
    share_log: bool = False  # at the label party: others may ask what happened


class ServeSection(JobFileSection):
    """How the label party answers on-line."""

    http: Annotated[str, AfterValidator(_place)] = "127.0.0.1:8080"
    max_batch: Annotated[int, Field(ge=1, le=1 << 16)] = 256  # rows that go together
    max_wait_ms: Annotated[Finite, Field(ge=0, le=10_000)] = 2.0  # for others to go with, under load
    deadline_ms: Annotated[Finite, Field(ge=1, le=600_000)] = 1000.0  # of a request that states none
    max_rows: Annotated[int, Field(ge=1, le=1 << 16)] = 10_000  # of one request
    max_body_mb: Positive = 4.0
    clients: list[Text] = []  # names in certificates that may ask over gRPC
    hosts: list[Text] = []  # names that HTTP requests may call it by, beside its addresses


class ServeTerms(JobFileSection):
    """What a feature party allows on-line beyond its answers."""

    cache_rows: Count | None = None  # of its embeddings that the label party may keep
    cache_seconds: Positive = 60.0
    when_missing: Literal["error", "zeros", "mean"] = "error"  # mean: of its training rows' embeddings


class RetentionSection(JobFileSection):
    """In days after the run's end, 0: at once; how many generations of checkpoints. Everyone's own matter."""

    checkpoints_days: Annotated[Finite, Field(ge=0)] | None = None
    checkpoints_count: Annotated[int, Field(ge=1, le=2)] | None = None
    messages_days: Annotated[Finite, Field(ge=0)] | None = None
    logs_days: Annotated[Finite, Field(ge=0)] | None = None


class EncryptionSection(JobFileSection):
    """Without the key, nobody reads what the run's folder tells of rows, values or weights. Everyone's own matter."""

    key: Text  # a file, as `thinwire key FILE` makes it


def is_trees(model: Any) -> bool:
    """Does a section's table name boosted trees?"""
    return _name(model) == "boosted_trees"


def takes_raw_columns(model: Any) -> bool:
    """Does a section's table name a model of columns as they are, with missing values and codes?"""
    return _name(model) in ("boosted_trees", "scorecard", "bins", "raw_columns")


def _name(model: Any) -> str | None:
    return str(model.get("name")).lower() if isinstance(model, dict) else None


class PartyEntry(JobFileSection):
    """A feature party as the others may see it: by name."""

    name: str
    features: Source | None = None
    test_features: Source | None = None
    prepare: Settings | None = None  # features are a table of any columns; without it, of numbers
    model: Table | None = None
    optimizer: Table | None = None
    ids: ColumnSource | None = None
    test_ids: ColumnSource | None = None
    alignment: Text | None = None  # which of the rows are shared, as `thinwire align` wrote it; needs ids
    test_alignment: Text | None = None
    group: Text | None = None  # a row here owns many of the run's: the label party's column of our ids; needs ids
    certificate: Text | None = None
    key: Text | None = None
    authority: Text | None = None
    revoked: Text | None = None
    certificate_name: Text | None = None  # the party's name
    approved: Annotated[str, AfterValidator(_approval)] | None = None
    serve: ServeTerms | None = None
    parallel: Literal["ddp", "fsdp2"] | None = None  # under torchrun: is all of the model at every rank, or a part?

    @model_validator(mode="before")
    @classmethod
    def _prepare_for_model(cls, table: Any) -> Any:
        """Trees, bins and scorecards take a table as it is, where the section says nothing else."""
        settings = table.get("prepare") if isinstance(table, dict) else None
        if isinstance(settings, dict) and takes_raw_columns(table.get("model")):
            return {**table, "prepare": {**FOR_TREES, **settings}}
        return table

    @property
    def has_trees(self) -> bool:
        return is_trees(self.model)

    @property
    def has_encoder(self) -> bool:
        """Is the model fitted to its party's own rows, without labels?"""
        return _name(self.model) in ("principal_directions", "bins", "pretrained")

    @property
    def takes_gaps(self) -> bool:
        return takes_raw_columns(self.model)

    @property
    def path(self) -> str:
        """Where it stands in a job file, dotted."""
        return f"party.{self.name}"

    @property
    def test_source(self) -> Source | ColumnSource | None:
        """Where test rows come from, if from a table of their own."""
        return self.test_features

    @property
    def id_column(self) -> str | None:
        """By which rows are ordered that come in no order."""
        return None if self.ids is None else self.ids.column

    @property
    def test_id_column(self) -> str | None:
        return None if self.test_ids is None else self.test_ids.column


class PartySection(PartyEntry):
    """A feature party as it describes itself."""

    features: Source
    model: Table


class LabelEntry(PartyEntry):
    """The label party as the others may see it: by name, and its top model under shared labels."""

    group: None = None  # its rows are the run's
    labels: LabelSource | None = None
    test_labels: ColumnSource | None = None
    top: Table | None = None
    fusion: Literal["sum", "mean", "concat"] = "sum"
    loss: str = "cross_entropy"
    class_weights: list[float] | None = None

    @property
    def path(self) -> str:
        return "label_party"

    @property
    def test_source(self) -> Source | ColumnSource | None:
        return self.test_labels


class LabelSection(LabelEntry):
    """The label party as it describes itself; features and model are its own, where it has any."""

    labels: LabelSource
    top: Table


class _Shared(JobFileSection):
    """What all parties of a job read alike; the network's places and files may differ."""

    job: JobSection = JobSection()
    recipe: Table
    optimizer: Table = {"name": "sgd", "lr": 0.1}
    pretrain: PretrainSection | None = None
    link: LinkSection | None = None
    network: NetworkSection | None = None
    serve: ServeSection | None = None
    retention: RetentionSection | None = None
    encryption: EncryptionSection | None = None


class JobFile(_Shared):
    """A whole job."""

    party: Annotated[list[PartySection], Field(min_length=1)]
    label_party: LabelSection

    @property
    def has_trees(self) -> bool:
        """Is a party's bottom model made of trees?"""
        return any(section.has_trees for section in (*self.party, self.label_party))


class RosterFile(_Shared):
    """A job as one of its parties needs it."""

    party: Annotated[list[PartyEntry], Field(min_length=1)]
    label_party: LabelEntry


SCHEMA_VERSION = 1  # a new one where a job file that was right would be refused

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """A whole job, or one party's file that includes the rest. Arguments of named things are not in it."""
    from thinwire.engine.methods import METHODS
    from thinwire.engine.models import OPTIMIZERS

    whole, part = (kind.model_json_schema(ref_template="#/$defs/{model}") for kind in (JobFile, RosterFile))
    definitions = {**part.pop("$defs"), **whole.pop("$defs")}
    part["properties"]["include"] = {
        "type": "string",
        "minLength": 1,
        "description": "The file that all parties share.",
    }
    part["required"] = ["include"]
    for document in (whole, part):
        document["properties"]["recipe"] = _named("method", METHODS)
        document["properties"]["optimizer"] |= _named("name", OPTIMIZERS)
    return {
        "$schema": _DRAFT,
        "$id": f"job-{SCHEMA_VERSION}.json",
        "title": "A job file of thinwire",
        "anyOf": [whole, part],
        "$defs": definitions,
    }


def _named(word: str, kinds: Iterable[str]) -> dict[str, Any]:
    """A table that names a thing, in any case, and holds its arguments."""
    names = sorted(kinds)
    spelled = {"anyOf": [{"enum": names}, {"type": "string"}], "description": f"One of {', '.join(names)}."}
    return {"type": "object", "properties": {word: spelled}, "required": [word]}
