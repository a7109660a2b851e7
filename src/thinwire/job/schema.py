"""What a job file may hold. Tables that name a method, compressor, model or optimiser are read by `calls`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["JobFile", "LabelSection", "LabelSource", "LinkSection", "PartySection", "Section", "Source"]

Table = dict[str, Any]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """No unknown keys; a number in quotes is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(Section):
    """Features: an array of an NPZ file, or columns of a table."""

    file: str
    key: str | None = None
    columns: list[str] | None = None
    all_but: list[str] | None = None
    delimiter: Delimiter | None = None  # a comma


class LabelSource(Section):
    """Labels: an array of an NPZ file, or one column of a table."""

    file: str
    key: str | None = None
    column: str | None = None
    delimiter: Delimiter | None = None  # a comma


class Target(Section):
    metric: str
    value: Finite


class JobSection(Section):
    """How long, how often, and until when."""

    epochs: Positive = 10
    batch_size: Count | None = None
    batches: Literal["derived", "announced"] = "derived"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    eval_every: Count | None = None
    metrics: list[str] = ["accuracy"]
    target: Target | None = None
    stop: bool = True
    byte_budget: Count | None = None
    link_seconds_budget: Positive | None = None
    diagnostics: bool = True
    effort: Literal["small", "fast"] = "small"
    device: str = "cpu"


class LinkSection(Section):
    """The simulated link; `parties` holds whole links for single feature parties."""

    bandwidth_mbit: Positive | None = None
    latency_ms: Annotated[Finite, Field(ge=0)] = 0.0
    down_bandwidth_mbit: Positive | None = None
    down_latency_ms: Annotated[Finite, Field(ge=0)] | None = None
    compute_ms: Annotated[Finite, Field(ge=0)] | None = None
    parties: dict[str, LinkSection] | None = None


class PartySection(Section):
    """A feature party."""

    name: str
    features: Source
    test_features: Source | None = None
    model: Table
    optimizer: Table | None = None


class LabelSection(Section):
    """The label party; features and model are its own, where it has any."""

    name: str
    labels: LabelSource
    test_labels: LabelSource | None = None
    features: Source | None = None
    test_features: Source | None = None
    model: Table | None = None
    top: Table
    fusion: Literal["sum", "mean", "concat"] = "sum"
    loss: str = "cross_entropy"
    class_weights: list[float] | None = None
    optimizer: Table | None = None


class JobFile(Section):
    """A whole job file."""

    job: JobSection = JobSection()
    recipe: Table
    optimizer: Table = {"name": "sgd", "lr": 0.1}
    link: LinkSection | None = None
    party: Annotated[list[PartySection], Field(min_length=1)]
    label_party: LabelSection
