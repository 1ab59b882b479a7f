"""``sparrow plugins``: every known plugin, or why it cannot be used."""

from __future__ import annotations

from typing import Annotated

import typer


def plugins(
    group: Annotated[
        str | None,
        typer.Argument(help="Only this group, for example sparrow.policies or policies.", show_default=False),
    ] = None,
) -> None:
    """List every plugin with its origin, or the reason it failed to load."""
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
