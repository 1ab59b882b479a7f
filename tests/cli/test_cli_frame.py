"""Exit codes, messages without tracebacks, and commands that load lazily."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_core.cli import common, main
from sparrow_core.cli.common import split_arguments
from sparrow_core.errors import InputError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not wrapped, whatever COLUMNS says."""
    monkeypatch.setattr(common, "console", Console(width=200, highlight=False))


def _plugin(root: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, name: str = "extra") -> None:
    info = root / "fake_commands-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake_commands\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[sparrow.commands]\n{name} = {target}\n")
    (root / f"{target.partition(':')[0]}.py").write_text(source)
    monkeypatch.syspath_prepend(str(root))


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sparrow 0.")


def test_help_lists_the_commands(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("rollout", "measure", "convert", "plugins", "bench", "demo"))


def test_help_does_not_import_torch() -> None:
    code = "import sys; from sparrow_core.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_plugins_lists_every_group_with_origin(capsys: Capture) -> None:
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "sparrow_policies.static:StaticPolicy" in out
    assert "sparrow.selectors" in out
    assert "sparrow-rollout 0." in out


@pytest.mark.parametrize("group", ["policies", "sparrow.policies"])
def test_plugins_takes_one_group(capsys: Capture, group: str) -> None:
    assert main(["plugins", group]) == 0
    out = capsys.readouterr().out
    assert "StaticPolicy" in out
    assert "sparrow.selectors" not in out


def test_plugins_shows_why_one_failed_to_load(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plugin(tmp_path, monkeypatch, "import no_such_thing\n", "fake_failing:run")
    assert main(["plugins", "commands"]) == 0
    out = capsys.readouterr().out
    assert "fake_commands 2.0" in out
    assert "No module named 'no_such_thing'" in out


BAD_INPUT = {
    "unknown group": (["plugins", "polices"], "plugin group 'polices' is unknown"),
    "unknown policy": (["rollout", "policy=statik"], "did you mean 'static'?"),
    "unknown backend": (["measure", "attention.backend=tritn"], "sparrow.backends has no plugin 'tritn'"),
    "unknown key": (["measure", "rollout.max_token=3"], "did you mean 'rollout.max_tokens'?"),
    "page size 0": (["measure", "attention.page_size=0"], "attention.page_size=0 must be greater than 0"),
    "budget": (["rollout", "policy=static", "policy.pages=3"], "give at least 4 pages"),
    "tau": (["measure", "mismatch.tau=1"], "mismatch.tau=1 must be less than 1"),
    "no file": (["rollout", "none.yaml"], "config file 'none.yaml' cannot be read"),
    "two files": (["rollout", "a.yaml", "b.yaml"], "'b.yaml' is neither key=value"),
    "convert dtype": (["convert", "smollm2", "out", "--dtype", "int8"], "dtype='int8' must be"),
    "convert missing": (["convert", "./no/such/directory", "out"], "no/such/directory"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_message_and_exit_code_2(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err + captured.out


def test_convert_does_not_write_into_a_directory_that_holds_files(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    assert main(["convert", "smollm2", str(tmp_path)]) == 2
    assert "already holds files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["mesure"], "Did you mean 'measure'"), (["plugins", "--nope"], "No such option"), (["bench", "gpuu"], "No such")],
)
def test_usage_errors_exit_with_2(capsys: Capture, arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_DEBUG", "1")
    with pytest.raises(InputError):
        main(["plugins", "polices"])


COMMANDS = {
    "interrupted": ("def run():\n    raise KeyboardInterrupt\n", "run", ["extra"], 130, ""),
    "function": ("def run(n: int = 1):\n    print('ran', n)\n", "run", ["extra", "--n", "3"], 0, "ran 3"),
    "subcommands": (
        "import typer\napp = typer.Typer()\n@app.command()\ndef one():\n    print('one ran')\n",
        "app",
        ["extra", "one"],
        0,
        "one ran",
    ),
    "fails to import": ("raise OSError('no disk')\n", "run", ["extra"], 2, "OSError: no disk"),
    "fails with arguments": ("raise OSError('no disk')\n", "run", ["extra", "a", "b=c"], 2, "OSError: no disk"),
    "neither function nor app": ("run = 3\n", "run", ["extra"], 2, "a command is a function or a typer.Typer"),
    "help": ("raise OSError('no disk')\n", "run", ["--help"], 0, "Cannot be used"),
}


@pytest.mark.parametrize(("source", "attribute", "arguments", "code", "text"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_from_a_plugin(
    request: pytest.FixtureRequest,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    attribute: str,
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    module = "fake_command_" + request.node.callspec.id.replace(" ", "_")
    _plugin(tmp_path, monkeypatch, source, f"{module}:{attribute}")
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert text in captured.out + captured.err


def test_a_plugin_cannot_replace_a_built_in_command(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plugin(tmp_path, monkeypatch, "def run(): ...\n", "fake_command_twin:run", name="plugins")
    assert main(["plugins"]) == 2
    assert "built in but also defined by plugins (fake_commands 2.0" in capsys.readouterr().err


def test_a_plugin_module_in_the_current_directory_is_found(tmp_path: Path) -> None:
    source = "from sparrow_policies.static import StaticPolicy\nclass Mine(StaticPolicy): ...\n"
    (tmp_path / "my_policy_here.py").write_text(source)
    command = [Path(sys.executable).with_name("sparrow"), "rollout", "policy=my_policy_here:Mine", "policy.pages=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "policy.pages=1 is below sink + recent + 1" in done.stderr


def test_arguments_are_a_file_and_overrides_in_any_order() -> None:
    assert split_arguments(None) == (None, [])
    assert split_arguments(["a=1", "run.yaml", "b=x.yaml"]) == (Path("run.yaml"), ["a=1", "b=x.yaml"])
