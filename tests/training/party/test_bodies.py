"""What parties may say to each other: bodies that no honest party sends, and what the label party tells of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from net.test_signing import sign_each_other
from thinwire.base.errors import WireError
from thinwire.base.types import Kind
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.wire.frame import MAX_BODY
from thinwire.net.grpc.service import RPCS
from thinwire.net.pki.certificates import public_pem
from thinwire.net.pki.signing import CertifiedIdentity
from thinwire.training.party.label_role import LabelRole
from thinwire.training.party.session import ToldToStop
from training.party.parties import LABEL_PARTY, ROWS, Shape, finished, made, threads


def test_an_empty_test_embedding_ends_the_run_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PartyContext.send

    def empty(context: PartyContext, receiver: str, kind: Kind, round: int, body: bytes) -> None:
        whole(context, receiver, kind, round, b"" if (kind, context.me) == (Kind.EVALUATION, "bank") else body)

    monkeypatch.setattr(PartyContext, "send", empty)
    with threads(made(tmp_path, Shape({"method": "svfl"}))) as parties:
        for party in parties.values():
            party.join()
    said = "'bank' sent no embedding of held-out rows, there are 16 labels of them"
    assert isinstance(parties[LABEL_PARTY].error, WireError)
    for party in parties.values():
        assert said in str(party.error)
    assert isinstance(parties["shop"].error, ToldToStop)


def test_under_shared_labels_a_frame_has_a_cap_too(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "cvfl", "compressor": {"name": "topk", "fraction": 0.5}}))
    with threads(place) as parties:
        finished(parties)
    for name in place.feature_parties:
        up = parties[LABEL_PARTY].run.session.links[name].max_body
        down = parties[name].run.session.links[LABEL_PARTY].max_body
        assert ROWS * 4 * 4 < up < down < MAX_BODY / 1000


def test_a_chain_of_140_certificates_with_a_key_ends_the_run_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, sign = public_pem(*sign_each_other(139)), CertifiedIdentity.sign

    def send_chain(self: CertifiedIdentity, statement: bytes) -> bytes:
        if "bank" not in self.credentials().names:
            return sign(self, statement)
        return len(chain).to_bytes(4, "big") + (0).to_bytes(4, "big") + chain

    monkeypatch.setattr(CertifiedIdentity, "sign", send_chain)
    tanh = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}
    summed = Shape({"method": "pbm", "trials": 8, "beta": 0.2}, {"training": "frozen"}, model=tanh, parties=3)
    with threads(made(tmp_path, summed)) as parties:
        for party in parties.values():
            party.join()
    for party in parties.values():
        assert "the signature of 'bank' is not valid: it comes with 140 certificates, 16 at most" in str(party.error)


@pytest.mark.parametrize(
    ("recipe", "seen"),
    [({"method": "svfl"}, set()), ({"method": "cvfl", "compressor": {"name": "topk", "fraction": 0.5}}, {"loss"})],
    ids=["private", "shared"],
)
def test_status_tells_of_labels_only_what_the_recipe_shares(
    tmp_path: Path, recipe: dict[str, Any], seen: set[str]
) -> None:
    with threads(made(tmp_path, Shape(recipe))) as parties:
        finished(parties)
    role = parties[LABEL_PARTY].run.role
    assert isinstance(role, LabelRole)
    own, told = (role.answer(RPCS["Status"], name, {})["last_event"] for name in (LABEL_PARTY, "bank"))
    assert {"loss", "accuracy"} <= set(own["test"])
    assert set(told) == {"round", "train", "validation", "test"}
    assert (told["round"], set(told["train"]), told["validation"], told["test"]) == (own["round"], seen, {}, {})
