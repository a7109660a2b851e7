"""Every kind of error has a code that is shown with it, and an explanation."""

from __future__ import annotations

import json
import pkgutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import thinwire
from thinwire.base.errors import BadColumn, NotFinite, ThinwireError
from thinwire.cli.explain import read_explanations

EXPLANATIONS = read_explanations()
Here = Callable[..., subprocess.CompletedProcess[str]]


def every_error(of: type[ThinwireError] = ThinwireError) -> Iterator[type[ThinwireError]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("thinwire."):
            yield kind
            yield from every_error(kind)


def test_the_table_has_every_kind_of_error_and_no_other() -> None:
    for module in pkgutil.walk_packages(thinwire.__path__, "thinwire."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kinds = {kind.code(): kind for kind in every_error()}
    assert len(kinds) == len(set(every_error())), "two kinds of errors share a name"
    assert set(EXPLANATIONS) == set(kinds), "one entry in explanations.toml for each kind of error"
    for name in thinwire.errors.__all__:
        if name != "ThinwireError":
            assert getattr(thinwire.errors, name).code() in EXPLANATIONS
    for entry in EXPLANATIONS.values():
        assert entry["means"].endswith(".")
        assert entry["causes"]
        assert entry["ways_out"]


def test_a_code_is_a_name_in_small_letters() -> None:
    assert BadColumn.code() == "bad-column"
    assert thinwire.errors.IncompatibleRecipe("x").code() == "incompatible-recipe"


def test_an_error_keeps_its_kind_where_it_learns_its_place() -> None:
    error = NotFinite(float("nan"), [1, 2]).at("party.bank").within("job.toml")
    assert type(error) is NotFinite
    assert (error.index, error.field) == ((1, 2), ("party", "bank"))
    assert str(error).startswith("job.toml: party.bank: the tensor holds NaN at [1, 2]")


def test_an_error_is_shown_with_the_code_that_explains_it(here: Here, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[jobb]\n")
    shown = here("check", "job.toml", folder=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr.endswith(" [bad-job]\n")
    explained = here("explain", "bad-job")
    assert explained.returncode == 0
    entry = EXPLANATIONS["bad-job"]
    for said in (entry["means"], *entry["causes"], *entry["ways_out"]):
        assert said in explained.stdout
    assert here("explain", "[BAD_JOB]").stdout == explained.stdout
    assert json.loads(here("explain", "bad-job", "--json").stdout)["code"] == "bad-job"


def test_all_codes_and_one_that_there_is_not(here: Here) -> None:
    listed = here("explain").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(EXPLANATIONS)
    assert list(json.loads(here("explain", "--json").stdout)) == list(EXPLANATIONS)
    wrong = here("explain", "bad-colunm")
    assert wrong.returncode == 2
    assert "did you mean 'bad-column'?" in wrong.stderr
