"""Leakage attacks against a run: what each party could learn beyond what it was meant to.

report = audit_run("runs/ctr")          # or audit_job(job), after train(job)
for finding in report.findings:
    print(finding.attack, finding.undefended_score, finding.score, finding.meaning)

The attacks are functions over tensors, one file each; `dp_release` and `stateful` measure a privacy claim instead.
"""

from thinwire.lab.attacks.audit import audit_job, audit_run
from thinwire.lab.attacks.dp_release import Release, ReleaseAudit, audit_release
from thinwire.lab.attacks.findings import AuditReport, Finding, ModelScore
from thinwire.lab.attacks.messages import MessageAudit, audit_messages
from thinwire.lab.attacks.stateful import Scene, audit_stateful
from thinwire.lab.attacks.views import record_derivatives

__all__ = ["AuditReport", "Finding", "MessageAudit", "ModelScore", "Release", "ReleaseAudit", "Scene"]
__all__ += ["audit_job", "audit_messages", "audit_release", "audit_run", "audit_stateful", "record_derivatives"]
