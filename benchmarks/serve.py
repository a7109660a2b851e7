"""What serving together costs on loopback: requests per second, p50 and p99, as ratios to one plain torch server.

The label party with HTTP and two feature parties that it asks over gRPC and mutual TLS, each a process of its own;
beside them one process with the same HTTP stack and the whole network in it, which scores each request by itself.
Both are loaded in turns from this process. Then the run that is served is exchanged for another one under load.

    OMP_NUM_THREADS=1 python benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

from benchmarks.load_test import Load, LoadResult, get_json, load_test
from thinwire.base.errors import ThinwireError
from thinwire.job.job_file import toml_text
from thinwire.net.pki.authority import issue

CLIENTS = (1, 8, 32)
BAR = 0.5  # of the plain server's requests a second, at the most clients
PARTIES, LABEL_PARTY = ("bank", "shop"), "clinic"
ROWS, TESTS, COLUMNS = 512, 4096, 32
GRPC_PORT, HTTP_PORT, PLAIN_PORT = 29_411, 29_412, 29_413
START_SECONDS = 60.0
THINWIRE = Path(sys.executable).with_name("thinwire")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.5, help="of one measurement")
    parser.add_argument("--turns", type=int, default=3, help="of both servers, at each number of clients")
    parser.add_argument("--plain", metavar="RUN", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain is not None:
        serve_plain(Path(given.plain))
        return 0
    with TemporaryDirectory(prefix="thinwire-serve-") as folder:
        return measured(Path(folder), given.seconds, given.turns)


def measured(folder: Path, seconds: float, turns: int) -> int:
    first, second = trained(folder)
    current = folder / "current"
    current.symlink_to(first)
    failed = []
    with running(folder, current, first) as (ours, plain):
        print(f"{'clients':>7} {'':>9} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} {'errors':>7}")
        ratios = {}
        for clients in CLIENTS:
            found: dict[str, list[LoadResult]] = {"together": [], "plain": []}
            for _ in range(turns):
                for name, url in (("together", ours), ("plain", plain)):
                    found[name].append(load_test(Load(url, clients, seconds, deadline_ms=10_000)))
            for name, results in found.items():
                print(line(clients, name, results))
                failed += [f"{name} at {clients} clients: {dict(one.errors)}" for one in results if one.errors]
            ratios[clients] = ratio(found)
            print(f"{clients:>7} {'ratio':>9} " + " ".join(f"{value:>{size}.2f}" for value, size in ratios[clients]))
        errors, models = rolled(ours, current, second, seconds)
        print(f"exchanging the run under 32 clients: {models} models answered, {errors} errors")
    throughput = ratios[CLIENTS[-1]][0][0]
    print(f"bar: {throughput:.2f} of the plain server at {CLIENTS[-1]} clients, {BAR} is asked for")
    if failed:
        print("errors: " + "; ".join(failed))
    return 0 if throughput >= BAR and not failed and errors == 0 and models == 2 else 1


def line(clients: int, name: str, results: Sequence[LoadResult]) -> str:
    told = [one.summary() for one in results]
    middle = [
        statistics.median([one[key] or float("nan") for one in told])
        for key in ("requests_per_second", "p50_ms", "p99_ms")
    ]
    errors = sum(sum(one["errors"].values()) for one in told)
    return f"{clients:>7} {name:>9} {middle[0]:>11.0f} {middle[1]:>8.2f} {middle[2]:>8.2f} {errors:>7}"


def ratio(found: dict[str, list[LoadResult]]) -> list[tuple[float, int]]:
    """Medians of the ratios of each turn: requests per second, p50, p99."""
    pairs = [(a.summary(), b.summary()) for a, b in zip(found["together"], found["plain"], strict=True)]
    keys = (("requests_per_second", 11), ("p50_ms", 8), ("p99_ms", 8))
    return [(statistics.median(ours[key] / theirs[key] for ours, theirs in pairs), size) for key, size in keys]


def rolled(url: str, current: Path, second: Path, seconds: float) -> tuple[int, int]:
    """Errors, and how many models answered, while the path is turned to another run."""
    results: list[LoadResult] = []
    loading = Thread(
        target=lambda: results.append(load_test(Load(url, CLIENTS[-1], seconds + 4, deadline_ms=10_000)))
    )
    loading.start()
    sleep(1.0)
    turned = current.with_name("turned")
    turned.symlink_to(second)
    os.replace(turned, current)
    loading.join()
    return sum(results[0].errors.values()), len(results[0].models)


# The servers ------------------------------------------------------------------------------------------------------


@contextmanager
def running(folder: Path, current: Path, run: Path) -> Iterator[tuple[str, str]]:
    commands: list[list[str]] = [
        [str(THINWIRE), "serve", str(current), "--name", name, "--yes"] for name in (LABEL_PARTY, *PARTIES)
    ]
    commands.append([sys.executable, __file__, "--plain", str(run)])
    hidden = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
    kept = {key: value for key, value in os.environ.items() if key.lower() not in hidden}
    log = (folder / "log").open("wb")
    started = [
        subprocess.Popen(command, cwd=folder, env={**kept, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
        for command in commands
    ]
    ours, plain = f"http://127.0.0.1:{HTTP_PORT}", f"http://127.0.0.1:{PLAIN_PORT}"
    try:
        for url in (ours, plain):
            ready(url, folder / "log")
        yield ours, plain
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)
        log.close()


def ready(url: str, log: Path) -> None:
    deadline = monotonic() + START_SECONDS
    while True:
        try:
            if get_json(url, "/healthz").get("ok"):
                return
        except ThinwireError:
            pass
        if monotonic() > deadline:
            raise TimeoutError(f"{url} does not answer:\n{log.read_text()}")
        sleep(0.1)


def serve_plain(folder: Path) -> None:
    """The same HTTP stack, and all models in one process; each request by itself."""
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from thinwire.predict.run import load_run, read_own_rows

    run = load_run(folder)
    tables = read_own_rows(run, None).tables
    bottoms, top = [(run.models[name], table) for name, table in tables.items()], run.models["top"]

    def json_response(value: dict[str, Any]) -> Response:
        return Response(json.dumps(value, separators=(",", ":")), media_type="application/json")

    async def predict(request: Request) -> Response:
        rows = torch.tensor(json.loads(await request.body())["rows"])
        with torch.no_grad():
            fused = sum(bottom(table[rows]) for bottom, table in bottoms)
            scores = torch.softmax(top(fused), dim=1)
        return json_response({"model": "plain", "scores": scores.tolist()})

    async def model(_: Request) -> Response:
        return json_response({"rows": TESTS})

    async def healthz(_: Request) -> Response:
        return json_response({"ok": True})

    routes = [Route("/v1/predict", predict, methods=["POST"]), Route("/v1/model", model), Route("/healthz", healthz)]
    app = Starlette(routes=routes)
    uvicorn.run(app, port=PLAIN_PORT, http="h11", ws="none", loop="asyncio", log_level="error", access_log=False)


# The job ----------------------------------------------------------------------------------------------------------


def trained(folder: Path) -> tuple[Path, Path]:
    """Two runs of one job, by two seeds."""
    issue(folder / "certs", (LABEL_PARTY, *PARTIES))
    rng = np.random.default_rng(0)
    score = np.zeros(ROWS + TESTS)
    for name in PARTIES:
        table = rng.normal(size=(ROWS + TESTS, COLUMNS)).astype(np.float32)
        score += table[:, 0]
        np.savez(folder / f"{name}.npz", x=table[:ROWS], x_test=table[ROWS:])
    labels = (score > 0).astype(np.int64)
    np.savez(folder / f"{LABEL_PARTY}.npz", y=labels[:ROWS], y_test=labels[ROWS:])
    (folder / "job.toml").write_text(toml_text(document()))
    runs = []
    for seed in (0, 1):
        run = folder / f"run-{seed}"
        command = [str(THINWIRE), "train", "job.toml", "--out", str(run), "--seed", str(seed), "--json"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        runs.append(run)
    return runs[0], runs[1]


def document() -> dict[str, Any]:
    address = f"127.0.0.1:{GRPC_PORT}"
    return {
        "job": {"epochs": 1, "batch_size": 128},
        "recipe": {"method": "thin"},
        "optimizer": {"name": "adam", "lr": 0.01},
        "network": {"listen": address, "address": address},
        "serve": {"http": f"127.0.0.1:{HTTP_PORT}", "deadline_ms": 10_000.0},
        "party": [
            {
                "name": name,
                "features": {"file": f"{name}.npz", "key": "x"},
                "test_features": {"file": f"{name}.npz", "key": "x_test"},
                "model": {"name": "mlp", "hidden": [128, 128], "width": 64},
            }
            for name in PARTIES
        ],
        "label_party": {
            "name": LABEL_PARTY,
            "labels": {"file": f"{LABEL_PARTY}.npz", "key": "y"},
            "test_labels": {"file": f"{LABEL_PARTY}.npz", "key": "y_test"},
            "top": {"name": "mlp_top", "hidden": [64], "classes": 2},
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
