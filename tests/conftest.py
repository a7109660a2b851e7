"""One set of examples for every run: a failure here is a failure for everybody."""

import os
import signal

# As many workers as cores share them: torch's own threads would wait for each other. Read when torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

from thinwire.base.process import configure_grpc

configure_grpc()  # before any test imports grpc itself: it turns TLS 1.2 off

settings.register_profile(
    "thinwire", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("thinwire")

# A shell's background job ignores Ctrl-C, and so would every process that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
