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
from dataclasses import dataclass, fields
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.extras import require_extra
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName, Progress, follow
from thinwire.engine.models.fusion import fuse, fusion_width
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import Outputs
from thinwire.engine.models.tree_nodes import TreeNodes
from thinwire.job.own_code import CodeSources
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.predict.model_store import RunFolder, load_model
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.run_facts import RunFacts, read_facts

LOOKED_AT = 8  # rows that an export is checked on
_TOLERANCE = 1e-4  # of a value, or of 1: other kernels round otherwise


class ExportFailed(ThinwireError):
    """A model could not be written in another format, or came back as another one."""


@dataclass(frozen=True, eq=False)
class ExportedModels:
    """A run's models or one party's, a few rows for each of them, and what is worth saying beside them."""

    models: Mapping[str, nn.Module]
    rows: Mapping[str, Tensor]
    about: Mapping[str, Any]  # how embeddings meet, what the outputs mean

    @classmethod
    def of_run(
        cls, models: Mapping[str, nn.Module], tables: Mapping[PartyName, Tensor], fusion: str, outputs: Outputs
    ) -> ExportedModels:
        """A whole run: what goes into the top model follows from a few rows of every party."""
        with torch.no_grad():
            embeddings = [models[name].cpu().eval()(table) for name, table in tables.items()]
        about = {"fusion": {"how": fusion, "order": list(tables)}, "outputs": outputs.value}
        return cls(models, {**tables, "top": fuse(fusion, embeddings)}, about)


def export_models(
    run: Path, held: ExportedModels, to: str, out: Path, on_progress: Progress | None = None
) -> dict[str, Path]:
    """The files by model, the top model under "top"; `export.json` beside them says what each takes and gives."""
    kind = find_format(to)
    _make(out)
    found: dict[str, Path] = {}
    said: dict[str, Any] = {}
    for name, few in follow(held.rows.items(), on_progress, "models"):
        file, module = out / f"{name}{kind.suffix}", held.models[name].cpu().eval()
        if isinstance(module, BoostedTrees) and to != "onnx":
            raise ExportFailed(f"{name}: boosted trees cannot be exported as {to}; use onnx")
        inputs = few if len(few) >= 3 else few.repeat(3, *[1] * (few.dim() - 1))  # exporters take 1 for a fixed size
        with _quiet():
            try:
                kind.write(module, inputs, file)
                _compare(module, kind.read(file), inputs)
            except ExportFailed as error:
                raise ExportFailed(f"{name}: {error}") from error
            except Exception as error:
                why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise ExportFailed(f"{name}: {type(module).__name__} cannot be written as {to}: {why}") from error
        found[name] = file
        with torch.no_grad():
            width = list(module(inputs).shape[1:])
        said[name] = {"file": file.name, "input": ["rows", *inputs.shape[1:]], "output": ["rows", *width]}
    about = {"format": to, "models": said, **held.about, "preparations": _preparations(run, out)}
    (out / "export.json").write_text(json.dumps(about, indent=2) + "\n")
    return found


def _make(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} already exists and is not empty; give another folder")
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
                f"the exported model gives different outputs from the original on {len(rows)} rows: it does "
                "something that the format cannot express, such as branching on its data"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters speak of their own inner life."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
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
    _write(lambda buffer: torch.export.save(_program(module, inputs), buffer), file)


def _write_onnx(module: nn.Module, inputs: Tensor, file: Path) -> None:
    if isinstance(module, BoostedTrees):
        file.write_bytes(_describe_trees(module, inputs.shape[1]).SerializeToString())
        return
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


def _describe_trees(model: BoostedTrees, columns: int) -> Any:
    """An ONNX model of one operator, which adds up leaves as ours does: the same floats."""
    make = require_extra("onnx.helper", "an export to ONNX", "onnx")
    nodes, outputs = list(_list_nodes(model.nodes)), model.nodes.output.tolist()
    nodes, outputs = nodes or [_Node(0, 0, "LEAF")], outputs or [0]  # before anything was learned
    leaves = [one for one in nodes if one.modes == "LEAF"]
    trees = make.make_node(
        "TreeEnsembleRegressor",
        ["input"],
        ["output"],
        domain="ai.onnx.ml",
        n_targets=model.width,
        **{f"nodes_{key.name}": [getattr(one, key.name) for one in nodes] for key in fields(_Node)},
        target_treeids=[one.treeids for one in leaves],
        target_nodeids=[one.nodeids for one in leaves],
        target_ids=[outputs[one.treeids] for one in leaves],
        target_weights=[one.values for one in leaves],
    )
    values = [
        make.make_tensor_value_info(name, 1, ["rows", size])
        for name, size in (("input", columns), ("output", model.width))
    ]
    graph = make.make_graph([trees], "boosted_trees", [values[0]], [values[1]])
    versions = [make.make_opsetid("", 18), make.make_opsetid("ai.onnx.ml", 3)]
    return make.make_model(graph, opset_imports=versions, ir_version=9)


@dataclass(frozen=True)
class _Node:
    """As the operator has it, a field for each of its lists; a leaf's value is its weight."""

    treeids: int
    nodeids: int
    modes: str
    featureids: int = 0
    values: float = 0.0
    truenodeids: int = 0
    falsenodeids: int = 0
    missing_value_tracks_true: int = 0


def _list_nodes(nodes: TreeNodes) -> Iterator[_Node]:
    """A set of categories becomes a chain of comparisons with each of them."""
    fresh = count(len(nodes.feature))
    trees = np.searchsorted(nodes.root, np.arange(len(nodes.feature)), side="right") - 1
    for place, (left, right) in enumerate(nodes.child.tolist()):
        tree, feature = int(trees[place]), int(nodes.feature[place])
        if left == place:
            yield _Node(tree, place, "LEAF", values=float(nodes.value[place]))
        elif nodes.categories[place] < 0:
            most = _round_down(float(nodes.threshold[place]))
            yield _Node(tree, place, "BRANCH_LEQ", feature, most, left, right, int(nodes.gap_left[place]))
        else:
            at, (*codes, last) = place, nodes.list_categories(place)
            for code in codes:
                following = next(fresh)
                yield _Node(tree, at, "BRANCH_EQ", feature, float(code), left, following)
                at = following
            yield _Node(tree, at, "BRANCH_EQ", feature, float(last), left, right)


def _round_down(value: float) -> float:
    """The largest float32 up to it: a float32 is at most the one where it is at most the other."""
    near = np.float32(value)
    return float(near if near <= value else np.nextafter(near, np.float32(-np.inf)))


def _read_onnx(file: Path) -> Callable[[Tensor], Tensor]:
    reference = require_extra("onnx.reference", "an export to ONNX", "onnx").ReferenceEvaluator(str(file))
    return lambda rows: torch.from_numpy(reference.run(None, {"input": rows.numpy()})[0])


def _write_script(module: nn.Module, inputs: Tensor, file: Path) -> None:
    _write(lambda buffer: torch.jit.save(torch.jit.trace(module, (inputs,)), buffer), file)


def _write(save: Callable[[BytesIO], None], file: Path) -> None:
    """Not by torch itself, which ends the process where a disk is full."""
    buffer = BytesIO()
    save(buffer)
    file.write_bytes(buffer.getbuffer())


FORMATS: dict[str, _Format] = {
    "exported-program": _Format(".pt2", _write_program, lambda file: torch.export.load(file).module()),
    "onnx": _Format(".onnx", _write_onnx, _read_onnx, ("onnx", "onnxscript")),
    "torchscript": _Format(".ts", _write_script, lambda file: torch.jit.load(str(file))),
}


def find_format(to: str) -> _Format:
    """Refuses one that is unknown, or that needs what is not installed."""
    if to not in FORMATS:
        raise BadInput(f"{to!r} is not one of {', '.join(FORMATS)}{did_you_mean(to, FORMATS)}")
    FORMATS[to].require()
    return FORMATS[to]


def find_owner(folder: Path) -> PartyName | None:
    """The party whose part of a run over the network lies there; None for a whole run."""
    facts = read_facts(folder)
    return None if facts is None else facts.party


def export_party_models(
    folder: Path, to: str, out: Path, code: CodeSources | None = None, on_progress: Progress | None = None
) -> dict[str, Path]:
    """The files by model, as for a whole run; `export.json` says how all parties' would meet, as far as known."""
    find_format(to)
    run, facts = RunFolder(folder), read_facts(folder)
    if facts is None or facts.party is None:
        raise BadInput(
            f"{folder} is not one party's part of a run over the network; thinwire.load_run exports whole runs"
        )
    own = read_party_view(run.job, facts.party, code=code or CodeSources.parse())
    held = _collect_label_party(own, facts) if own.is_label_party else _collect_feature_party(own, facts)
    for name, module in held.models.items():
        load_model(folder, name, module)
    return export_models(folder, held, to, out, on_progress)


def _collect_feature_party(own: PartyView, facts: RunFacts) -> ExportedModels:
    party = own.load_features()
    about = {"party": own.me, "fusion": {"how": facts.fusion, "order": list(facts.widths)}, "outputs": None}
    rows = {own.me: torch.as_tensor(party.features[:LOOKED_AT])}
    return ExportedModels({own.me: party.bottom}, rows, about)


def _collect_label_party(own: PartyView, facts: RunFacts) -> ExportedModels:
    data = own.load_label_data()
    party = own.build_label_party(data, {name: width for name, width in facts.widths.items() if name != own.me})
    # Embeddings of others are not here; the top model is compared on some of their shape.
    width = fusion_width(party.fusion, list(facts.widths.values()))
    made_up = torch.randn(LOOKED_AT, width, generator=torch.Generator().manual_seed(0))
    models, rows = {"top": party.top}, {"top": made_up}
    if data.bottom is not None and data.features is not None:
        models[own.me], rows[own.me] = data.bottom, data.features[:LOOKED_AT]
    fusion, outputs = {"how": party.fusion, "order": list(facts.widths)}, Outputs.of(party.loss).value
    return ExportedModels(models, rows, {"party": own.me, "fusion": fusion, "outputs": outputs})
