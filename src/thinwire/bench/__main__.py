"""`python -m thinwire.bench NAME`: one bench in this process; its rows as JSON on stdout."""

import json
import sys
from dataclasses import asdict
from importlib import import_module

from thinwire.bench.suite import BENCHES
from thinwire.process import configure_grpc, share_memory_pool

if __name__ == "__main__":
    configure_grpc()
    share_memory_pool()
    name, *arguments = sys.argv[1:]
    rows = import_module(f"thinwire.bench.{BENCHES[name].name}").rows(*arguments)
    print(json.dumps([asdict(row) for row in rows]))
