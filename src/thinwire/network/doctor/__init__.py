"""Before a run: everything that would stop it later, one check after the other, whatever the ones before found.

for check in examined(Patient(Path("job.toml"), "bank", folder=Path("runs/job/bank")), bytes_shown):
    ...                                    # as they come: some wait for the network
"""

from thinwire.network.doctor.check import Check, Patient, Verdict
from thinwire.network.doctor.examination import examined

__all__ = ["Check", "Patient", "Verdict", "examined"]
