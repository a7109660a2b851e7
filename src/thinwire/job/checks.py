"""What a job must meet before anything starts: settings, rows, models, labels and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from thinwire.base.errors import BadColumn, BadInput, BadLabels, BadParameter, IncompatibleRecipe
from thinwire.base.types import PartyName
from thinwire.engine.compress import Codebook, Identity, RandomizedResponse
from thinwire.engine.models.encoders import Bins, Encoder, RandomProjections
from thinwire.engine.models.fusion import check_fusion
from thinwire.engine.models.learners import LEAST_DEVIATION, BoostedTrees
from thinwire.engine.models.losses import binary_cross_entropy, cross_entropy, find_plain_loss, name_loss
from thinwire.engine.models.metrics import find_different, try_metric
from thinwire.engine.models.regression import REGRESSION_LOSSES, Linear, RegressionTop
from thinwire.engine.models.scorecard import Scorecard, ScorecardTop
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.privacy.accounting.ledger import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.defences import LabelDP, NoDefence
from thinwire.engine.privacy.dp_bottom import DPBottom, require_row_gradients, require_separate_rows
from thinwire.engine.programs.parties import FeatureParty, LabelParty, check_name
from thinwire.engine.protocols.evaluation import HeldOut, evaluation_mode
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import EveryBatch, OneWay
from thinwire.engine.streams import Direct
from thinwire.job.messages import at
from thinwire.job.settings import RunSettings
from thinwire.storage.tensor_file import DTYPES

# Early stopping and the best model ---------------------------------------------------------------------------------


def require_held_out_rows(settings: RunSettings, validation_rows: int, test_rows: int) -> None:
    if settings.patience is not None and not validation_rows:
        raise BadInput.of(
            "patience",
            "needs validation rows: set [job] split = { validation = 0.1, test = 0.2 }, or validation_features and "
            "validation_labels in Python",
        )
    if settings.column_importance and not test_rows:
        raise BadInput.of("column_importance", "needs test rows: set [job] split = { test = 0.2 }, or remove it")


def check_early_stopping(recipe: Recipe, settings: RunSettings) -> None:
    """Refuses patience where a guarantee does not count its evaluations."""
    if settings.patience is None or allows_steering(recipe, settings):
        return
    if isinstance(recipe.defence, LabelDP):
        raise IncompatibleRecipe.of(
            "patience", f"depends on the validation labels, which {recipe.defence} does not cover; remove it"
        )
    raise IncompatibleRecipe.of(
        "patience",
        "(early stopping) uses evaluations that are not accounted for under a secure sum or differential privacy; "
        "set a budget, which counts them, or remove patience",
    )


def keeps_best(recipe: Recipe, settings: RunSettings, validation_rows: int) -> bool:
    """Do all parties keep the best model on validation rows, rather than the last one?"""
    return settings.deliver == "best" and bool(validation_rows) and allows_steering(recipe, settings)


def allows_steering(recipe: Recipe, settings: RunSettings) -> bool:
    """Whether nothing is promised, or the budget that is kept counts every evaluation."""
    if isinstance(recipe.defence, LabelDP):
        return False
    promised = isinstance(recipe.aggregation, SecureSum) or isinstance(settings.training, DPBottom)
    return settings.budget is not None or not promised


def may_use_base_rate(recipe: Recipe) -> bool:
    """May a top model begin at what all labels say? Not where others build it too, nor under LabelDP."""
    return recipe.labels is Labels.PRIVATE and not isinstance(recipe.defence, LabelDP)


def check_column_importance(recipe: Recipe, settings: RunSettings) -> None:
    """Refuses it where a promise is made that does not count embeddings with a permuted column, or their scores."""
    if not settings.column_importance:
        return
    if isinstance(recipe.aggregation, SecureSum):
        says = "sends each party's own embeddings, but under a secure sum only their sum may be seen"
    elif recipe.is_charged:
        says = f"sends codes of permuted test rows once a column, and {recipe.uplink.compressor} charges each release"
    elif isinstance(recipe.defence, LabelDP):
        says = f"tells feature parties scores by the test labels, which {recipe.defence} does not cover"
    elif isinstance(settings.training, DPBottom):
        says = (
            f"sends embeddings of permuted test rows, which the privacy ledger of {settings.training} does not count"
        )
    else:
        return
    raise IncompatibleRecipe.of("column_importance", f"{says}; leave it out")


# What must hold before anything starts, of parties, their models and their labels; no check needs a whole job -----


def check_names(names: Sequence[PartyName]) -> None:
    """Of the feature parties and the label party."""
    for name in names:
        check_name(name)
    if len(names) < 2:
        raise BadInput("a job needs at least one feature party")
    if len(set(names)) != len(names):
        raise BadInput(f"every party needs a unique name, got {', '.join(names)}")


def check_rows(party: FeatureParty | LabelParty, label_party: LabelParty) -> None:
    """All parties hold as many rows as there are labels."""
    if party.features is None:
        return
    rows, own = len(label_party.labels), party.count_rows()
    if own != rows:
        raise BadInput(
            f"party {party.name!r} has {own} rows, {label_party.name!r} has {rows} labels; all parties must hold "
            "the same rows in the same order; if several rows share one owner, use `group`"
        )
    for which in HeldOut:
        here, there = party.count_rows(which), len(label_party.held_out.get(which, ()))
        if here != there:
            held = f"party {party.name!r} has {here or 'no'} {which} rows"
            raise BadInput(f"{held}, but there are {there or 'no'} {which} labels")


# Models -----------------------------------------------------------------------------------------------------


def find_embedding_width(where: str, bottom: nn.Module, features: Tensor) -> int:
    """The width of a bottom model's embedding; `where` names the model in a refusal."""
    like = next(bottom.parameters(), features)
    try:
        with evaluation_mode(bottom):
            h = bottom(features[:2].to(like.device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(f"{where} does not accept features of shape {list(features.shape[1:])}: {error}") from error
    if not isinstance(h, Tensor) or h.dim() != 2 or len(h) != len(features[:2]):
        shape = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise BadInput(f"{where} must give [rows, width], got {shape}; end it with Flatten")
    return int(h.shape[1])


def check_module(name: str, module: nn.Module) -> None:
    """Can it be saved, and loaded again?"""
    if "_orig_mod" in dict(module.named_children()):
        raise BadParameter(
            f"{name}: the model is wrapped by torch.compile, so its weights would be saved under the wrong names; "
            "call model.compile() and pass the model itself"
        )
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise BadInput(f"{name}: {key} is {type(value).__name__}; models are saved as tensors, so use a buffer")
        if value.dtype not in DTYPES:
            raise BadInput(
                f"{name}: {key} has type {value.dtype}, which cannot be saved; use another dtype, such as torch.int64"
            )
        if not is_lazy(value) and value.is_floating_point() and bool(value.float().isnan().any()):
            raise BadInput(
                f"{name}: {key} holds NaN, which would be treated as damage when it is loaded; use another marker"
            )


def check_batch_norm(name: str, module: nn.Module, settings: RunSettings, rows: int) -> None:
    rounds = settings.divide_rows(rows)
    last = len(rounds.rows(rounds.rounds_per_epoch - 1))
    normed = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    # A part may be in evaluation mode; a module that is, as a whole, is set to training.
    if last == 1 and any(part.training or not module.training for part in normed):
        raise BadInput(
            f"party {name!r}: batch normalisation cannot train on the last batch, which has only one row; change "
            f"batch_size (now {settings.batch_size})"
        )


def check_one_way(where: str, model: nn.Module, recipe: Recipe, settings: RunSettings) -> None:
    """Where nothing comes back, a feature party's model must be finished before it sends."""
    if not isinstance(recipe.schedule, OneWay) or isinstance(model, Encoder) or isinstance(settings.training, Frozen):
        return
    raise IncompatibleRecipe(
        f"{where} is trained with gradients, and {recipe.name} sends none; use principal_directions for numbers and "
        'pictures, bins for tables, or start from an earlier run (--from) with training = "frozen"'
    )


def check_learner(where: str, model: nn.Module | None, recipe: Recipe, settings: RunSettings) -> None:
    """Refuses what boosted trees cannot follow: they are fitted to one fresh derivative of all rows."""
    if not isinstance(model, BoostedTrees):
        return
    if settings.batch_size is not None:
        raise BadInput.of(
            "batch_size", "does not apply to boosted trees, which are fitted to all rows of an exchange; remove it"
        )
    if recipe.labels is Labels.SHARED:
        raise IncompatibleRecipe(
            f"{where} is fitted to the label party's gradients (derivatives), but with shared labels none "
            "are sent; use boosting or svfl"
        )
    if not isinstance(recipe.schedule, EveryBatch):
        raise IncompatibleRecipe(
            f"{where} needs a fresh gradient (derivative) for every tree, but {recipe.name} reuses them; "
            "use boosting or svfl"
        )
    if isinstance(settings.training, DPBottom):
        raise IncompatibleRecipe(
            f"{where} has no gradients that DPBottom could clip; use an mlp, or LabelDP to protect the labels"
        )
    if isinstance(settings.training, Frozen) and not model.count:
        raise IncompatibleRecipe(
            f"{where} is frozen and has no trees; start from an earlier run (--from), or remove training"
        )


def check_group(where: str, party: FeatureParty, recipe: Recipe, settings: RunSettings) -> None:
    """Refuses what needs a row of features for every row of the run, where rows have owners in common."""
    if party.group is None:
        return
    has_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in party.bottom.modules())
    wrong = {
        "secure sum adds embeddings row by row, and an owner has a single embedding for all its rows; use "
        "thin, efvfl or svfl": (isinstance(recipe.aggregation, SecureSum)),
        f"{recipe.name} shares labels, so that every party computes each row's loss; use labels='private', or thin": (
            recipe.labels is Labels.SHARED
        ),
        "an owner's codes would be released once for each of its sets of rows, and the ledger counts rows, not "
        "owners; leave noise out": recipe.is_charged and not isinstance(recipe.aggregation, SecureSum),
        "order='update_first' is the papers' own, a row at a time; use order='exchange_first'": (
            recipe.order == "update_first"
        ),
        "DPBottom's ledger counts rows, and here a step uses all rows of an owner; leave training out": (
            isinstance(settings.training, DPBottom)
        ),
        f"{type(party.bottom).__name__} fits single rows, and one derivative comes for all rows of an owner; use a "
        "network, or an encoder with once": isinstance(party.bottom, BoostedTrees | Linear),
        "batch normalisation would see an owner once for all its rows, in a batch of one at times; use another "
        "normalisation, as LayerNorm": has_norm,
    }
    for says, holds in wrong.items():
        if holds:
            raise IncompatibleRecipe(f"{where} has a group, but {says}; or leave group out and repeat owners' rows")


def check_feature_party(where: str, party: FeatureParty, width: int, recipe: Recipe, settings: RunSettings) -> None:
    """Where a guarantee is made for single rows, each must be computed by itself."""
    check_group(where, party, recipe, settings)
    check_one_way(where, party.bottom, recipe, settings)
    check_learner(where, party.bottom, recipe, settings)
    if isinstance(party.bottom, Linear):
        _check_regression(where, party, recipe, settings)
    if not recipe.is_noisy and not isinstance(settings.training, DPBottom):
        return
    if recipe.uplink.compressor.protects_alone:
        _check_noisy_codes(where, party.bottom, recipe, settings)
        if not isinstance(settings.training, Frozen):
            return  # no guarantee for the run as a whole: bins, and what is prepared, follow from all rows
    elif isinstance(party.bottom, Encoder) and not isinstance(party.bottom, RandomProjections):
        raise IncompatibleRecipe(
            f"{where} is fitted to its party's rows, which a per-row guarantee does not cover; use random_projections"
        )
    looked_at = () if party.preparation is None else party.preparation.row_dependent_columns
    if looked_at:
        raise IncompatibleRecipe(
            f"party {party.name!r}: column {looked_at[0]!r} is prepared from statistics of all rows, which a "
            "per-row guarantee does not cover; state what is public about it in prepare.known, such as its range, "
            "or leave the column out"
        )
    like = next(party.bottom.parameters(), party.features)
    few = party.features[:3].to(like.device)
    require_separate_rows(where, party.bottom, few)
    if isinstance(settings.training, DPBottom):
        require_row_gradients(where, settings.training, party.bottom, few, width)


def _check_noisy_codes(where: str, model: nn.Module, recipe: Recipe, settings: RunSettings) -> None:
    """Randomised response knows the numbers of bins, and no other codes."""
    noise = cast(RandomizedResponse, recipe.uplink.compressor)
    if not isinstance(model, Bins):
        raise IncompatibleRecipe(f"{where}: {noise} is for the codes of bins, got {type(model).__name__}; use bins")
    if model.bins != noise.bins:
        raise IncompatibleRecipe(
            f"{where} has bins = {model.bins}, and {noise} draws from {noise.bins}; they must be equal"
        )
    if isinstance(settings.training, Frozen) and not model.has_public_edges:
        raise IncompatibleRecipe(
            f'{where}: training = "frozen" promises an epsilon for the whole run, but these bins depend on all '
            "rows; give their edges, which must be public, or remove training: epsilon then covers only a row's own "
            "codes"
        )
    if isinstance(settings.training, DPBottom):
        raise IncompatibleRecipe(f"{where}: bins take no gradient steps; leave {settings.training} out")


# An exact regression ------------------------------------------------------------------------------------------


def check_regression_parties(label: LabelParty, parties: Sequence[FeatureParty]) -> None:
    """Either all bottom models are `Linear`, under one `RegressionTop` of the same settings, or none is."""
    everyone: list[FeatureParty | LabelParty] = [*parties, label]
    for party in (one for one in everyone if one.bottom is not None):
        bottom, top = party.bottom, label.top
        for below, above in ((Linear, RegressionTop), (Scorecard, ScorecardTop)):
            if isinstance(bottom, below) != isinstance(top, above):
                got = f"{type(bottom).__name__} under {type(top).__name__}"
                says = f"{below.__name__} and {above.__name__} belong together, at all parties; got {got}"
                raise BadInput(f"party {party.name!r}: {says}")
        for setting in ("l2", "points_to_double_odds") if isinstance(bottom, Linear) else ():
            ours, theirs = getattr(bottom, setting, None), getattr(top, setting, None)
            if ours != theirs:
                held = f"party {party.name!r}: {setting} is {ours:g}, and {theirs:g} in the top model"
                raise BadInput(f"{held}; use the same value at all parties")


def _check_regression(where: str, party: FeatureParty | LabelParty, recipe: Recipe, settings: RunSettings) -> None:
    """Directions travel as they are, of all rows, once a round; derivatives may be disturbed, but of a scorecard."""
    counts = isinstance(party.bottom, Scorecard) or isinstance(getattr(party, "top", None), ScorecardTop)
    exact = recipe.uplink == Direct(Identity()) and recipe.schedule == EveryBatch()
    wrong = {
        f"does not work with {recipe.name}; use svfl": not exact or recipe.labels is not Labels.PRIVATE,
        "uses all rows at once; remove batch_size": settings.batch_size is not None,
        f"counts labels by the first derivative, which {recipe.defence} changes; use linear, or no defence": counts
        and not isinstance(recipe.defence, NoDefence),
        "learns from raw rows; leave training out": not isinstance(settings.training, TrainedOnRawRows),
        'is exact only in its last round; set deliver = "last"': HeldOut.VALIDATION in party.held_out
        and settings.deliver != "last",
    }
    for says, holds in wrong.items():
        if holds:
            raise IncompatibleRecipe(f"{where} belongs to an exact regression, which {says}")
    if party.features is not None and bool((party.features == party.features[:1]).all()):
        raise BadColumn(f"{where} has nothing to fit: every column is constant")


def _check_regression_top(party: LabelParty, recipe: Recipe, settings: RunSettings) -> None:
    where = f"party {party.name!r}: the top model"
    check_regression_parties(party, ())
    _check_regression(where, party, recipe, settings)
    losses = (binary_cross_entropy,) if isinstance(party.top, ScorecardTop) else REGRESSION_LOSSES
    if find_plain_loss(party.loss) not in losses or party.fusion != "sum":
        names = ", ".join(map(name_loss, losses))
        raise BadInput(f'{where} belongs to a regression, which takes fusion "sum" and one of the losses {names}')


# The label party ---------------------------------------------------------------------------------------------


def check_label_party(party: LabelParty, widths: Sequence[int], recipe: Recipe, settings: RunSettings) -> None:
    """Its top model and loss take the embeddings of these `widths`."""
    check_fusion(party.fusion, list(widths))
    if isinstance(party.top, RegressionTop):
        _check_regression_top(party, recipe, settings)
    _check_one_way_labels(party, recipe, settings)
    _check_top(party, _fused(party, widths))
    _check_two_classes(party)
    _check_label_scale(party, recipe)
    check_learner(f"party {party.name!r}: the bottom model", party.bottom, recipe, settings)
    _check_sample_weight(party, recipe)
    for module in (party.top, party.bottom):
        if module is not None:
            check_batch_norm(party.name, module, settings, len(party.labels))
    _check_shared_labels(party, _fused(party, widths), recipe, settings)


def _check_one_way_labels(party: LabelParty, recipe: Recipe, settings: RunSettings) -> None:
    """The label party learns by itself, from every row once; trees can only do that."""
    trees = isinstance(party.top, BoostedTrees)
    if not isinstance(recipe.schedule, OneWay):
        if trees:
            says = f"have no derivative that {recipe.name} could send down; use once, or a network"
            raise IncompatibleRecipe(f"party {party.name!r}: boosted trees as a top model {says}")
        return
    if settings.epochs > 1:
        raise IncompatibleRecipe.of("epochs", f"must be at most 1 with {recipe.name}, which sends every row once")
    if trees and party.bottom is not None and not isinstance(party.bottom, Encoder):
        raise IncompatibleRecipe(
            f"party {party.name!r}: the bottom model learns from derivatives, which trees above it do not have; use "
            "raw_columns, or bins"
        )


def _fused(party: LabelParty, widths: Sequence[int]) -> int:
    return sum(widths) if party.fusion == "concat" else widths[0]


def _outputs(party: LabelParty, fused: int, rows: int) -> Tensor:
    with evaluation_mode(party.top):
        like = next(party.top.parameters(), torch.zeros(1))
        return party.top(torch.zeros(rows, fused, dtype=like.dtype, device=like.device))  # type: ignore[no-any-return]


def _check_top(party: LabelParty, fused: int) -> None:
    rows = min(2, len(party.labels))
    try:
        output = _outputs(party, fused, rows)
        with torch.no_grad():
            losses = party.loss(output, party.labels[:rows].to(output.device))
    except BadInput:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"party {party.name!r}: the top model and loss do not accept embeddings of width {fused}: {error}"
        ) from error
    if losses.shape != (rows,):
        raise BadInput(f"party {party.name!r}: the loss must give one value per row, got {losses.shape}")


def _check_two_classes(party: LabelParty) -> None:
    if _has_classes(party) and len(party.labels.unique()) == 1:
        label = int(party.labels.flatten()[0])
        raise BadLabels(f"all {len(party.labels)} rows have class {label}; training needs at least two classes").at(
            "labels"
        )


def _check_label_scale(party: LabelParty, recipe: Recipe) -> None:
    """Leaves of trees are multiples of a fixed step, which must be small beside the labels."""
    has_trees = isinstance(party.bottom, BoostedTrees) or isinstance(recipe.uplink.compressor, Codebook)
    if not has_trees or name_loss(party.loss) != "squared_error":
        return
    deviation = float(party.labels.double().std(correction=0))
    if deviation < LEAST_DEVIATION:
        raise BadLabels(
            f"a standard deviation of {deviation:.2g} is too small for boosted trees, whose outputs are rounded to "
            "2e-06; rescale the labels to a smaller unit, or subtract their mean"
        ).at("labels")


def _has_classes(party: LabelParty) -> bool:
    return find_plain_loss(party.loss) in (cross_entropy, binary_cross_entropy)


def _check_sample_weight(party: LabelParty, recipe: Recipe) -> None:
    """Weights stay at the label party, and follow from nothing that a guarantee covers."""
    if party.sample_weight is None:
        return
    if recipe.labels is Labels.SHARED:
        raise IncompatibleRecipe(
            f"party {party.name!r}: sample_weight stays with the label party, and with shared labels every party "
            "computes the loss; use labels='private', or no sample_weight"
        )
    if isinstance(recipe.defence, LabelDP):
        raise IncompatibleRecipe(
            f"party {party.name!r}: sample_weight belongs to the true rows, which LabelDP does not cover; use "
            "class_weights, which follow the labels that LabelDP drew, or no sample_weight"
        )


def _check_shared_labels(party: LabelParty, fused: int, recipe: Recipe, settings: RunSettings) -> None:
    """What shared labels add: everyone computes with the top model, and the label party's embedding travels."""
    if recipe.labels is not Labels.SHARED:
        return
    if isinstance(settings.training, DPBottom):
        like = next(party.top.parameters(), torch.zeros(1))
        few = torch.randn(3, fused, generator=torch.Generator().manual_seed(0)).to(like)
        require_separate_rows("the top model, through which DPBottom's derivatives come,", party.top, few)
    if recipe.is_noisy and party.features is not None:
        raise IncompatibleRecipe(
            f"{recipe.uplink.compressor} protects inside a sum, and with shared labels the label party's "
            "own embedding travels by itself; use labels='private', or a label party without features"
        )


def check_outputs(party: LabelParty, widths: Sequence[int], settings: RunSettings) -> None:
    """Labels are classes that the top model knows, and every metric can be computed of them."""
    outputs = _outputs(party, _fused(party, widths), 1).cpu()
    _check_classes(party, outputs)
    for _, labels in _labels(party):
        with at("job.metrics"):
            for name in settings.metrics:
                try_metric(name, outputs, labels)


def _check_classes(party: LabelParty, outputs: Tensor) -> None:
    """Every label is a class that the top model knows, and that some training row has."""
    if not _has_classes(party):
        return
    training = find_different(party.labels)
    for field, labels in _labels(party):
        classes = find_different(labels)
        with at(f"label_party.{field}"):
            party.loss(outputs.expand(len(classes), *outputs.shape[1:]), classes)
            unseen = [int(one) for one in classes if one not in training]
            if unseen:
                row = int((labels == unseen[0]).nonzero()[0])
                raise BadInput(f"row {row + 1} has class {unseen[0]}, which no training row has")


def _labels(party: LabelParty) -> list[tuple[str, Tensor]]:
    return [("labels", party.labels), *((f"{which}_labels", labels) for which, labels in party.held_out.items())]
