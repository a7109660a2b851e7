"""The attacks, on what parties of real runs were sent: they work undefended, and each defence costs them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import thinwire as tw
from lab.attacks.task import Recording, bottom, job, positive, table
from thinwire.base.errors import BadTensor
from thinwire.engine.compress import PoissonBinomial
from thinwire.engine.methods import pbm, svfl
from thinwire.engine.privacy import NoiseKey
from thinwire.engine.privacy.defences import Defence, LabelDP, Marvell, MaxNorm
from thinwire.engine.protocols.evaluation import embed_in_chunks
from thinwire.lab.attacks.findings import leak_auc, leak_r2
from thinwire.lab.attacks.inference import (
    draw_labelled_rows,
    invert_embeddings,
    score_by_completion,
    score_by_direction,
    score_by_norm,
    score_by_spectrum,
    score_from_scratch,
)

KEY = NoiseKey(bytes(range(32)))
EPOCHS = 30


@lru_cache
def sent(recipe: tw.Recipe) -> tuple[Tensor, float]:
    """All derivatives [epochs, N, E] that one party was sent in a run of full batches; and the model's test AUC."""
    described = job(
        recipe, lambda place: Recording(bottom(place)), batch_size=None, epochs=EPOCHS, optimizer=tw.Adam(lr=0.02)
    )
    result = tw.train(described, callbacks=[])
    recording = described.parties[0].bottom
    assert isinstance(recording, Recording)
    return torch.stack(recording.received), result.history[-1]["test"]["auc"]


def by_direction(derivatives: Tensor, truth: Tensor) -> float:
    known = torch.nonzero(truth).flatten()[:10]
    unknown = torch.ones(len(truth), dtype=torch.bool)
    unknown[known] = False
    return leak_auc(score_by_direction(derivatives, known)[unknown], truth[unknown])


# Labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [svfl(), pbm(16, 0.2)], ids=["svfl", "pbm"])
def test_undefended_derivatives_tell_the_labels(recipe: tw.Recipe) -> None:
    derivatives, _ = sent(recipe)
    truth = positive()
    assert derivatives.shape[0] == EPOCHS
    assert leak_auc(score_by_norm(derivatives.mean(dim=0)), truth) >= 0.99
    late = derivatives[-1]
    assert by_direction(late, truth) >= 0.99
    longest = late.double().norm(dim=1).topk(10).indices  # for an attacker who knows no row
    assert leak_auc(score_by_direction(late, longest), truth) >= 0.99
    assert leak_auc(score_by_spectrum(late), truth) >= 0.99


def test_direction_tells_the_labels_from_the_first_message_on() -> None:
    derivatives, _ = sent(svfl())
    assert min(by_direction(one, positive()) for one in derivatives) >= 0.99


def test_the_model_learns_something_but_not_all() -> None:
    assert 0.7 < sent(svfl())[1] < 0.95


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(4.0), LabelDP(1.0)], ids=str)
def test_a_defended_message_tells_less_and_the_model_still_learns(defence: Defence) -> None:
    derivatives, auc = sent(replace(svfl(), defence=defence))
    truth = positive()
    for one in derivatives[-10:]:
        assert leak_auc(score_by_norm(one), truth) < 0.8
        assert by_direction(one, truth) < 0.85
        assert leak_auc(score_by_spectrum(one), truth) < 0.85
    assert auc > 0.7


@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(4.0)], ids=str)
def test_noise_on_derivatives_averages_out_over_the_epochs(defence: Defence) -> None:
    derivatives, _ = sent(replace(svfl(), defence=defence))
    truth = positive()
    assert by_direction(derivatives.mean(dim=0), truth) > by_direction(derivatives[-1], truth) + 0.1


def test_labels_changed_once_do_not_average_out() -> None:
    derivatives, _ = sent(replace(svfl(), defence=LabelDP(1.0)))
    truth = positive()
    assert by_direction(derivatives.mean(dim=0), truth) < by_direction(derivatives[-1], truth) + 0.02


def test_the_spectral_attack_finds_the_rare_side_without_any_label() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.rand(500, generator=rng) < 0.1
    for side in (1.0, -1.0):
        rows = torch.randn(500, 12, generator=rng)
        rows[:, 4] += 8 * side * truth
        assert leak_auc(score_by_spectrum(rows), truth) > 0.99


def test_attacks_on_noise_alone_find_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    truth, noise = torch.rand(4000, generator=rng) < 0.3, torch.randn(4000, 6, generator=rng)
    for area in (
        leak_auc(score_by_norm(noise), truth),
        by_direction(noise, truth),
        leak_auc(score_by_spectrum(noise), truth),
    ):
        assert abs(area - 0.5) < 0.05


def test_a_direction_needs_a_known_row() -> None:
    with pytest.raises(BadTensor, match="the attacker knows no row of the class"):
        score_by_direction(torch.ones(3, 2), torch.zeros(0, dtype=torch.long))


# Labels by completing the model ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_trained_bottom_model_and_forty_labels_beat_forty_labels() -> None:
    pixels, digits = load_digits(return_X_y=True)
    x, odd = torch.tensor(pixels[:1000] / 16, dtype=torch.float32), torch.tensor(digits[:1000] % 2)

    def half(place: int) -> nn.Module:
        torch.manual_seed(place)
        return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8), nn.Tanh())

    torch.manual_seed(9)
    described = tw.Job(
        [tw.FeatureParty(name, x[:, 32 * place :][:, :32], half(place)) for place, name in enumerate(("a", "b"))],
        tw.LabelParty("c", odd, nn.Linear(8, 2)),
        svfl(),
        optimizer=tw.Adam(lr=0.01),
        batch_size=100,
        epochs=20,
        diagnostics=False,
    )
    tw.train(described, callbacks=[])
    attacker = described.parties[1]
    known = draw_labelled_rows(odd, 40, seed=0)
    assert len(known.unique()) == 40
    unknown = torch.ones(len(odd), dtype=torch.bool)
    unknown[known] = False
    embeddings = embed_in_chunks(attacker.bottom, attacker.features)
    completed = leak_auc(score_by_completion(embeddings, known, odd[known])[unknown], odd[unknown])
    alone = score_from_scratch(half(1), attacker.features, known, odd[known])
    assert completed > leak_auc(alone[unknown], odd[unknown]) + 0.03
    assert completed > 0.95


def test_completion_needs_known_rows_of_both_classes() -> None:
    with pytest.raises(BadTensor, match="needs known rows of both classes"):
        score_by_completion(torch.ones(5, 2), torch.tensor([0, 1]), torch.tensor([1, 1]))


# Features ----------------------------------------------------------------------------------------------------


def rebuilt(embeddings: Tensor, features: Tensor, known: int = 100) -> float:
    guessed = invert_embeddings(embeddings, torch.arange(known), features[:known])
    return leak_r2(guessed[known:], features[known:].double())


def test_a_wide_embedding_gives_the_features_away_and_heavy_noise_hides_them() -> None:
    described = job(svfl())
    tw.train(described, callbacks=[])
    party = described.parties[0]
    h = embed_in_chunks(party.bottom, party.features)
    assert rebuilt(h, party.features) > 0.9
    mechanism = PoissonBinomial(trials=4, beta=0.05)
    noisy = mechanism.compress(h, KEY.for_round(0, 0, 0, "bank")).to_tensor()
    assert rebuilt(noisy, party.features) < 0.05


def test_a_sum_of_parties_hides_a_part_of_each() -> None:
    columns, _ = table()
    tables = [embed_in_chunks(bottom(place), x) for place, x in enumerate(columns)]
    alone, summed = rebuilt(tables[0], columns[0]), rebuilt(torch.stack(tables).sum(dim=0), columns[0])
    assert summed < alone - 0.3


def test_inversion_is_exact_where_the_embedding_is_linear_and_wide() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=rng)
    assert rebuilt(x @ torch.randn(6, 6, generator=rng), x) > 0.999
    # Three of six numbers are gone for good.
    assert rebuilt(x[:, :3], x) == pytest.approx(0.5, abs=0.05)


def test_inversion_of_what_has_nothing_to_do_with_the_features_finds_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    assert rebuilt(torch.randn(2000, 8, generator=rng), torch.randn(2000, 4, generator=rng)) < 0.05


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(BadTensor, match="at least three known rows"):
        invert_embeddings(torch.ones(5, 2), torch.arange(2), torch.ones(2, 3))
    with pytest.raises(BadTensor, match="every column is constant"):
        leak_r2(torch.ones(5, 2), torch.ones(5, 2))
    with pytest.raises(BadTensor, match="guesses of shape"):
        leak_r2(torch.ones(5, 2), torch.ones(5, 3))
