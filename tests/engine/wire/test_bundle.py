"""Several bodies in one message."""

from __future__ import annotations

import pytest

from thinwire.base.errors import Malformed, Truncated
from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle


def test_a_bundle_survives() -> None:
    bodies = {0: b"bank", 3: b"", 200: b"shop" * 100}
    assert {index: bytes(body) for index, body in unpack_bundle(pack_bundle(bodies)).items()} == bodies
    assert unpack_bundle(b"") == {}


def test_a_wrong_bundle_is_named() -> None:
    with pytest.raises(Malformed, match="two bodies of party 1"):
        unpack_bundle(pack_bundle({1: b"a"}) * 2)
    with pytest.raises(Truncated):
        unpack_bundle(pack_bundle({1: b"abc"})[:-1])
