"""Three parties over a link that is really shaped: 300 Mbit/s and 10 ms one way train the simulator's models.

Needs root, network namespaces and the scripts up.sh and down.sh that make the link: THINWIRE_WAN names their
folder, or they lie in ../shared/tools/wan beside the checkout.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from training.party.parties import LABEL_PARTY, PartyProcesses, Place, Shape, made, simulated
from training.party.test_same_as_simulated import CELU, CVFL, EFVFL, require_same

pytestmark = pytest.mark.link

RATE_BITS, DELAY_US = 300_000_000, 10_000
LABEL_PARTY_S_HOST = "10.99.0.1"
SHAPES = {
    "svfl": Shape({"method": "svfl"}, own_features=True),
    "efvfl": Shape({**EFVFL, "labels": "private"}),
    "celu, overlap": Shape({**CELU, "overlap": True}),
    "cvfl": Shape(CVFL),
    "thin": Shape({"method": "thin"}),
}


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The label party's side is the namespace wanA, the others' wanB."""
    scripts = Path(os.environ.get("THINWIRE_WAN") or Path(__file__).parents[3] / "shared" / "tools" / "wan")
    if not (scripts / "up.sh").exists():
        pytest.fail(f"{scripts} holds no up.sh: set THINWIRE_WAN to the folder of the scripts that make the link")
    there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=300).stdout
    if "wanA" in there or "wanB" in there:
        pytest.fail("the namespaces wanA and wanB already exist: another link is up; end it with down.sh first")
    environment = {**os.environ, "WAN_STATE": str(tmp_path_factory.mktemp("wan"))}
    try:
        made = subprocess.run(
            ["bash", scripts / "up.sh", str(RATE_BITS), str(DELAY_US)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
        )
        if made.returncode != 0:
            pytest.fail(f"no link: {made.stderr.strip()}; it needs root, /dev/net/tun and network namespaces")
        yield
    finally:
        subprocess.run(
            ["bash", scripts / "down.sh"], env=environment, check=True, timeout=300, stdin=subprocess.DEVNULL
        )


def placed(folder: Path, shape: Shape) -> Place:
    """A job whose label party listens at its side of the link."""
    place = made(folder, shape)
    address = f"{LABEL_PARTY_S_HOST}:{place.port}"
    document = {**place.document, "network": {**place.document["network"], "listen": address, "address": address}}
    changed = replace(place, document=document)
    changed.write("job.toml")
    return changed


@pytest.mark.parametrize("name", SHAPES)
def test_a_real_link_changes_nothing_but_the_time(link: None, name: str, tmp_path: Path) -> None:
    place = placed(tmp_path, SHAPES[name])
    with PartyProcesses() as started:
        parties = {}
        for party in place.names:
            side = "wanA" if party == LABEL_PARTY else "wanB"
            parties[party] = started.party(place, party, prefix=("ip", "netns", "exec", side))
        for party, process in parties.items():
            assert process.summary()["party"] == party
    require_same(place, simulated(place.job))
