"""ristretto255 against its published vectors, and the workers against each other."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from hashlib import sha256, sha512
from multiprocessing import get_context
from pathlib import Path

import pytest
import rbcl

from thinwire.align import WorkersFailed
from thinwire.align.ristretto import (
    MOST_THREADS,
    InvalidPoint,
    WorkerPool,
    blind_ids,
    compute_tags,
    fresh_key,
    hash_to_group,
    multiply_points,
    open_worker_pool,
)
from thinwire.base.errors import BadParameter

# RFC 9496, A.3; the first seven inputs are SHA-512 of these texts, as on ristretto.group.
FROM_TEXTS = {
    "Ristretto is traditionally a short shot of espresso coffee": (
        "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    ),
    "made with the normal amount of ground coffee but extracted with": (
        "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b"
    ),
    "about half the amount of water in the same amount of time": (
        "006ccd2a9e6867e6a2c5cea83d3302cc9de128dd2a9a57dd8ee7b9d7ffe02826"
    ),
    "by using a finer grind.": "f8f0c87cf237953c5890aec3998169005dae3eca1fbb04548c635953c817f92a",
    "This produces a concentrated shot of coffee per volume.": (
        "ae81e7dedf20a497e10c304a765c1767a42d6e06029758d2d7e8ef7cc4c41179"
    ),
    "Just pulling a normal shot short will produce a weaker shot": (
        "e2705652ff9f5e44d3e841bf1c251cf7dddb77d140870d1ab2ed64f1a9ce8628"
    ),
    "and is not a Ristretto as some believe.": "80bd07262511cdde4863f8a7434cef696750681cb9510eea557088f76d9e5065",
}
FROM_BYTES = [  # different field elements behind unreduced bytes, one point
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
    "1200000000000000000000000000000000000000000000000000000000000000",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0000000000000000000000000000000000000000000000000000000000000080"
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000"
    "1200000000000000000000000000000000000000000000000000000000000080",
]
ONE_POINT = "304282791023b73128d277bdcb5c7746ef2eac08dde9f2983379cb8e5ef0517f"
# RFC 9496, A.1: the generator times 1 to 5.
MULTIPLES = [
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
]
# RFC 9496, A.2: encodings that must be refused; and the neutral point, which ours refuses too.
BAD = [
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
    "c34c4e1826e5d403b78e246e88aa051c36ccf0aafebffe137d148a2bf9104562",
    "c940e5a4404157cfb1628b108db051a8d439e1a421394ec4ebccb9ec92a8ac78",
    "47cfc5497c53dc8e61c91d17fd626ffb1c49e2bca94eed052281b510b1117a24",
    "f1c6165d33367351b0da8f6e4511010c68174a03b6581212c71c0e1d026c3c72",
    "87260f7a2f12495118360f02c26a470f450dadf34a413d21042b43b9d93e1309",
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "4eac077a713c57b4f4397629a4145982c661f48044dd3f96427d40b147d9742f",
    "de6a7b00deadc788eb6b6c8d20c0ae96c2f2019078fa604fee5b87d6e989ad7b",
    "bcab477be20861e01e4a0e295284146a510150d9817763caf1a6f4b422d67042",
    "2a292df7e32cababbd9de088d1d1abec9fc0440f637ed2fba145094dc14bea08",
    "f4a9e534fc0d216c44b218fa0c42d99635a0127ee2e53c712f70609649fdff22",
    "8268436f8c4126196cf64b3c7ddbda90746a378625f9813dd9b8457077256731",
    "2810e5cbc2cc4d4eece54f61c6f69758e289aa7ab440b3cbeaa21995c2f4232b",
    "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "a45fdc55c76448c049a1ab33f17023edfb2be3581e9c7aade8a6125215e04220",
    "d483fe813c6ba647ebbfd3ec41adca1c6130c2beeee9d9bf065c8d151c5f396e",
    "8a2e1d30050198c65a54483123960ccc38aef6848e1ec8f5f780e8523769ba32",
    "32888462f8b486c68ad7dd9610be5192bbeaf3b443951ac1a8118419d9fa097b",
    "227142501b9d4355ccba290404bde41575b037693cef1f438c47f8fbf35d1165",
    "5c37cc491da847cfeb9281d407efc41e15144c876e0170b499a96a22ed31e01e",
    "445425117cb8c90edcbc7c1cc0e74f747f2c1efa5630a967c64f287792a48a4b",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
]

TEXTS = [f"id {number}".encode() for number in range(1200)]  # more than two pieces of a worker


@pytest.mark.parametrize(("text", "point"), FROM_TEXTS.items())
def test_the_published_points_of_hashes(text: str, point: str) -> None:
    assert rbcl.crypto_core_ristretto255_from_hash(sha512(text.encode()).digest()).hex() == point


@pytest.mark.parametrize("data", FROM_BYTES)
def test_the_published_points_of_unreduced_bytes(data: str) -> None:
    assert rbcl.crypto_core_ristretto255_from_hash(bytes.fromhex(data)).hex() == ONE_POINT


def test_the_published_multiples_of_the_generator() -> None:
    for times, point in enumerate(MULTIPLES, 1):
        assert multiply_points(bytes.fromhex(MULTIPLES[0]), times.to_bytes(32, "little")).hex() == point


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_point_is_refused_with_its_place(bad: str) -> None:
    good = hash_to_group(b"good")
    for place in (0, 3):
        points = place * good + bytes.fromhex(bad) + good
        with pytest.raises(InvalidPoint) as caught:
            multiply_points(points, fresh_key())
        assert caught.value.place == place
        with pytest.raises(InvalidPoint) as caught:
            compute_tags(points, fresh_key(), 8)
        assert caught.value.place == place


def test_an_id_becomes_the_point_that_the_format_says() -> None:
    for text in (b"", b"7", "Zoë".encode(), bytes(1 << 20)):
        preimage = b"thinwire alignment 1, an id as a point of ristretto255:" + len(text).to_bytes(8, "big") + text
        assert hash_to_group(text) == rbcl.crypto_core_ristretto255_from_hash(sha512(preimage).digest())


def test_the_order_of_the_keys_does_not_matter() -> None:
    a, b = fresh_key(), fresh_key()
    texts = TEXTS[:20]
    one, two = multiply_points(blind_ids(texts, a), b), multiply_points(blind_ids(texts, b), a)
    assert one == two
    assert compute_tags(blind_ids(texts, a), b, 11) == b"".join(
        sha256(one[at : at + 32]).digest()[:11] for at in range(0, len(one), 32)
    )
    assert multiply_points(one, fresh_key()) != one


def test_keys_are_fresh() -> None:
    assert len({fresh_key() for _ in range(100)}) == 100


def test_no_library_is_left_behind() -> None:
    from rbcl._sodium import lib_path

    fresh_key()  # loads it
    assert Path(lib_path).parent == Path(tempfile.gettempdir())
    assert not Path(lib_path).exists()


@pytest.fixture(scope="module")
def processes() -> Executor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def test_threads_and_processes_compute_what_one_loop_does(processes: Executor) -> None:
    a, b = fresh_key(), fresh_key()
    points = blind_ids(TEXTS, a)
    tags = compute_tags(points, b, 9)
    spoiled = points[: 32 * 1100] + bytes(32) + points[32 * 1101 :]
    with ThreadPoolExecutor(3) as threads:
        for executor in (threads, processes):
            crew = WorkerPool(executor)
            assert crew.blind(TEXTS, a).result() == points
            assert crew.tag(points, b, 9).result() == tags
            assert crew.blind([], a).result() == b""
            assert crew.tag(b"", b, 9).result() == b""
            with pytest.raises(InvalidPoint) as caught:
                crew.tag(spoiled, b, 9).result()
            assert caught.value.place == 1100
    processes.shutdown()


def test_many_workers_are_processes_and_say_so_when_they_fail() -> None:
    with (
        open_worker_pool(MOST_THREADS) as few,
        open_worker_pool(MOST_THREADS + 1) as many,
        open_worker_pool() as usual,
    ):
        assert isinstance(few._executor, ThreadPoolExecutor)
        assert isinstance(usual._executor, ThreadPoolExecutor)
        assert isinstance(many._executor, ProcessPoolExecutor)
    for workers in (0, -1, 2.0, True, "2", 1025):
        with (
            pytest.raises(BadParameter, match="workers must be an integer from 1 to 1024"),
            open_worker_pool(workers),  # type: ignore[arg-type]
        ):
            pass


def _ends(*_: object) -> bytes:
    import os

    os._exit(1)


def test_a_worker_that_is_gone_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        monkeypatch.setattr(sys.modules[blind_ids.__module__], "blind_ids", _ends)
        with pytest.raises(WorkersFailed, match=r"a worker process died.*__main__"):
            WorkerPool(executor).blind([b"7"], fresh_key()).result()
