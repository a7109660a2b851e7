"""Tables that name a thing and its arguments: `{ name = "TopK", fraction = 0.01 }`.

What may stand there follows from the thing's own signature, and its own checks judge the values; here they
only learn where in the job file they stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import torch
from torch import nn

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.seeds import derive_seed
from thinwire.engine.compress import COMPRESSORS, Compressor, Diminishing, DiminishingError, Milestones
from thinwire.engine.compress.randomness import keep_generator
from thinwire.engine.methods import METHODS
from thinwire.engine.models import (
    LOSSES,
    MODELS,
    OPTIMIZERS,
    STEP_SIZES,
    InteractionTop,
    OptimizerSpec,
    cross_entropy,
)
from thinwire.engine.models.losses import choose_curvature
from thinwire.engine.models.pretraining import Pretraining
from thinwire.engine.models.regression import Linear
from thinwire.engine.privacy import Plain, SecureSum
from thinwire.engine.privacy.accounting import Budget, Observer
from thinwire.engine.privacy.accounting.ledger import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.defences import Defence, LabelDP, Marvell, MaxNorm, NoDefence
from thinwire.engine.privacy.dp_bottom import DPBottom, Training
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import Storage
from thinwire.job.messages import at
from thinwire.job.own_code import CodeSources
from thinwire.job.schema import JobSection, LabelEntry, PartyEntry, PretrainSection, is_trees
from thinwire.job.settings import RunSettings

T = TypeVar("T")
AnyEntry = TypeVar("AnyEntry", bound=PartyEntry)

_SAME = {"reuse": "local_steps", "steps": "local_steps"}  # what parts call an argument of their method
_NONE = "none"  # TOML has no word for it
_ON_OUTAGE = ("wait", "continue")
_COMPRESSORS: dict[str, Callable[..., Compressor]] = {kind.__name__: kind for kind in COMPRESSORS}
_DEFENCES: dict[str, Callable[..., Defence]] = {one.__name__: one for one in (NoDefence, MaxNorm, Marvell, LabelDP)}
_AGGREGATIONS: dict[str, Callable[..., Plain | SecureSum]] = {"plain": Plain, "secure_sum": SecureSum}
_TRAININGS: dict[str, Callable[..., Training]] = {
    "raw_rows": TrainedOnRawRows,
    "frozen": Frozen,
    "DPBottom": DPBottom,
}


def build_recipe(path: str, table: Mapping[str, Any]) -> Recipe:
    """`method` and its arguments; beside those of any method, what _BESIDE lists."""
    name, arguments = look_up(path, table, "method", METHODS)
    beside = {key: build(f"{path}.{key}", arguments.pop(key)) for key, build in _BESIDE.items() if key in arguments}
    return replace(call(path, METHODS[name], name, _read(path, METHODS[name], arguments)), **beside)


def build_settings(section: JobSection, folder: Path, pretrain: PretrainSection | None = None) -> RunSettings:
    """What `[job]` and `[pretrain]` say; `folder` is the job file's."""
    storage, budget, target = ("memory_limit_mb", "scratch"), section.budget, section.target
    with at("job.scratch"):
        scratch = None if section.scratch is None else folder / section.scratch
        room = Storage(int(section.memory_limit_mb * 2**20), scratch)
    with at("job"):
        return RunSettings(
            **section.model_dump(exclude={"split", "target", "training", "budget", *storage}),
            target=None if target is None else (target.metric, target.value),
            storage=room,
            training=_one_of("training", section.training, _TRAININGS),
            budget=None if budget is None else Budget(budget.epsilon, budget.delta, Observer(budget.observer)),
            pretraining=None if pretrain is None else Pretraining(**pretrain.model_dump()),
        )


def build_compressor(path: str, value: Any) -> Compressor:
    """`name` and its arguments, or the name alone."""
    if not isinstance(value, (str, Mapping)):
        raise BadInput.of(path, f'must be a table such as {{ name = "TopK", fraction = 0.01 }}, got {value!r}')
    return _one_of(path, value, _COMPRESSORS)


def _one_of(path: str, value: Any, kinds: Mapping[str, Callable[..., T]]) -> T:
    """The name alone, or a table with its arguments."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        wanted = f"must be one of {', '.join(kinds)}, or a table with that name and its arguments"
        raise BadInput.of(path, f"{wanted}, got {value!r}")
    name, arguments = look_up(path, table, "name", kinds)
    return call(path, kinds[name], name, _read(path, kinds[name], arguments))


def _check_on_outage(path: str, value: Any) -> str:
    if value not in _ON_OUTAGE:
        hint = did_you_mean(str(value), _ON_OUTAGE)
        raise BadInput.of(path, f"must be 'wait' or 'continue', got {value!r}{hint}")
    return str(value)


_BESIDE: dict[str, Callable[[str, Any], Any]] = {  # of a recipe, whatever the method
    "on_outage": _check_on_outage,
    "aggregation": partial(_one_of, kinds=_AGGREGATIONS),
    "defence": partial(_one_of, kinds=_DEFENCES),
    "scoring": build_compressor,
}


def fill_recipe_defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's table with what holds where it says nothing."""
    beside = {key: table[key] for key in _BESIDE if key in table}
    arguments = {key: value for key, value in table.items() if key not in beside}
    return {**fill_defaults(arguments, "method", METHODS), "on_outage": _ON_OUTAGE[0], **beside}


def build_optimizer(path: str, table: Mapping[str, Any]) -> OptimizerSpec:
    """`name` and its arguments; the learning rate is a number, or a table that changes with the round."""
    name, arguments = look_up(path, table, "name", OPTIMIZERS)
    if isinstance(arguments.get("lr"), Mapping):
        kind, given = look_up(f"{path}.lr", arguments["lr"], "name", STEP_SIZES)
        arguments["lr"] = call(f"{path}.lr", STEP_SIZES[kind], kind, given)
    return call(path, OPTIMIZERS[name], name, arguments)


def fill_defaults(table: Mapping[str, Any], word: str, kinds: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """The table with the defaults of what it names, those that TOML can say."""
    name, arguments = look_up("", table, word, kinds)
    defaults = {
        key: parameter.default
        for key, parameter in list_parameters(kinds[name]).items()
        if isinstance(parameter.default, (bool, int, float, str, tuple)) and key not in arguments
    }
    return {word: name, **arguments, **defaults}


def look_up(path: str, table: Mapping[str, Any], word: str, kinds: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name, as we spell it, and the arguments."""
    if word not in table:
        raise BadInput.of(f"{path}.{word}", f"is missing; it is one of {', '.join(kinds)}")
    asked = table[word]
    spelled = {kind.lower(): kind for kind in kinds}
    if not isinstance(asked, str) or asked.lower() not in spelled:
        hint = did_you_mean(str(asked), kinds)
        raise BadInput.of(f"{path}.{word}", f"must be one of {', '.join(kinds)}, got {asked!r}{hint}")
    return spelled[asked.lower()], {key: value for key, value in table.items() if key != word}


def call(path: str, target: Callable[..., T], name: str, arguments: Mapping[str, Any]) -> T:
    """target(**arguments); what is wrong is said with the field's path."""
    parameters = list_parameters(target)
    for key in arguments:
        if key not in parameters:
            known = f"; it takes {', '.join(parameters)}" if parameters else "; it takes no arguments"
            raise BadInput(f"{name} takes no {key!r}{did_you_mean(key, parameters) or known}").at(f"{path}.{key}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise BadInput.of(f"{path}.{key}", f"is missing; {name} needs it")
        if _kinds(parameter) == {bool} and key in arguments and not isinstance(arguments[key], bool):
            raise BadInput.of(f"{path}.{key}", f"must be true or false, got {arguments[key]!r}")
    plain = {
        key: None if value == _NONE and NoneType in _kinds(parameters[key]) else value
        for key, value in arguments.items()
    }
    try:
        return target(**plain)
    except BadInput as error:
        argument = getattr(error, "argument", "")
        argument = argument if argument in parameters else _SAME.get(argument, "")
        raise error.at(f"{path}.{argument}" if argument in parameters else path) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} does not accept these arguments: {error}").at(path) from error


@lru_cache(maxsize=256)
def list_parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters that have a name, with their types where these can be found."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except (NameError, TypeError, SyntaxError, AttributeError):  # a class of the user's, with names for type checkers
        signature = inspect.signature(target)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _read(path: str, target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Compressors and schedules inside the arguments, as values."""
    parameters = list_parameters(target)
    found: dict[str, Any] = {}
    for key, value in arguments.items():
        here = f"{path}.{key}"
        if key in parameters and _takes_compressor(parameters[key]) and value != _NONE:
            found[key] = build_compressor(here, value)
        elif isinstance(value, Mapping):
            found[key] = _schedule(here, value)
        elif key in parameters and type(value) is int and _kinds(parameters[key]) & {int, float} == {float}:
            found[key] = float(value)  # 2 and 2.0 are one recipe, with one digest
        else:
            found[key] = tuple(value) if isinstance(value, list) else value
    return found


def _takes_compressor(parameter: inspect.Parameter) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, Compressor) for kind in _kinds(parameter))


def _milestones(steps: Any) -> Milestones:
    if not isinstance(steps, list):
        raise BadInput(f"must be a list of pairs [round, value], got {steps!r}")
    return Milestones(*(tuple(step) if isinstance(step, list) else step for step in steps))


_SCHEDULES: dict[str, Callable[[Any], Milestones | Diminishing | DiminishingError]] = {
    "milestones": _milestones,
    "diminishing": Diminishing,
    "diminishing_error": DiminishingError,
}


def _schedule(path: str, table: Mapping[str, Any]) -> Milestones | Diminishing | DiminishingError:
    if len(table) != 1 or next(iter(table)) not in _SCHEDULES:
        raise BadInput.of(
            path,
            f"must be a number, or one of {{ milestones = [[0, 2], [100, 4]] }}, {{ diminishing = 2 }}, "
            f"{{ diminishing_error = 5.0 }}; got the keys {', '.join(table) or 'none'}",
        )
    ((kind, value),) = table.items()
    with at(f"{path}.{kind}"):
        return _SCHEDULES[kind](value)


def _kinds(parameter: inspect.Parameter) -> set[Any]:
    """The types that it may have."""
    annotation = parameter.annotation
    union = get_origin(annotation) in (Union, UnionType)
    return set(get_args(annotation)) if union else {annotation}


def build_module(
    path: str,
    table: Mapping[str, Any],
    shape: Sequence[int],
    seed: int,
    code: CodeSources,
    follows: Mapping[str, Any] = MappingProxyType({}),
) -> nn.Module:
    """The module that `table` describes, for rows of `shape`; its weights follow from the seed alone.

    Sizes that follow from the data (in_features, in_channels, image_size, dense_features) may be left out, and what
    `follows` from how it was prepared.
    """
    if "module" in table:
        if "name" in table:
            raise BadInput("give either a name (a built-in model) or a module (your own), not both").at(path)
        build: Callable[..., nn.Module] = code.load_class(path, table["module"])
        name, arguments = build.__name__, {key: value for key, value in table.items() if key != "module"}
    else:
        name, arguments = look_up(path, table, "name", MODELS)
        # Without a width it is no layer of a network, but the exact learner.
        build = Linear if name == "linear" and "width" not in arguments else MODELS[name]
    arguments |= {
        key: value for key, value in follows.items() if key in list_parameters(build) and key not in arguments
    }
    found = _FOLLOWS | _FOLLOWS_OF.get(name, {})
    for key in list_parameters(build):
        if key in found and key not in arguments:
            arguments[key] = found[key](name, shape, arguments)
    arguments |= _build_parts(
        path, build, arguments, partial(build_module, shape=shape, seed=seed, code=code), follows
    )
    with keep_generator():
        torch.manual_seed(seed)
        module = call(path, build, name, arguments)
    if not isinstance(module, nn.Module):
        raise BadInput(f"{name} gives {type(module).__name__}, not a torch module").at(f"{path}.module")
    return module


def _build_parts(
    path: str,
    build: Callable[..., nn.Module],
    arguments: Mapping[str, Any],
    build_inner: Callable[..., nn.Module],
    follows: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments that are modules themselves, `{ name = "cnn" }`, for the same rows; the outer width is theirs too."""
    parameters, found = list_parameters(build), {}
    for key in [key for key in arguments if key in parameters]:
        here, kinds, given = f"{path}.{key}", _kinds(parameters[key]), arguments[key]
        if not kinds & {nn.Module, Pretraining} or given == _NONE:
            continue
        if not isinstance(given, Mapping):
            raise BadInput.of(here, f"must be a table, got {given!r}")
        width = arguments.get("width", getattr(parameters.get("width"), "default", None))
        inner = dict(follows) if width is None else {**follows, "width": width}
        is_module = nn.Module in kinds
        found[key] = build_inner(here, given, follows=inner) if is_module else call(here, Pretraining, key, given)
    return found


def complete_model(section: AnyEntry, label: LabelEntry, recipe: Recipe, outputs: int | None = None) -> AnyEntry:
    """The section, its trees with what follows from the label party's side: outputs per row and the loss's curvature.

    `outputs` is how many its labels have, where they are known.
    """
    if not section.has_trees or section.model is None:
        return section
    pairs, outputs = _count_pairs(label), outputs or count_outputs(label)
    found = {
        "width": None if outputs is None else outputs * (1 + pairs),
        "pairs": pairs,
        "curvature": find_curvature(label, recipe),
        **section.model,
    }
    for key, value in found.items():
        if value is None:
            raise BadInput.of(
                f"{section.path}.model.{key}",
                "is missing: the trees need to know the loss, and the job does not set it. Set top and loss of the "
                "label party in the file that all parties share; or set width (1 for binary or regression, otherwise "
                'one per class) and curvature ("derived" for classes, 2.0 for regression) here',
            )
    return section.model_copy(update={"model": found})


def complete_top(label: LabelEntry, outputs: int | None) -> dict[str, Any]:
    """The top model's table; boosted trees with what follows from the labels and the loss."""
    found = dict(label.top or {})
    if not is_trees(found):
        return found
    if outputs is None and label.loss == "cross_entropy" and "width" not in found:
        raise BadInput.of("top.width", "is missing: boosted trees need to know how many classes there are")
    curvature = choose_curvature(LOSSES.get(label.loss, cross_entropy), decides_alone=True)
    return {"width": outputs or 1, "curvature": curvature, **found}


def count_outputs(label: LabelEntry) -> int | None:
    """Of the top model, a row, as far as the file says it."""
    if label.top is None or label.loss != "cross_entropy":
        return None if label.top is None else 1
    stated = label.top.get("classes", label.top.get("width"))
    named = None if label.labels is None else label.labels.classes
    return stated if isinstance(stated, int) else None if named is None else len(named)


_BIASES = (("bias_top", "sum"), ("interaction_top", "concat"))  # an output's derivative is the loss's own


def _count_pairs(label: LabelEntry) -> int:
    """Of each output, for products across parties."""
    top = label.top or {}
    if str(top.get("name")).lower() != "interaction_top":
        return 0
    stated = top.get("pairs", list_parameters(InteractionTop)["pairs"].default)
    return stated if isinstance(stated, int) else 0  # the top model itself refuses it


def find_curvature(label: LabelEntry, recipe: Recipe) -> float | str | None:
    """d2L/dh2, as far as the file says what it follows from."""
    if label.top is None:
        return None
    is_bias = (str(label.top.get("name")).lower(), label.fusion) in _BIASES
    plain = label.class_weights is None and isinstance(recipe.defence, NoDefence)
    return choose_curvature(LOSSES.get(label.loss, cross_entropy), is_bias and plain)


def derive_weight_seed(seed: int, party: str, part: str) -> int:
    """A party's first weights do not depend on the other parties."""
    return derive_seed(seed, "weights", party, part)


_Following = Callable[[str, Sequence[int], Mapping[str, Any]], Any]
_FOLLOWS: dict[str, _Following] = {
    "in_features": lambda name, shape, _: shape[-1] if name == "lstm" else prod(shape),
    "in_channels": lambda _, shape, __: shape[0],
    "image_size": lambda _, shape, __: tuple(shape[1:]),
    "dense_features": lambda _, shape, given: max(0, prod(shape) - len(given.get("fields_vocab") or ())),
}
_FOLLOWS_OF: dict[str, dict[str, _Following]] = {"bias_top": {"width": lambda _, shape, __: shape[-1]}}
