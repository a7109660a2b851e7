"""`thinwire export`: a run's models in formats that others read."""

from __future__ import annotations

from pathlib import Path

from thinwire.cli.output import print_result
from thinwire.report.progress import ProgressLine


def export(run: Path, to: str, out: Path, code: list[str] = [], as_json: bool = False) -> None:
    """Export a run's bottom and top models as ExportedProgram, ONNX or TorchScript."""
    from thinwire.job.own_code import CodeSources
    from thinwire.predict.export import export_party_models, find_format, find_owner
    from thinwire.predict.run import load_run

    find_format(to)
    allowed = CodeSources.parse(code)
    with ProgressLine("reading the tables", 0) as progress:
        follower = progress.follower
        if find_owner(run) is None:
            files = load_run(run, code=allowed, on_progress=follower).export(to, out, on_progress=follower)
        else:
            files = export_party_models(run, to, out, allowed, follower)
    lines = [f"  {name}: {file}, outputs verified against the model" for name, file in files.items()]
    facts = {"to": to, "files": {name: str(file) for name, file in files.items()}}
    print_result(facts, as_json, [*lines, f"  inputs and outputs of each: {out / 'export.json'}"])
