"""What a shell is to offer after `finetune`, and that as a script for bash, zsh or fish.

The scripts find the page of the command, then the option whose value is being written (the last
word that begins with `--`, unless its values are used up), and offer options, words or files.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Value = Literal["none", "words", "files", "anything"]


@dataclass(frozen=True)
class Option:
    """A flag of a command."""

    flag: str
    """With its dashes."""
    help: str
    """Half a line."""
    value: Value
    """What follows: nothing, one of `words`, a file or a text, or what no shell can know."""
    words: tuple[str, ...] = ()
    """The values there are."""
    many: bool = False
    """Several values may follow."""


@dataclass(frozen=True)
class Page:
    """A command, or one kind of it, such as `inspect probe`."""

    path: str
    """The words after `finetune`."""
    help: str
    """A line."""
    options: tuple[Option, ...]
    """Its flags."""
    first: tuple[str, ...] = ()
    """Words of which one comes first; () where that is a file or nothing."""
    kinds: bool = False
    """Whether each of those words has a page of its own."""


def bash(pages: Sequence[Page]) -> str:
    """A script for bash (from 3.2), to be sourced."""
    lines = [
        "# Completion of finetune for bash; made by: finetune completion bash",
        "_finetune() {",
        *_bash_command(pages),
        *_kind_lines(pages, "COMP_CWORD > 2", "${COMP_WORDS[2]}", 3),
        *_page_lines(pages, _bash_page),
        *_bash_option(pages),
        '    case "$page $flag" in',
        *_value_lines(pages, 'COMPREPLY=($(compgen -W {} -- "$cur")); return', "return"),
        "    esac",
        "    if [[ -z $flag && -n $words ]] && ((COMP_CWORD == first)); then",
        '        COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "        return",
        "    fi",
        "    IFS=$'\\n'",
        "    compopt -o filenames 2>/dev/null",
        '    COMPREPLY=($(compgen -f -- "$cur"))',
        "}",
        "complete -F _finetune finetune",
    ]
    return "\n".join(lines) + "\n"


def _bash_command(pages: Sequence[Page]) -> Iterator[str]:
    """The first word is a command."""
    commands = shlex.quote(" ".join([*_commands(pages), "--help", "--version"]))
    yield "    local IFS=$' \\t\\n' cur=${COMP_WORDS[COMP_CWORD]} page=${COMP_WORDS[1]}"
    yield "    local first=2 flag='' flags='' words='' i"
    yield "    COMPREPLY=()"
    yield "    if ((COMP_CWORD == 1)); then"
    yield f'        COMPREPLY=($(compgen -W {commands} -- "$cur"))'
    yield "        return"
    yield "    fi"


def _bash_page(page: Page) -> str:
    flags = " ".join(option.flag for option in page.options)
    return f"words={shlex.quote(' '.join(page.first))} flags={shlex.quote(flags)}"


def _bash_option(pages: Sequence[Page]) -> Iterator[str]:
    """Find the option whose value is being written; offer options where one begins."""
    yield "    for ((i = COMP_CWORD - 1; i > 1; i--)); do"
    yield "        if [[ ${COMP_WORDS[i]} == --* ]]; then flag=${COMP_WORDS[i]}; break; fi"
    yield "    done"
    yield "    # bash takes `--flag=value` apart at the sign"
    yield "    if [[ $cur == = ]]; then"
    yield "        cur=''"
    yield "    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} != = ]]; then"
    yield "        if [[ $cur == -* ]]; then"
    yield '            COMPREPLY=($(compgen -W "$flags" -- "$cur"))'
    yield "            return"
    yield "        fi"
    yield from _used_up_lines(pages, "COMP_CWORD - i > 1")
    yield "    fi"


def zsh(pages: Sequence[Page]) -> str:
    """A script for zsh, to be sourced after `compinit` or put into a folder of `fpath`."""
    lines = [
        "#compdef finetune",
        "# Completion of finetune for zsh; made by: finetune completion zsh",
        "_finetune() {",
        *_zsh_command(pages),
        *_kind_lines(pages, "CURRENT > 3", "$words[3]", 4),
        *_page_lines(pages, _zsh_page),
        *_zsh_option(pages),
        '    case "$page $flag" in',
        *_value_lines(pages, "compadd -- {}; return", "return", split=True),
        "    esac",
        "    if [[ -z $flag ]] && (( CURRENT == first && $#choices )); then",
        "        compadd -a choices",
        "        return",
        "    fi",
        "    _files",
        "}",
        "if [[ $funcstack[1] == _finetune ]]; then",
        '    _finetune "$@"',
        "else",
        "    compdef _finetune finetune",
        "fi",
    ]
    return "\n".join(lines) + "\n"


def _zsh_command(pages: Sequence[Page]) -> Iterator[str]:
    """The first word is a command."""
    yield "    local cur=$words[CURRENT] page=$words[2] flag=''"
    yield "    local -i first=3 i"
    yield "    local -a commands flags choices"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        commands=({_described(_commands(pages).items())})"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"


def _zsh_page(page: Page) -> str:
    flags = _described((option.flag, option.help) for option in page.options)
    return f"choices=({_quoted(page.first)}) flags=({flags})"


def _zsh_option(pages: Sequence[Page]) -> Iterator[str]:
    """Find the option whose value is being written; offer options where one begins."""
    yield "    for (( i = CURRENT - 1; i > 2; i-- )); do"
    yield "        if [[ $words[i] == --* ]]; then flag=$words[i]; break; fi"
    yield "    done"
    yield "    if [[ $cur == --*=* ]]; then"
    yield "        flag=${cur%%=*}"
    yield "        compset -P '*='"
    yield "    elif [[ $cur == -* ]]; then"
    yield "        _describe -o option flags"
    yield "        return"
    yield "    else"
    yield from _used_up_lines(pages, "CURRENT - i > 1")
    yield "    fi"


def fish(pages: Sequence[Page]) -> str:
    """A script for fish, to be sourced or put into its folder of completions."""
    lines = [
        "# Completion of finetune for fish; made by: finetune completion fish",
        "function __finetune_on --description 'whether a page of finetune is written on'",
        "    set -l words (commandline -opc)",
        "    for page in $argv",
        '        string match -q -- "$page *" "$words[2..] "; and return 0',
        "    end",
        "    return 1",
        "end",
        "function __finetune_first --description 'whether the word after a page is written'",
        "    set -l words (commandline -opc)",
        '    test (count $words) -gt 1; and test "$words[2..]" = "$argv"',
        "end",
        "complete -c finetune -n 'test (count (commandline -opc)) -eq 1' -f",
    ]
    for word, help_ in _commands(pages).items():
        at = "-n 'test (count (commandline -opc)) -eq 1'"
        lines.append(f"complete -c finetune {at} -a {_fish(word)} -d {_fish(help_)}")
    for page in pages:
        if page.first:
            at = _fish(f"__finetune_first {page.path}")
            lines.append(f"complete -c finetune -n {at} -f -a {_fish(' '.join(page.first))}")
    for option, paths in _shared(pages).items():
        at = _fish("__finetune_on " + " ".join(map(_fish, paths)))
        takes = {"none": "", "files": " -r -F", "anything": " -x"}.get(option.value)
        if takes is None:
            takes = f" -x -a {_fish(' '.join(option.words))}"
        name = option.flag.removeprefix("--")
        lines.append(f"complete -c finetune -n {at} -l {name}{takes} -d {_fish(option.help)}")
    return "\n".join(lines) + "\n"


def _commands(pages: Sequence[Page]) -> dict[str, str]:
    return {page.path: page.help for page in pages if " " not in page.path}


def _kind_lines(pages: Sequence[Page], behind: str, word: str, first: int) -> Iterator[str]:
    """Change to the page of a kind, where a command has kinds."""
    parents = [shlex.quote(page.path) for page in pages if page.kinds]
    if parents:
        yield "    case $page in"
        yield f"    {'|'.join(parents)}) if (({behind})); then"
        yield f'        first={first} page="$page {word}"'
        yield "    fi ;;"
        yield "    esac"


def _page_lines(pages: Sequence[Page], offers: Callable[[Page], str]) -> Iterator[str]:
    """What the page of each command offers."""
    yield "    case $page in"
    for page in pages:
        yield f"    {shlex.quote(page.path)}) {offers(page)} ;;"
    yield "    esac"


def _used_up_lines(pages: Sequence[Page], further: str) -> Iterator[str]:
    """Forget an option that is further back than its one value."""
    many = _patterns(pages, lambda option: option.many)
    yield f"        if (({further})); then"
    yield '            case "$page $flag" in'
    if many:
        yield f"            {many}) ;;"
    yield "            *) flag='' ;;"
    yield "            esac"
    yield "        fi"


def _value_lines(
    pages: Sequence[Page], offer: str, nothing: str, *, split: bool = False
) -> Iterator[str]:
    """What follows an option: a line for each set of words, and for those without one."""
    if none := _patterns(pages, lambda option: option.value == "none"):
        yield f"    {none}) flag='' ;;"
    sets = dict.fromkeys(option.words for page in pages for option in page.options if option.words)
    for words in sets:
        shown = _quoted(words) if split else shlex.quote(" ".join(words))
        patterns = _patterns(pages, lambda option, words=words: option.words == words)  # type: ignore[misc]
        yield f"    {patterns}) {offer.format(shown)} ;;"
    if free := _patterns(pages, lambda option: option.value == "anything"):
        yield f"    {free}) {nothing} ;;"


def _patterns(pages: Sequence[Page], chosen: Callable[[Option], bool]) -> str:
    """A shell's pattern of the pages and options that are chosen."""
    every: dict[str, list[bool]] = {}
    for page in pages:
        for option in page.options:
            every.setdefault(option.flag, []).append(chosen(option))
    alike = {flag for flag, choices in every.items() if all(choices)}
    patterns = [f"*' {flag}'" for flag in every if flag in alike]
    patterns += [
        f"'{page.path} {option.flag}'"
        for page in pages
        for option in page.options
        if option.flag not in alike and chosen(option)
    ]
    return "|".join(patterns)


def _shared(pages: Sequence[Page]) -> Mapping[Option, list[str]]:
    """Each option with the pages that have it."""
    shared: dict[Option, list[str]] = {}
    for page in pages:
        for option in page.options:
            shared.setdefault(option, []).append(page.path)
    return shared


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _described(words: Iterable[tuple[str, str]]) -> str:
    """Words with what they mean, as zsh's _describe takes them."""
    return _quoted(f"{word.replace(':', chr(92) + ':')}:{help_}" for word, help_ in words)


def _fish(text: str) -> str:
    """A text in fish's single quotes, in which these two signs alone have a meaning."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
