"""The Python reference: documented parameters are those of the signature, and examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from typing import Any

import pytest

import thinwire as tw
from documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "making"))

from api import documented_names

# What users meet first says what each parameter means.
WHOLE = {
    "thinwire": ["AdaGrad", "Adam", "FeatureParty", "Job", "LabelParty", "Link", "SGD", "load_run", "sweep", "train"],
    "compress": ["HexLattice", "PoissonBinomial", "QSGD", "RandK", "RowScale", "StdGrid", "TopK", "Uniform"],
    "methods": ["boosting", "celu", "cvfl", "efvfl", "fedbcd", "once", "pbm", "thin"],
}


@pytest.fixture(scope="module")
def public() -> dict[str, Any]:
    """Every class and function of the reference, by its dotted name."""
    names = {module: names for module, names in documented_names().items() if names}
    places = {module: tw if module == "thinwire" else getattr(tw, module) for module in names}
    return {f"{module}.{name}": getattr(places[module], name) for module, found in names.items() for name in found}


def _documented_parameters(thing: Any) -> list[str]:
    text = inspect.cleandoc(thing.__doc__ or "")
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []


def test_every_public_name_says_what_it_is(public: dict[str, Any]) -> None:
    assert len(public) > 200
    assert not [name for name, thing in public.items() if not (thing.__doc__ or "").strip()]


def test_documented_parameters_are_those_of_the_signature(public: dict[str, Any]) -> None:
    found = {name: _documented_parameters(thing) for name, thing in public.items()}
    whole = {f"{module}.{name}" for module, names in WHOLE.items() for name in names}
    assert whole <= set(found)
    for name, documented in found.items():
        if documented or name in whole:
            assert documented == list(inspect.signature(public[name]).parameters), name


def test_examples_run(public: dict[str, Any]) -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name, thing in public.items():
        for one in finder.find(thing, name, globs={"tw": tw}):
            runner.run(one)
    assert not runner.failures
    assert runner.tries > 50
