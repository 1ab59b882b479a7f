"""``sparrow plugins``: every known plugin, or why it cannot be used; ``sparrow plugins doctor`` tries one out."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparrow_core.cli.doctor import doctor


class _ListsByDefault(TyperGroup):
    """``sparrow plugins [GROUP]`` means ``sparrow plugins list [GROUP]``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListsByDefault, help="List the plugins, or run the conformance suite on one.")
app.command("doctor")(doctor)


@app.command("list")
def plugins(
    group: Annotated[
        str | None,
        typer.Argument(help="Only this group, for example sparrow.policies or policies.", show_default=False),
    ] = None,
) -> None:
    """List every plugin with its origin, or the reason it failed to load; the word list may be left out."""
    from rich.markup import escape
    from rich.table import Table

    from sparrow_core import registry
    from sparrow_core.cli.common import console

    table = Table("group", "name", "origin", "target")
    for each in _groups(group):
        for info in registry.known(each):
            state = escape(info.target)
            if info.error is not None:
                state += f"\n[red]cannot be used:[/] {escape(info.error)}"
            table.add_row(each, escape(info.name), escape(info.origin), state)
        table.add_section()
    console.print(table)


def _groups(wanted: str | None) -> list[str]:
    from sparrow_core.errors import PluginError
    from sparrow_core.registry import GROUPS

    if wanted is None:
        return list(GROUPS)
    full = wanted if wanted.startswith("sparrow.") else f"sparrow.{wanted}"
    if full not in GROUPS:
        raise PluginError(f"plugin group {wanted!r} is unknown; the groups are {', '.join(GROUPS)}")
    return [full]
