"""No plugin is ever skipped without a word: unknown, duplicate and broken ones name themselves and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from sparrow_core import registry
from sparrow_core.contracts import CostModel, PluginConfig, SparsityPolicy
from sparrow_core.errors import InputError, PluginError
from sparrow_core.registry import known, load, register, unregister

POLICIES = "sparrow.policies"

BROKEN = {
    "import_error": ("import no_such_package_here\n", "No module named 'no_such_package_here'"),
    "syntax_error": ("def broken(:\n", "SyntaxError"),
    "raises": ("raise RuntimeError('GPU is on fire')\n", "RuntimeError: GPU is on fire"),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "no_class": ("", "has no attribute 'Policy'"),
    "not_a_class": ("Policy = 3\n", "derive a class from sparrow_core.contracts.SparsityPolicy"),
    "wrong_contract": ("class Policy: pass\n", "derive a class from sparrow_core.contracts.SparsityPolicy"),
    "wrong_version": (
        "from sparrow_policies.static import StaticPolicy\nclass Policy(StaticPolicy):\n    api_version = 99\n",
        "written for api_version 99",
    ),
    "no_config": (
        "from sparrow_core.contracts import SparsityPolicy\n"
        "class Policy(SparsityPolicy):\n    def schedule(self): ...\n",
        "give it a class attribute Config",
    ),
    "abstract": (
        "from sparrow_core.contracts import *\nfrom sparrow_core.contracts import PluginConfig\n"
        "class Policy(SparsityPolicy):\n    Config = PluginConfig\n",
        "does not define schedule",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_plugin_that_cannot_be_used_is_reported_by_load_known_and_unknown(
    install: Any, source: str, reason: str
) -> None:
    install("fake_dist", {POLICIES: {"bad": "fake_bad:Policy"}}, {"fake_bad": source})
    with pytest.raises(PluginError) as by_name:
        load(POLICIES, "bad")
    assert reason in str(by_name.value)
    assert "fake_dist 1.5" in str(by_name.value)
    [info] = [info for info in known(POLICIES) if info.name == "bad"]
    assert info.error is not None
    assert reason in info.error
    with pytest.raises(PluginError) as by_other_name:
        load(POLICIES, "absent")
    assert reason in str(by_other_name.value)


def test_a_broken_plugin_leaves_the_others_usable(install: Any) -> None:
    install("fake_dist", {POLICIES: {"bad": "fake_bad:Policy"}}, {"fake_bad": "raise KeyError('x')"})
    assert load(POLICIES, "static").__name__ == "StaticPolicy"
    assert {info.name: info.error for info in known(POLICIES)}["static"] is None


def test_an_entry_point_plugin_loads_by_name_and_says_its_origin(install: Any, good_policy: str) -> None:
    install("fake_dist", {POLICIES: {"good": "fake_good:Policy"}}, {"fake_good": good_policy})
    assert issubclass(load(POLICIES, "good"), SparsityPolicy)
    [info] = [info for info in known(POLICIES) if info.name == "good"]
    assert (info.error, info.origin, info.target) == (None, "fake_dist 1.5", "fake_good:Policy")


def test_names_imports_nothing(install: Any) -> None:
    install("fake_dist", {POLICIES: {"bad": "fake_bad:Policy"}}, {"fake_bad": "raise RuntimeError('imported')"})
    assert "bad" in registry.names(POLICIES)


def test_two_distributions_with_one_name_are_an_error_that_names_both(install: Any, good_policy: str) -> None:
    install("fake_one", {POLICIES: {"twin": "fake_a:Policy"}}, {"fake_a": good_policy})
    install("fake_two", {POLICIES: {"twin": "fake_b:Policy"}}, {"fake_b": good_policy})
    with pytest.raises(PluginError, match=r"two plugins 'twin'") as error:
        load(POLICIES, "twin")
    assert "fake_one 1.5" in str(error.value)
    assert "fake_two 1.5" in str(error.value)
    assert [info.error is not None for info in known(POLICIES) if info.name == "twin"] == [True, True]
    assert issubclass(load(POLICIES, "fake_a:Policy"), SparsityPolicy)


def test_an_outside_plugin_cannot_take_a_built_in_name(install: Any, good_policy: str) -> None:
    install("fake_dist", {POLICIES: {"static": "fake_good:Policy"}}, {"fake_good": good_policy})
    with pytest.raises(PluginError, match="sparrow-rollout"):
        load(POLICIES, "static")


def test_a_path_loads_a_class_without_an_entry_point(install: Any, good_policy: str) -> None:
    install("fake_dist", {}, {"fake_good": good_policy})
    assert load(POLICIES, "fake_good:Policy").__name__ == "Policy"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module_here:X", "No module named 'no_such_module_here'; install the package or mend the path"),
        ("sparrow_policies.static:Statik", "Statik"),
        ("sparrow_policies.static:StaticConfig", "derive a class from sparrow_core.contracts.SparsityPolicy"),
        (":X", "Empty module name"),
        ("os:", "has no attribute"),
    ],
)
def test_a_path_that_is_wrong_says_why(path: str, reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        load(POLICIES, path)


def test_an_unknown_name_lists_the_known_and_the_closest() -> None:
    with pytest.raises(PluginError, match=r"known: .*dense.*static.*did you mean 'static'\?") as error:
        load(POLICIES, "statik")
    assert isinstance(error.value, InputError)


def test_an_unknown_group_lists_the_groups() -> None:
    with pytest.raises(PluginError, match=r"the groups are sparrow\.backends"):
        load("sparrow.polices", "static")


class _Cost(CostModel):
    Config = PluginConfig
    unit = "seconds"

    def step_cost(self, lengths_B: Any, pages_B: Any) -> float:
        return 0.0


class _OtherCost(_Cost):
    pass


def test_a_registered_class_is_known_until_it_is_removed() -> None:
    register("sparrow.cost_models", "for_a_test", _Cost)
    try:
        register("sparrow.cost_models", "for_a_test", _Cost)
        assert load("sparrow.cost_models", "for_a_test") is _Cost
        assert "this program" in [info.origin for info in known("sparrow.cost_models")]
        with pytest.raises(PluginError, match="already has for_a_test"):
            register("sparrow.cost_models", "for_a_test", _OtherCost)
    finally:
        unregister("sparrow.cost_models", "for_a_test")
    with pytest.raises(PluginError, match="no plugin 'for_a_test'"):
        load("sparrow.cost_models", "for_a_test")


def test_register_checks_the_contract_at_once() -> None:
    with pytest.raises(PluginError, match="derive a class from"):
        register("sparrow.backends", "for_a_test", _Cost)


@pytest.mark.parametrize("group", registry.GROUPS)
def test_every_plugin_of_this_distribution_can_be_used(group: str) -> None:
    own = [info for info in known(group) if info.distribution == "sparrow-rollout"]
    assert {info.name: info.error for info in own if info.error} == {}
