"""The command line's frame: commands that load when asked for, and errors that become exit codes.

Exit codes: 0 done, 2 bad input (one message, no traceback unless SPARROW_DEBUG=1), 130 interrupted, 1 anything else.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from sparrow_core import registry
from sparrow_core.errors import InputError, PluginError

COMMANDS = {
    "rollout": "sparrow_core.cli.rollout:rollout",
    "measure": "sparrow_core.cli.rollout:measure",
    "calibrate": "sparrow_core.cli.calibrate:calibrate",
    "schedule": "sparrow_core.cli.schedule:app",
    "cost": "sparrow_core.cli.cost:app",
    "convert": "sparrow_core.cli.convert:convert",
    "plugins": "sparrow_core.cli.plugins:app",
    "bench": "sparrow_core.cli.bench:app",
    "demo": "sparrow_core.cli.demo:demo",
    "replay": "sparrow_core.cli.replay:replay",
    "report": "sparrow_core.cli.report:report",
}
"""Built-in commands; each target is a function (one command) or a typer.Typer (subcommands).

Plugins add more in the group sparrow.commands.
"""

_GROUP = "sparrow.commands"


class _LazyCommands(MutableMapping[str, Any]):
    """Command name to click command; the target is imported when the command is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in self._names():
                raise KeyError(name)
            self._loaded[name] = _load_command(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> dict[str, None]:
        return dict.fromkeys([*COMMANDS, *registry.names(_GROUP), *self._loaded])


class _LazyGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: MutableMapping[str, Any] = _LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def _load_command(name: str) -> Any:
    """The click command; one that cannot be used is listed with its reason, which running it raises."""
    try:
        target = _target(name)
    except PluginError as error:
        return get_command(_single(name, _refusal(error)))
    if isinstance(target, typer.Typer):
        command = get_group(target)
        command.name = name
        return command
    return get_command(_single(name, target))


def _target(name: str) -> Any:
    if name not in COMMANDS:
        return registry.load(_GROUP, name)
    if name in registry.names(_GROUP):
        others = ", ".join(str(info) for info in registry.known(_GROUP) if info.name == name)
        raise PluginError(f"command {name!r} is built in but also defined by {others}; uninstall the plugin")
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def _single(name: str, function: Any) -> typer.Typer:
    single = typer.Typer(add_completion=False)
    single.command(name)(function)
    return single


def _refusal(error: PluginError) -> Any:
    def refuse(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        raise error

    refuse.__doc__ = f"Cannot be used: {error}"
    return refuse


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sparrow {version('sparrow-rollout')}")
        raise typer.Exit


@app.callback()
def sparrow(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Block-sparse rollouts for RL on language models, with the mismatch to the dense policy measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` when None) and return its exit code.

    The current directory is searched last for plugins named ``pkg.module:Class``.
    """
    if "" not in sys.path:
        sys.path.append("")
    try:
        app(args=arguments, prog_name="sparrow")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except InputError as error:
        if os.environ.get("SPARROW_DEBUG") == "1":
            raise
        typer.secho("error: ", fg="red", nl=False, err=True)
        typer.echo(str(error), err=True)
        return 2
    except KeyboardInterrupt:
        typer.echo("interrupted; rollouts and calibrations go on from here with the same command", err=True)
        return 130
    return 0
