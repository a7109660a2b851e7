"""Keys agreed through a label party that cannot read, change or replace them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.privacy.pairs import pair_keys
from thinwire.base.errors import Malformed, ThinwireError
from thinwire.engine.privacy import KeyAgreement, Subject, in_process_identities
from thinwire.engine.privacy.keys import BadSignature, InProcessIdentity, frame_values

SECRET = bytes(range(32))
PARTIES = ("bank", "shop", "post")
SUBJECT = Subject(7, "digest", PARTIES)


def agreements(subject: Subject = SUBJECT) -> dict[str, KeyAgreement]:
    identities = in_process_identities(PARTIES)
    secrets = {party: bytes([number + 1]) * 32 for number, party in enumerate(PARTIES)}
    return {party: KeyAgreement(party, subject, identities[party], secrets[party]) for party in PARTIES}


def others(offers: dict[str, bytes], me: str) -> dict[str, bytes]:
    return {party: offer for party, offer in offers.items() if party != me}


def test_each_pair_has_one_key_of_its_own() -> None:
    keys = pair_keys("abcd", SECRET)
    assert all(set(keys[party]) == set("abcd") - {party} for party in "abcd")
    assert all(keys[a][b] == keys[b][a] for a in keys for b in keys[a])
    different = {key for mine in keys.values() for key in mine.values()}
    assert len(different) == 6
    assert {len(key) for key in different} == {32}


def test_a_restarted_party_has_the_same_keys_and_another_run_has_others() -> None:
    assert pair_keys("abc", SECRET) == pair_keys("abc", SECRET)
    for other in (pair_keys("abc", bytes(32)), pair_keys("abc", SECRET, run=2)):
        assert not {k for m in other.values() for k in m.values()} & {
            k for m in pair_keys("abc", SECRET).values() for k in m.values()
        }


def test_the_key_is_this_one() -> None:
    here = agreements()
    offers = {party: agreement.offer() for party, agreement in here.items()}
    mine = HKDF(SHA256(), 32, salt=None, info=frame_values("thinwire x25519 1", "bank") + SUBJECT.to_bytes()).derive(
        bytes([1]) * 32
    )
    private = X25519PrivateKey.from_private_bytes(mine)
    assert offers["bank"][:32] == private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(offers["post"][:32]))
    ends = frame_values("thinwire pair key 1", "bank", "post", offers["bank"][:32].hex(), offers["post"][:32].hex())
    expected = HKDF(SHA256(), 32, salt=None, info=ends + SUBJECT.to_bytes()).derive(shared)
    found = here["post"].pair_keys(here["post"].verify_offers(others(offers, "post")))
    assert found["bank"] == expected


@pytest.mark.parametrize("place", [0, 31, 32, -1])
def test_a_changed_offer_is_refused(place: int) -> None:
    here = agreements()
    offers = {party: bytearray(agreement.offer()) for party, agreement in here.items()}
    offers["shop"][place] ^= 1
    with pytest.raises(BadSignature, match="the key of 'shop' is not signed by 'shop'"):
        here["bank"].verify_offers(others({party: bytes(o) for party, o in offers.items()}, "bank"))


def test_the_label_party_cannot_put_its_own_key_between() -> None:
    here = agreements()
    offers = {party: agreement.offer() for party, agreement in here.items()}
    own = Ed25519PrivateKey.generate()
    liar = KeyAgreement("shop", SUBJECT, InProcessIdentity(own, {}), SECRET)
    with pytest.raises(BadSignature):
        here["bank"].verify_offers({**others(offers, "bank"), "shop": liar.offer()})
    # Nor another party's offer, well signed, in its place.
    with pytest.raises(BadSignature):
        here["bank"].verify_offers({"shop": offers["post"], "post": offers["post"]})


@pytest.mark.parametrize(
    "other",
    [replace(SUBJECT, run=8), replace(SUBJECT, recipe="other"), replace(SUBJECT, parties=(*PARTIES, "mill"))],
    ids=["run", "recipe", "parties"],
)
def test_an_offer_serves_one_run_of_one_recipe_among_its_parties(other: Subject) -> None:
    identities = in_process_identities(PARTIES)
    old = KeyAgreement("shop", other, identities["shop"], SECRET).offer()
    bank = KeyAgreement("bank", SUBJECT, identities["bank"], SECRET)
    post = KeyAgreement("post", SUBJECT, identities["post"], SECRET).offer()
    with pytest.raises(BadSignature):
        bank.verify_offers({"shop": old, "post": post})


def test_points_that_everybody_knows_the_secret_of_are_refused() -> None:
    bank = agreements()["bank"]
    with pytest.raises(BadSignature, match="anyone could guess"):
        bank.pair_keys({"shop": bytes(32)})


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ({}, "keys of \\[\\] came in"),
        ({"shop": bytes(96)}, "expected \\['post', 'shop'\\]"),
        ({"shop": bytes(96), "post": bytes(96), "bank": bytes(96)}, "came in, expected"),
        ({"shop": bytes(32), "post": bytes(96)}, "a key of 'shop' in 32 bytes"),
        ({"shop": bytes(1 << 20), "post": bytes(96)}, "a key of 'shop' in 1048576 bytes"),
    ],
)
def test_offers_that_cannot_be_are_refused(offers: dict[str, bytes], says: str) -> None:
    with pytest.raises(Malformed, match=says):
        agreements()["bank"].verify_offers(offers)


def test_every_refusal_is_ours() -> None:
    assert issubclass(BadSignature, ThinwireError)
