"""Files and overrides become one checked configuration, or an error that names the key, the value and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_core.config import PolicyPlugin, RunConfig, Section, load_as, load_config, resolved, save_config, validate
from sparrow_core.config.yaml_text import parse
from sparrow_core.errors import InputError


def test_defaults_need_no_file() -> None:
    config = load_config()
    assert (config.policy.type, config.attention.backend.type) == ("dense", "sdpa")
    assert config.attention.layout.dense_layers == (0, 1)


def test_a_file_is_overridden_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("policy: {type: static, pages: 8}\nrollout: {seed: 3, max_tokens: 5}\n")
    config = load_config(file, ["policy.pages=32", "rollout.seed=4"])
    assert resolved(config)["policy"] == {"type": "static", "pages": 32}
    assert (config.rollout.seed, config.rollout.max_tokens) == (4, 5)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert load_config(tmp_path / "run.yaml") == load_config()


PLUGIN_FORMS = {
    "bare name": ["policy=dense"],
    "mapping": ["policy={type: static, pages: 8}"],
    "name then option": ["policy=static", "policy.pages=8"],
    "option then name": ["policy.pages=8", "policy=static"],
    "type key": ["policy.type=static", "policy.pages=8"],
    "option then type key": ["policy.pages=8", "policy.type=static"],
    "class path": ["policy=sparrow_policies.static:StaticPolicy", "policy.pages=8"],
}


@pytest.mark.parametrize("overrides", PLUGIN_FORMS.values(), ids=PLUGIN_FORMS)
def test_a_plugin_section_takes_every_form(overrides: list[str]) -> None:
    policy = load_config(None, overrides).policy
    assert policy.type == "dense" or policy.model_dump()["pages"] == 8


def test_the_last_of_two_overrides_for_one_key_wins() -> None:
    assert load_config(None, ["rollout.seed=1", "rollout.seed=2"]).rollout.seed == 2


@pytest.mark.parametrize("override", ["policy=dense", "policy.type=dense"])
def test_naming_another_plugin_drops_the_options_of_the_one_before(tmp_path: Path, override: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("policy: {type: static, pages: 8}\n")
    assert load_config(file, [override]).policy.model_dump() == {"type": "dense"}


def test_naming_the_same_plugin_again_keeps_its_options(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("policy: {type: static, pages: 8}\n")
    assert load_config(file, ["policy.type=static"]).policy.model_dump()["pages"] == 8


WRONG = {
    "unknown section": (
        ["polcy=dense"],
        "unknown key 'polcy'; did you mean 'policy'? Valid keys of the configuration: a",
    ),
    "unknown key": (["rollout.max_token=4"], "unknown key 'rollout.max_token'; did you mean 'rollout.max_tokens'?"),
    "key without section": (["max_tokens=4"], "unknown key 'max_tokens'; did you mean 'rollout.max_tokens'?"),
    "unknown plugin key": (
        ["policy=static", "policy.pages=8", "policy.page=9"],
        "unknown key 'policy.page'; did you mean 'policy.pages'? Valid keys of policy (type static): pages, type",
    ),
    "option of another plugin": (["policy.pages=8"], "valid keys of policy (type dense): type"),
    "missing option": (["policy=static"], "policy.pages is missing; set policy.pages="),
    "unknown policy": (["policy=statik"], "policy='statik': sparrow.policies has no plugin 'statik'; known: "),
    "unknown backend": (["attention.backend=tritn"], "attention.backend='tritn': sparrow.backends has no plugin"),
    "unknown selector": (["attention.selector=x"], "attention.selector='x': sparrow.selectors has no plugin"),
    "no plugin name": (["policy={pages: 3}"], "has no 'type', the plugin's name; sparrow.policies holds "),
    "plugin number": (["policy=7"], "policy=7 must be a plugin's name or a mapping with 'type'"),
    "page size 0": (["attention.page_size=0"], "attention.page_size=0 must be greater than 0"),
    "negative layer": (["attention.dense_layers=[0, -1]"], "attention.dense_layers=[0, -1] must hold layer numbers"),
    "repeated layer": (["attention.dense_layers=[1, 1]"], "must name each layer once"),
    "budget too small": (
        ["policy={type: static, pages: 3}"],
        "policy.pages=3 is below sink + recent + 1 = 1 + 2 + 1; give at least 4 pages",
    ),
    "zero budget": (["policy={type: static, pages: 0}"], "policy.pages=0 must be greater than or equal to 1"),
    "budget below a wider layout": (["policy={type: static, pages: 4}", "attention.sink_pages=2"], "at least 5 pages"),
    "tau": (["mismatch.tau=1.5"], "mismatch.tau=1.5 must be less than 1"),
    "tau zero": (["mismatch.tau=0"], "mismatch.tau=0 must be greater than 0"),
    "temperature": (["rollout.temperature=0"], "set rollout.greedy=true"),
    "not a number": (["rollout.temperature=.nan"], "rollout.temperature=nan must"),
    "dtype": (["model.dtype=int8"], "model.dtype='int8' must be 'float32', 'bfloat16' or 'float16'"),
    "device": (["model.device=gpu"], "model.device='gpu' must be auto, cpu, cuda or cuda:N"),
    "text for a number": (["rollout.seed=abc"], "rollout.seed='abc' must be a valid integer"),
    "value for a section": (["rollout=5"], "rollout=5 must be a section with the keys batch_invariant, "),
    "no equals sign": (["policy"], "override 'policy' must be key=value"),
    "empty key": (["policy..pages=3"], "override 'policy..pages=3' must be key=value"),
    "no YAML": (["policy={a: "], "override 'policy={a: ' has a value that is not YAML"),
    "preset of another page size": (
        ["policy={type: schedule, preset: qwen3-8b-0.86}", "attention.page_size=32"],
        "policy.preset='qwen3-8b-0.86' was made for page_size=16, but attention.page_size=32; set attention.page_size=16",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_override_names_key_value_and_fix(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        load_config(None, overrides)
    assert message in str(error.value)


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollout: {seed: -1, top_p: 2}\nmodle: {}\n")
    with pytest.raises(InputError) as error:
        load_config(file)
    first, *lines = str(error.value).splitlines()
    assert first == f"{file}: 3 problems"
    assert [line.split()[0].split("=")[0] for line in lines] == ["rollout.top_p", "rollout.seed", "unknown"]


FILES = {
    "list": ("- a\n", "must be a mapping of sections"),
    "no YAML": ("a: [1\n", "is not YAML"),
    "key twice": ("rollout: {seed: 1}\nrollout: {seed: 2}\n", "key 'rollout' stands twice"),
    "value below which a key is set": ("attention: 3\n", "goes below 'attention', which holds 3"),
}


@pytest.mark.parametrize(("text", "message"), FILES.values(), ids=FILES)
def test_a_wrong_file_says_so(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "run.yaml", ["attention.page_size=8"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config file '.*none\.yaml' cannot be read"):
        load_config(tmp_path / "none.yaml")


SCALARS = {"1e-6": 1e-6, "1": 1, "-2": -2, "1_000": 1000, "010": "010", "on": "on", "no": "no", "true": True, "": None}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_yaml_scalars_mean_what_people_write(text: str, value: Any) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_a_saved_configuration_loads_to_an_equal_one(tmp_path: Path) -> None:
    config = load_config(None, ["policy={type: static, pages: 9}", "rollout.stop_token_ids=[3, 4]", "output=elsewhere"])
    path = save_config(config, tmp_path / "a" / "b")
    assert load_config(path) == config
    assert yaml.safe_load(path.read_text()) == resolved(config)


def test_an_output_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save_config(load_config(), tmp_path / "file")


@settings(max_examples=25)
@given(
    pages=st.integers(4, 10_000),
    seed=st.integers(0, 2**63),
    temperature=st.floats(1e-6, 100),
    layers=st.lists(st.integers(0, 99), unique=True, max_size=5),
    stop=st.lists(st.integers(0, 10**6), max_size=4),
)
def test_resolved_round_trips(pages: int, seed: int, temperature: float, layers: list[int], stop: list[int]) -> None:
    overrides = {
        "policy.type": "static",
        "policy.pages": pages,
        "rollout.seed": seed,
        "rollout.temperature": temperature,
    }
    overrides |= {"attention.dense_layers": layers, "rollout.stop_token_ids": stop}
    config = load_config(None, [f"{key}={value!r}".replace("'", "") for key, value in overrides.items()])
    assert (config.rollout.seed, config.rollout.temperature) == (seed, temperature)
    assert validate(RunConfig, resolved(config)) == config
    assert validate(RunConfig, yaml.safe_load(yaml.safe_dump(resolved(config)))) == config


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config().rollout.seed = 1  # type: ignore[misc]


class _Part(Section):
    policies: tuple[PolicyPlugin, ...] = ()
    maybe: PolicyPlugin | None = None


class _Root(Section):
    part: _Part
    run: RunConfig | None = None


def test_another_root_model_holds_lists_and_optional_plugins() -> None:
    root = load_as(
        _Root, None, ["part.policies=[dense, {type: static, pages: 8}]", "part.maybe.type=static", "part.maybe.pages=5"]
    )
    assert [policy.type for policy in root.part.policies] == ["dense", "static"]
    assert resolved(root)["part"]["policies"][1]["pages"] == 8
    assert resolved(root)["part"]["maybe"] == {"type": "static", "pages": 5}


def test_errors_inside_a_list_of_plugins_carry_the_index() -> None:
    with pytest.raises(
        InputError, match=r"unknown key 'part\.policies\[1\]\.page'; did you mean 'part\.policies\[1\]\.pages'"
    ):
        load_as(_Root, None, ["part.policies=[dense, {type: static, pages: 8, page: 1}]"])


def test_a_missing_section_is_named() -> None:
    with pytest.raises(InputError, match="part is missing"):
        load_as(_Root)
