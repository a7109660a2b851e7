"""A run's models in formats that others read: each bottom model and the top model by itself.

A bottom model takes its party's prepared features [rows, ...] and gives an embedding [rows, width]. The top model
takes the embeddings as the run's fusion puts them together, and gives outputs. Any number of rows fits. Every file is
read again and compared with the model, on other numbers of rows, before it counts as written.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.extras import require_extra
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.engine.models.fusion import fuse, fusion_width
from thinwire.engine.models.losses import Outputs
from thinwire.engine.programs.parties import FeatureParty
from thinwire.job.job_loader import LabelData, find_loss
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.job.schema import LabelEntry
from thinwire.predict.model_store import RunFolder, load_model
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.run_facts import RunFacts, read_facts

_TOLERANCE = 1e-4  # of a value, or of 1: other kernels round otherwise


class ExportFailed(ThinwireError):
    """A model could not be written in another format, or came back as another one."""


class ExportInputs(Protocol):
    """What goes into a run's models, and what is worth saying beside them."""

    def inputs(self, models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """A few rows for each model."""

    def about(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class RunInputs:
    """Of a whole run: a few rows of every party, how embeddings meet, what the outputs mean."""

    tables: Mapping[PartyName, Tensor]
    fusion: str
    outputs: Outputs

    def inputs(self, models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        rows = {name: repeat_rows(table) for name, table in self.tables.items()}
        with torch.no_grad():
            embeddings = [models[name].cpu().eval()(table) for name, table in rows.items()]
            return {**rows, "top": fuse(self.fusion, embeddings)}

    def about(self) -> dict[str, Any]:
        return {"fusion": {"how": self.fusion, "order": list(self.tables)}, "outputs": self.outputs.value}


def export_models(
    run: Path, models: Mapping[str, nn.Module], shape: ExportInputs, to: str, out: Path
) -> dict[str, Path]:
    """The files by model, the top model under "top"; `export.json` beside them says what each takes and gives."""
    if to not in FORMATS:
        raise BadInput(f"{to!r} is not one of {', '.join(FORMATS)}{did_you_mean(to, FORMATS)}")
    kind = FORMATS[to]
    kind.require()
    _make(out)
    found: dict[str, Path] = {}
    said: dict[str, Any] = {}
    for name, inputs in shape.inputs(models).items():
        file = out / f"{name}{kind.suffix}"
        module = models[name].cpu().eval()
        with _quiet():
            try:
                kind.write(module, inputs, file)
                same = kind.read(file)
                _compare(module, same, inputs)
            except ExportFailed as error:
                raise ExportFailed(f"{name}: {error}") from error
            except Exception as error:
                why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise ExportFailed(f"{name}: {type(module).__name__} cannot be written as {to}: {why}") from error
        found[name] = file
        with torch.no_grad():
            width = list(module(inputs).shape[1:])
        said[name] = {"file": file.name, "input": ["rows", *inputs.shape[1:]], "output": ["rows", *width]}
    about = {
        "format": to,
        "models": said,
        **shape.about(),
        "preparations": _preparations(run, out),
    }
    (out / "export.json").write_text(json.dumps(about, indent=2) + "\n")
    return found


def repeat_rows(table: Tensor) -> Tensor:
    """Three rows at least: exporters take 1 for a fixed size."""
    return table if len(table) >= 3 else table.repeat(3, *[1] * (table.dim() - 1))


def _make(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is there already and not empty; give another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}") from None


def _preparations(run: Path, out: Path) -> list[str]:
    """How tables became features belongs to the models; it is no part of them."""
    files = sorted((run / layout.MODELS).glob("*.json"))
    for file in files:
        (out / file.name).write_bytes(open_folder(run).read(file))
    return [file.name for file in files]


def _compare(module: nn.Module, same: Callable[[Tensor], Tensor], inputs: Tensor) -> None:
    for rows in (inputs, inputs[:1], torch.cat([inputs, inputs.flip(0)])):
        with torch.no_grad():
            wanted, got = module(rows), same(rows)
        if wanted.shape != got.shape or not torch.allclose(wanted, got, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ExportFailed(
                f"what was written gives other numbers than the model on {len(rows)} rows: it does something that "
                "the format cannot say, such as a branch on its data"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters speak of their own inner life."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# Formats ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Format:
    suffix: str
    write: Callable[[nn.Module, Tensor, Path], None]
    read: Callable[[Path], Callable[[Tensor], Tensor]]
    modules: Sequence[str] = ()  # that it needs beside torch

    def require(self) -> None:
        for module in self.modules:
            require_extra(module, "an export to ONNX", "onnx")


def _program(module: nn.Module, inputs: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (inputs,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False)


def _write_program(module: nn.Module, inputs: Tensor, file: Path) -> None:
    torch.export.save(_program(module, inputs), file)


def _read_program(file: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(file).module()


def _write_onnx(module: nn.Module, inputs: Tensor, file: Path) -> None:
    torch.onnx.export(
        _program(module, inputs),
        (),
        file,
        input_names=["input"],
        output_names=["output"],
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _read_onnx(file: Path) -> Callable[[Tensor], Tensor]:
    reference = require_extra("onnx.reference", "an export to ONNX", "onnx").ReferenceEvaluator(str(file))
    return lambda rows: torch.from_numpy(reference.run(None, {"input": rows.numpy()})[0])


def _write_script(module: nn.Module, inputs: Tensor, file: Path) -> None:
    torch.jit.save(torch.jit.trace(module, (inputs,)), str(file))


def _read_script(file: Path) -> Callable[[Tensor], Tensor]:
    found: Callable[[Tensor], Tensor] = torch.jit.load(str(file))
    return found


FORMATS: dict[str, _Format] = {
    "exported-program": _Format(".pt2", _write_program, _read_program),
    "onnx": _Format(".onnx", _write_onnx, _read_onnx, ("onnx", "onnxscript")),
    "torchscript": _Format(".ts", _write_script, _read_script),
}


_LOOKED_AT = 8  # rows that an export is checked on


def find_owner(folder: Path) -> PartyName | None:
    """The party whose part of a run over the network lies there; None for a whole run."""
    facts = read_facts(folder)
    return None if facts is None else facts.party


def export_party_models(folder: Path, to: str, out: Path) -> dict[str, Path]:
    """The files by model, as for a whole run; `export.json` says how all parties' would meet, as far as known."""
    run, facts = RunFolder(folder), read_facts(folder)
    if facts is None or facts.party is None:
        raise BadInput(f"{folder} is no party's part of a run over the network; thinwire.load_run exports whole runs")
    own = read_party_view(run.job, facts.party)
    if own.is_label_party:
        models, shape = _of_label_party(own, own.load_label_data(), facts)
    else:
        models, shape = _of_feature_party(own, own.load_features(), facts)
    for name, module in models.items():
        load_model(folder, name, module)
        module.eval()
    return export_models(folder, models, shape, to, out)


@dataclass(frozen=True, eq=False)
class _PartyInputs:
    """A few rows for each of its models, and how they belong to the others'."""

    rows: Mapping[str, Tensor]
    said: Mapping[str, Any]

    def inputs(self, models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {name: repeat_rows(rows) for name, rows in self.rows.items()}

    def about(self) -> dict[str, Any]:
        return dict(self.said)


def _of_feature_party(
    own: PartyView, party: FeatureParty, facts: RunFacts
) -> tuple[dict[str, nn.Module], _PartyInputs]:
    rows = torch.as_tensor(party.features[:_LOOKED_AT])
    said = {"party": own.me, "fusion": {"how": facts.fusion, "order": list(facts.widths)}, "outputs": None}
    return {own.me: party.bottom}, _PartyInputs({own.me: rows}, said)


def _of_label_party(own: PartyView, data: LabelData, facts: RunFacts) -> tuple[dict[str, nn.Module], _PartyInputs]:
    if not isinstance(own.section, LabelEntry):
        raise BadInput(f"{own.me!r} is no label party")
    widths = {name: width for name, width in facts.widths.items() if name != own.me}
    party = own.build_label_party(data, widths)
    models, rows = {"top": party.top}, {"top": _made_up(fusion_width(party.fusion, list(facts.widths.values())))}
    if data.bottom is not None and data.features is not None:
        models[own.me], rows[own.me] = data.bottom, data.features[:_LOOKED_AT]
    said = {
        "party": own.me,
        "fusion": {"how": party.fusion, "order": list(facts.widths)},
        "outputs": Outputs.of(find_loss(own.section)).value,
    }
    return models, _PartyInputs(rows, said)


def _made_up(width: int) -> Tensor:
    """Embeddings of others are not here; the top model is compared on some of their shape."""
    return torch.randn(_LOOKED_AT, width, generator=torch.Generator().manual_seed(0))
