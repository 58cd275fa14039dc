"""What the pages take from the code when the site is built, so that nothing is copied by hand.

A line of a page that is nothing but `[[WORD …]]` becomes what the word stands for:

    [[commands]]                    `finetune --help`
    [[options COMMAND…]]            a table of all options of commands
    [[glue]]                        the table of GLUE tasks
    [[layers]]                      who may import whom, from tests/test_imports.py
    [[file PATH]]                   a Markdown file without its heading
    [[section PATH, HEADING]]       what stands below a heading of a Markdown file
    [[code PATH]]                   a Python file as a block

When all is written, each link and each anchor of the site is followed, and nothing may be loaded
from elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import io
import logging
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
log = logging.getLogger("mkdocs.hooks")
LINE = re.compile(r"^\[\[(\w+) ?(.*?)\]\]$", re.M)
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)")
"""A link that leads nowhere from a page of the site."""
EVERYWHERE = {"-h", "--quiet"}
"""Options that every command has: no table needs them."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill a page in; mkdocs calls this for each."""
    return LINE.sub(lambda line: MADE[line[1]](line[2]), markdown)


def on_post_build(config: Any) -> None:
    """Look at what was written; a strict build fails on a warning."""
    for problem in link_problems(Path(config["site_dir"])):
        log.warning(problem)


class _Page(HTMLParser):
    """The links, ids and loaded files of a page."""

    LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in self.LOADS and given.get(self.LOADS[tag]):
            self.loads.append(given[self.LOADS[tag]])


def link_problems(site: Path) -> list[str]:
    """A line for each link that leads nowhere and each file that is loaded from elsewhere."""
    files = sorted(site.resolve().rglob("*.html"))
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in files}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        problems += [f"{name}: loads {url}" for url in page.loads if urlsplit(url).netloc]
        if name.name == "404.html":  # its links are those of the site's root, wherever that is
            continue
        for link in sorted({*page.links, *page.loads}):
            if not _leads_somewhere(link, path, pages):
                problems.append(f"{name}: the link {link} leads nowhere")
    return problems


def _leads_somewhere(link: str, path: Path, pages: dict[Path, _Page]) -> bool:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    target = path if not address.path else (path.parent / unquote(address.path)).resolve()
    if target.is_dir():
        target = target / "index.html"
    anchor = unquote(address.fragment)
    if anchor and target in pages:
        return anchor in pages[target].ids
    return target.is_file()


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```"


def _commands(_: str) -> str:
    from tasks.__main__ import main

    output = io.StringIO()
    with redirect_stdout(output):
        main(["--help"])
    return _block(output.getvalue())


def _options(words: str) -> str:
    """Tables of the options of commands: what several share stands once, under the first."""
    listed: set[tuple[str, str]] = set()
    parts = []
    for command in words.split(", "):
        parser = parser_of(command.split())
        parts.append(f"### {parser.prog}\n\n{_text(parser.description or '')}\n")
        for group in parser._action_groups:
            parts += _group(group, listed)
        if parser.epilog:
            parts.append(_block(parser.epilog) + "\n")
    return "\n".join(parts)


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    """The parser of a command, as its `--help` would show it."""
    from finetune.cli.parser import parsers_shown_to
    from tasks.__main__ import main

    parsers: list[argparse.ArgumentParser] = []
    with parsers_shown_to(parsers.append):
        main([*words, "--help"])
    return parsers[0]


def _group(group: Any, listed: set[tuple[str, str]]) -> list[str]:
    rows = []
    for action in group._group_actions:
        name, help_ = _name(action), _text(_help(action))
        if not EVERYWHERE & set(action.option_strings) and (name, help_) not in listed:
            rows.append(f"| {name} | {help_} |")
            listed.add((name, help_))
    if not rows:
        return []
    title = {"positional arguments": "words"}.get(group.title, group.title)
    return [f"| {title} | {_text(group.description or '')} |", "|---|---|", *rows, ""]


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    metavar = action.metavar or (action.choices and "|".join(map(str, action.choices)))
    value = "" if action.nargs == 0 else f" {metavar or action.dest.upper()}"
    return f"`{', '.join(action.option_strings)}{value}`".replace("|", "\\|")


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _text(text: str) -> str:
    """Text as it stands: nothing in it is Markdown but code between backquotes."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([\\*_{}\[\]|])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
    return "".join(parts)


def _glue(_: str) -> str:
    from tasks.glue.table import glue_table_text

    return _block(glue_table_text())


def _layers(_: str) -> str:
    """Packages by layer, the highest first."""
    layers = _table_of_tests("LAYERS")
    rows = [
        f"| {level} | {', '.join(f'`{name}`' for name in layers[level])} |"
        for level in reversed(range(len(layers)))
    ]
    return "\n".join(["| layer | packages |", "|---|---|", *rows])


def _table_of_tests(name: str) -> tuple[tuple[str, ...], ...]:
    tree = ast.parse((ROOT / "tests/test_imports.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            table: tuple[tuple[str, ...], ...] = ast.literal_eval(node.value)
            return table
    raise LookupError(f"tests/test_imports.py: no table {name}")


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _file(path: str) -> str:
    return RELATIVE.sub(r"\1", _read(path).partition("\n")[2].strip())


def _section(words: str) -> str:
    path, heading = words.split(", ", 1)
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", _read(path), re.M | re.S)
    if section is None:
        raise LookupError(f"{path}: no heading '{heading}'")
    return RELATIVE.sub(r"\1", section[1].strip())


MADE: dict[str, Callable[[str], str]] = {
    "commands": _commands,
    "options": _options,
    "glue": _glue,
    "layers": _layers,
    "file": _file,
    "section": _section,
    "code": lambda path: _block(_read(path), "python"),
}
"""Word -> what it stands for."""
