"""`thinwire party` as an organisation uses it: consent, folders, signals, logs, metrics and proxies."""

from __future__ import annotations

import json
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from net.gate import write_gate
from net.proxy import ConnectProxy
from processes import Process, until
from thinwire import cli
from thinwire.base.errors import BadInput
from thinwire.job.job_file import toml_text
from thinwire.job.party_view import read_party_view
from thinwire.training.party import life_cycle
from thinwire.training.party.feature_role import FeatureRole
from thinwire.training.party.metrics import MetricsServer
from thinwire.training.party.party_run import Audience
from thinwire.training.party.startup import open_party_run
from training.party.parties import (
    COLUMNS,
    LABEL_PARTY,
    Document,
    PartyProcesses,
    PartyThread,
    Place,
    Shape,
    finished,
    left_events,
    left_models,
    log_of,
    made,
    ran,
    simulated,
    threads,
)

SVFL = Shape({"method": "svfl"})
SHARED = Shape({"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.25}}, own_features=True)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`thinwire ...` in this process, nobody at the terminal: exit code, stdout, stderr."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return int(ended.value.code or 0), shown.out, shown.err

    yield run
    for number, handler in kept.items():
        signal.signal(number, handler)


def digests(summaries: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: summary["digest"] for name, summary in summaries.items()}


def without_bank_s_data(place: Place, approved: str | None = None) -> Path:
    """A job whose data nobody can read: whoever gets as far as the data says so."""

    def changed(document: Document) -> None:
        document["party"][0]["features"]["file"] = "not-there.npz"
        if approved is not None:
            document["party"][0]["approved"] = approved

    return place.write("no-data.toml", changed)


# Consent ----------------------------------------------------------------------------------------------------------


def test_without_approval_nothing_is_read(tmp_path: Path, command: Command) -> None:
    place = made(tmp_path, SVFL)
    code, out, said = command("party", without_bank_s_data(place), "--name", "bank", "--out", tmp_path / "out")
    digest = read_party_view(place.job, "bank").consent.digest
    assert code == 2
    assert out == ""
    assert "nobody has approved this for 'bank'; use --yes, or set approved = " in said
    assert f'"{digest[:16]}"' in said
    assert "not-there.npz" not in said
    assert not (tmp_path / "out").exists()


def test_a_party_that_says_no_is_not_asked_for_data(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path, SVFL)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    code, _, said = command("party", without_bank_s_data(place), "--name", "bank", "--out", tmp_path / "out")
    assert code == 2
    assert "not approved; nothing was read or sent" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("digits", [12, 16, 64])
def test_an_approved_digest_is_consent(tmp_path: Path, command: Command, digits: int) -> None:
    place = made(tmp_path, SVFL)
    digest = read_party_view(place.job, "bank").consent.digest
    job = without_bank_s_data(place, digest[:digits].upper())
    code, _, said = command("party", job, "--name", "bank", "--out", tmp_path / "out")
    assert code == 2
    assert "not-there.npz" in said  # the consent was enough; the data was looked for
    assert "nobody has approved" not in said


def test_another_approved_digest_is_refused_with_both(tmp_path: Path, command: Command) -> None:
    place = made(tmp_path, SVFL)
    digest = read_party_view(place.job, "bank").consent.digest
    wrong = ("0" if digest[0] != "0" else "1") * 16
    code, _, said = command("party", without_bank_s_data(place, wrong), "--name", "bank", "--out", tmp_path / "out")
    assert code == 2
    assert f"'bank' has approved the agreement {wrong}, but the job's is {digest}" in said
    assert "not-there.npz" not in said


def test_an_approval_of_the_recipe_alone_is_told_the_new_digest(tmp_path: Path, command: Command) -> None:
    own = read_party_view(made(tmp_path, SVFL).job, "bank")
    setting = f"party.bank.approved='{own.recipe.digest()}'"
    code, _, said = command("party", own.text.path, "--name", "bank", "--out", tmp_path / "out", "--set", setting)
    assert code == 2
    assert "'bank' has approved only the recipe" in said
    assert f'set approved = "{own.consent.digest[:16]}"' in said


@pytest.mark.parametrize("approved", ["abc", "not hexadecimal!", ""])
def test_an_approval_that_is_no_digest_is_refused(tmp_path: Path, command: Command, approved: str) -> None:
    place = made(tmp_path, SVFL)
    job = without_bank_s_data(place, approved)
    code, _, said = command("party", job, "--name", "bank", "--out", tmp_path / "out", "--yes")
    assert code == 2
    assert "approved" in said


def test_one_party_s_approval_is_not_another_s(tmp_path: Path, command: Command) -> None:
    place = made(tmp_path, SVFL)
    digest = read_party_view(place.job, "bank").consent.digest
    job = place.write("approved.toml", lambda document: document["party"][1].update(approved=digest))
    code, _, said = command("party", job, "--name", "bank", "--out", tmp_path / "out")
    assert code == 2
    assert "nobody has approved this for 'bank'" in said


def test_the_terms_say_who_sees_what_with_private_labels(tmp_path: Path) -> None:
    text = read_party_view(made(tmp_path, SVFL).job, "bank").consent.describe_training()
    assert "'bank' is asked to take part in 'svfl' with shop, clinic" in text
    assert re.search(r"recipe digest [0-9a-f]{64}", text)
    assert "clinic sees its labels, every party's embeddings of every training row" in text
    assert "bank sees its own derivative for every training row, from which labels can often be guessed" in text
    assert "all labels" not in text
    assert "no privacy budget" in text


def test_the_terms_say_who_sees_what_with_shared_labels(tmp_path: Path) -> None:
    text = read_party_view(made(tmp_path, SHARED).job, "bank").consent.describe_training()
    for name in ("bank", "shop"):
        assert f"{name} sees all labels; the top model; every party's embeddings, clinic's own among them" in text
    assert "its own derivative" not in text


def test_the_terms_say_that_a_run_will_not_repeat(tmp_path: Path) -> None:
    shape = Shape({"method": "celu", "capacity": 2, "reuse": 2, "overlap": "filling"})
    assert (
        "not reproducible bit for bit"
        in read_party_view(made(tmp_path, shape).job, "bank").consent.describe_training()
    )


def test_rounded_scores_are_said_alike_before_training_and_before_scoring(tmp_path: Path, command: Command) -> None:
    job = made(tmp_path, Shape({"method": "svfl", "scoring": "Cast"})).job
    before_training = command("party", job, "--name", "bank", "--out", tmp_path / "out")
    before_scoring = command("serve", job, "--name", "bank")
    for code, _, said in (before_training, before_scoring):
        assert code == 2
        assert re.search(r"clinic sees .*every party's embeddings of every \S*\s?row[^;]*, rounded by Cast\(\)", said)
        assert "exactly," not in said


def test_a_bad_certificate_is_told_before_the_terms(tmp_path: Path, command: Command) -> None:
    place = made(tmp_path, SVFL)
    (place.certs / "bank.key").chmod(0o644)
    code, _, said = command("party", place.job, "--name", "bank", "--yes", "--out", tmp_path / "out")
    assert code == 2
    assert "bank.key" in said
    assert "chmod 600" in said
    assert "asked to take part" not in said


@pytest.mark.parametrize("address", ["x", "70000", "127.0.0.1:", "1.2.3.4:x"])
def test_a_metrics_address_that_is_none_is_refused(tmp_path: Path, command: Command, address: str) -> None:
    place = made(tmp_path, SVFL)
    words = ("--yes", "--out", tmp_path / "out", "--metrics", address)
    code, _, said = command("party", place.job, "--name", "bank", *words)
    assert code == 2
    assert "--metrics" in said


# Folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, dict[str, Any]]]:
    """A run that has ended, with ids."""
    place = made(tmp_path_factory.mktemp("done"), Shape({"method": "thin"}, ids=True, own_features=True))
    return place, ran(place)


@pytest.mark.parametrize("name", ["bank", LABEL_PARTY])
def test_starting_again_after_the_end_gives_the_same_result(
    done: tuple[Place, dict[str, dict[str, Any]]], command: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, summaries = done
    monkeypatch.setattr(life_cycle, "_LAST_WORD_SECONDS", 0.2)
    words = ("party", place.job, "--name", name, "--yes", "--out", place.out(name))
    code, out, _ = command(*words, "--json")
    assert code == 0
    assert json.loads(out) == summaries[name]
    release(place.out(name))
    code, out, _ = command(*words)
    assert code == 0
    assert f"{name}: {summaries[name]['rounds']} rounds of thin" in out
    assert f"state {summaries[name]['digest'][:16]}" in out
    release(place.out(name))


def release(folder: Path) -> None:
    """The lock ends with the process that ran here, and this one goes on."""
    (folder / "lock").unlink()


def test_changed_data_in_an_existing_folder_are_refused(tmp_path: Path, command: Command) -> None:
    place = made(tmp_path, SVFL)
    ran(place)
    kept = {name: (place.out(name) / "result.json").read_bytes() for name in place.names}
    for name, arrays in (("bank", ("x",)), (LABEL_PARTY, ("y",))):
        with np.load(tmp_path / f"{name}.npz") as held:
            changed = {key: held[key].copy() for key in held.files}
        for array in arrays:
            changed[array][0] = 1 - changed[array][0]
        np.savez(tmp_path / f"{name}.npz", **changed)
        code, _, said = command("party", place.job, "--name", name, "--yes", "--out", place.out(name))
        assert code == 2
        assert f"{name}.{'labels' if name == LABEL_PARTY else 'features'} has changed since the run in" in said
    assert {name: (place.out(name) / "result.json").read_bytes() for name in place.names} == kept


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("job.seed=9", "job.seed"),
        ("job.batch_size=8", "job.batch_size"),
        ("recipe.method=celu", "recipe"),
        ("optimizer.lr=0.5", "optimizer.lr"),
        ("party.bank.model.width=3", "width"),
    ],
)
def test_another_job_in_an_existing_folder_is_refused(
    done: tuple[Place, dict[str, dict[str, Any]]], command: Command, setting: str, field: str
) -> None:
    place, _ = done
    words = ("--set", setting) if "celu" not in setting else ("--set", 'recipe={method="celu",capacity=2,reuse=2}')
    code, _, said = command("party", place.job, "--name", "bank", "--yes", "--out", place.out("bank"), *words)
    release(place.out("bank"))
    assert code == 2
    assert field in said
    assert "use the same job, or a different --out" in said


def test_another_party_in_an_existing_folder_is_refused(
    done: tuple[Place, dict[str, dict[str, Any]]], command: Command
) -> None:
    place, _ = done
    code, _, said = command("party", place.job, "--name", "shop", "--yes", "--out", place.out("bank"))
    release(place.out("bank"))
    assert code == 2
    assert "shop" in said or "bank" in said


def test_split_files_give_the_result_of_one_file(tmp_path: Path) -> None:
    expected = digests(ran(made(tmp_path / "one", SHARED)))
    place = made(tmp_path / "split", SHARED)
    shared = ("name", "top", "fusion", "loss", "class_weights")
    core = {key: value for key, value in place.document.items() if key not in ("party", "label_party")}
    core["party"] = [{"name": name} for name in place.feature_parties]
    core["label_party"] = {
        key: place.document["label_party"][key] for key in shared if key in place.document["label_party"]
    }
    (place.folder / "core.toml").write_text(toml_text(core))
    jobs = {}
    for name in place.names:
        own: Document = {"include": "core.toml"}
        if name == LABEL_PARTY:
            own["label_party"] = place.document["label_party"]
        else:
            own["party"] = [party for party in place.document["party"] if party["name"] == name]
        jobs[name] = place.folder / f"{name}.toml"
        jobs[name].write_text(toml_text(own))
    assert digests(ran(place, jobs=jobs)) == expected


# What it says -----------------------------------------------------------------------------------------------------


def test_the_log_has_one_json_object_a_line_with_its_five_fields(done: tuple[Place, dict[str, Any]]) -> None:
    place, _ = done
    for name in place.names:
        lines = log_of(place.out(name))
        assert lines
        for line in lines:
            assert line["party"] == name
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
            assert isinstance(line["event"], str)
            assert line["peer"] is None or line["peer"] in place.names
            assert line["round"] is None or isinstance(line["round"], int)
    events = [line["event"] for line in log_of(place.out(LABEL_PARTY))]
    assert events[0] == "listening"
    assert {"connected", "begun", "checkpoint"} <= set(events)


def test_the_log_holds_no_data_no_ids_and_no_keys(done: tuple[Place, dict[str, Any]]) -> None:
    place, _ = done
    for name in place.names:
        folder = place.out(name)
        text = (folder / "log.jsonl").read_text()
        with np.load(place.folder / f"{name}.npz") as held:
            ids, values = [*held["id"], *held["id_test"]], [*held["x"].flat, *held["x_test"].flat]
        assert len(values) > COLUMNS
        for value in values:  # as float64, float32, or rounded
            for shown in (repr(float(value)), repr(float(np.float32(value))), f"{value:.6f}"):
                assert shown not in text
        assert not any(one in text for one in ids)
        private = json.loads((folder / "private.json").read_text())
        for secret in ("mac_key", "noise_secret", "run_nonce"):
            assert private[secret]
            assert private[secret] not in text
        assert "BEGIN" not in text
        for file in place.certs.iterdir():
            body = "".join(file.read_text().splitlines()[1:-1])
            assert len(body) < 64 or body[:64] not in text
        assert not re.search(r"[0-9a-f]{64}", text)


def test_refused_certificates_and_ids_stay_out_of_the_log(tmp_path: Path, command: Command) -> None:
    """Even where they are the reason."""
    place = made(tmp_path, Shape({"method": "svfl"}, ids=True))
    with np.load(tmp_path / "bank.npz") as held:
        arrays = {key: held[key] for key in held.files}
    np.savez(tmp_path / "reversed.npz", **{**arrays, "id": arrays["id"][::-1]})
    job = place.write("reversed.toml", lambda document: document["party"][0]["ids"].update(file="reversed.npz"))
    with threads_of_label_party(place):
        code, _, said = command("party", job, "--name", "bank", "--yes", "--out", place.out("bank"))
    assert code == 2
    logs = [(place.out(name) / "log.jsonl").read_text() for name in ("bank", LABEL_PARTY)]
    assert "list different row ids" in said
    assert "list different row ids" in logs[1]
    for text in (said, *logs):
        assert not any(one in text for one in arrays["id"])
    assert not re.search(r"[0-9a-f]{64}", "".join(logs))


def threads_of_label_party(place: Place) -> Any:
    return threads(Place(place.folder, place.port, {**place.document, "party": []}))


def parsed_metrics(text: str) -> dict[str, dict[str, float]]:
    """Prometheus' text format by sample name; every sample after its HELP and TYPE."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for name, labels, value, *_ in family.samples:
            assert family.type != "counter" or name.endswith("_total")
            key = ",".join(f"{label}={labels[label]!r}" for label in sorted(labels))
            assert key not in found.setdefault(name, {}), "the same sample twice"
            found[name][key] = value
    return found


def fetched(url: str, **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        return answer.headers["Content-Type"], answer.read().decode()


def test_metrics_of_every_party_can_be_parsed_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, model=write_gate(tmp_path)))
    (tmp_path / "closed").touch()
    with threads(place) as parties:
        served = {name: MetricsServer(("127.0.0.1", 0), party.run) for name, party in parties.items()}
        try:
            until((tmp_path / "reached").exists)
            for server in served.values():
                kind, text = fetched(f"http://127.0.0.1:{server.port}/metrics")
                assert kind.startswith("text/plain; version=0.0.4")
                assert set(parsed_metrics(text)["thinwire_peer_connected"].values()) == {1.0}
                # A page elsewhere can have a name of its own lead here.
                with pytest.raises(HTTPError, match="421"):
                    fetched(f"http://127.0.0.1:{server.port}/metrics", Host="evil.example")
            (tmp_path / "closed").unlink()
            summaries = finished(parties)
            for name, server in served.items():
                found = parsed_metrics(fetched(f"http://127.0.0.1:{server.port}/metrics")[1])
                assert found["thinwire_rounds"] == {f"party={name!r}": 6.0}
                frames = found["thinwire_frame_bytes_total"]
                sent = sum(count for labels, count in frames.items() if labels.endswith(f"sender={name!r}"))
                assert sent == summaries[name]["sent_bytes"]
        finally:
            for server in served.values():
                server.close()


# Processes --------------------------------------------------------------------------------------------------------


def gated(folder: Path) -> Place:
    folder.mkdir()
    return made(folder, Shape({"method": "celu", "capacity": 2, "reuse": 2}, model=write_gate(folder)))


def test_ctrl_c_leaves_a_run_that_the_same_command_ends(tmp_path: Path) -> None:
    """All three are stopped, as by one Ctrl-C in a terminal; all three go on."""
    expected = digests(ran(gated(tmp_path / "undisturbed")))
    place = gated(tmp_path / "interrupted")
    (place.folder / "closed").touch()
    with PartyProcesses() as started:
        parties = start_all(started, place)
        until_reached(place, parties)
        for party in parties.values():
            party.interrupt()
        parties[LABEL_PARTY].says("stopping after this round")
        (place.folder / "closed").unlink()
        for party in parties.values():
            assert party.code() == 130, party.stderr
            assert "run the same command again" in party.stderr
            assert "Traceback" not in party.stderr
        again = start_all(started, place)
        summaries = {name: party.summary() for name, party in again.items()}
    assert digests(summaries) == expected
    there = simulated(place.job)
    assert {name: sorted(model) for name, model in left_models(place).items()} == {
        name: sorted(module.state_dict()) for name, module in there.models.items()
    }
    assert [event["round"] for event in left_events(place)] == [row["round"] for row in there.history]


def until_reached(place: Place, parties: dict[str, Process]) -> None:
    """Until a gate holds; none may have ended before."""
    until(lambda: (place.folder / "reached").exists() or any(party.ended for party in parties.values()))
    assert [party.stderr for party in parties.values() if party.ended] == []


def start_all(started: PartyProcesses, place: Place) -> dict[str, Process]:
    return {name: started.party(place, name) for name in place.names}


def test_feature_parties_go_through_a_proxy(tmp_path: Path) -> None:
    place = gated(tmp_path / "proxied")
    (place.folder / "closed").touch()
    proxy = ConnectProxy()
    url = f"http://127.0.0.1:{proxy.port}"
    variables = {"bank": {"grpc_proxy": url}, "shop": {"https_proxy": url}}
    try:
        with PartyProcesses() as started:
            parties = {
                name: started.party(place, name, "--metrics", "0", more=variables.get(name, {}))
                for name in place.names
            }
            until_reached(place, parties)
            (place.folder / "closed").unlink()
            for name, party in parties.items():
                summary = party.summary()  # one JSON object, and nothing else
                assert summary["party"] == name
                assert summary["repeatable"] is True
    finally:
        proxy.close()
    assert len(proxy.asked) >= 2
    assert set(proxy.asked) == {place.address}
    assert proxy.carried_bytes > 10_000
    there = simulated(place.job)
    assert [event["test"] for event in left_events(place)] == [row["test"] for row in there.history]


def test_a_label_party_that_is_not_there_yet_is_waited_for_behind_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path, SVFL)
    proxy = ConnectProxy()
    monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{proxy.port}")
    bank = PartyThread(place.job, "bank", place.out("bank"))
    parties = {"bank": bank}
    try:
        bank.start()
        until(lambda: proxy.refused > 1 or bank.error is not None)
        assert bank.error is None
        for name in (LABEL_PARTY, "shop"):
            parties[name] = PartyThread(place.job, name, place.out(name))
            parties[name].start()
        finished(parties)
    finally:
        for party in parties.values():
            party.over()
        proxy.close()


def test_a_port_in_use_for_metrics_is_told(tmp_path: Path) -> None:
    place = made(tmp_path, SVFL)
    quiet = Audience(lambda _: None, lambda _: None, lambda _: None)
    run = open_party_run(read_party_view(place.job, "bank"), place.out("bank"), quiet)
    first = MetricsServer(("127.0.0.1", 0), run)
    try:
        with pytest.raises(BadInput, match=f"--metrics: cannot listen on 127.0.0.1:{first.port}"):
            MetricsServer(("127.0.0.1", first.port), run)
    finally:
        first.close()
        run.session.channel.close()
        run.session.events.close()
        run.session._lock.release()


# What people see --------------------------------------------------------------------------------------------------


def test_on_a_terminal_a_feature_party_follows_rounds_and_bytes_but_no_loss(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}, parties=1))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    clinic = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    clinic.start()
    code, _, said = command("party", place.job, "--name", "bank", "--out", place.out("bank"), "--yes")
    clinic.join()
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    assert re.search(r"bank: svfl .* round [1-6]/6", plain)
    assert re.search(r"  [\d.]+ k?B sent, [\d.]+ k?B received", plain)
    assert "bank: 'clinic' has finished" in plain
    assert "loss" not in plain.replace("dL/dh", "")


def test_a_normal_end_is_no_lost_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hangs up first: here the label party, which no longer answers while the others still dial."""
    place, close = made(tmp_path, SVFL), FeatureRole.disconnect

    def linger(role: FeatureRole) -> None:
        until(lambda: role._dialer._said[0])  # it has found that nobody answers
        close(role)

    monkeypatch.setattr(FeatureRole, "disconnect", linger)
    ran(place)
    for name in place.names:
        lines = log_of(place.out(name))
        assert [line["event"] for line in lines if line["event"] in ("disconnected", "unreached")] == []
        ends = [line for line in lines if line["event"] == "left"]
        assert {line["peer"] for line in ends} == set(place.feature_parties if name == LABEL_PARTY else [LABEL_PARTY])
        assert not any("why" in line for line in ends)
