"""`finetune inspect`: a look inside the net. A table on stdout, and files in --out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.inspect_language import (
    alignment_command,
    frequency_command,
    lens_command,
    pairs_command,
    words_command,
)
from finetune.cli.inspect_output import ABOUT, RUN, RUNS, check_ready, make_parser, show, write
from finetune.cli.parser import whole
from finetune.console.output import put
from finetune.errors import ConfigError, nearest
from finetune.ranges import MOST_SEED

if TYPE_CHECKING:
    from finetune.inspection import Model, TextChoice

ATTENTION = """\
Writes attention.json (tokens, segments, and the weights by layer, head, query and key), and
attention.html, an interactive page that needs no network; with --png also attention.png.

A weight is the fraction of a token's value that is mixed in, not its importance: other weights can
give the same answer (Jain and Wallace, 2019; but see Wiegreffe and Pinter, 2019), a large
weight on a short value moves little, as for [SEP] (Kobayashi et al., 2020), and above the first
layer a position is a mixture of tokens."""
HEADS = """\
distance: mean distance in tokens, weighted by attention; entropy: in nats; of [CLS]: entropy of the
attention of [CLS]; then the fraction of attention on [CLS], on [SEP], on the token itself, on the
previous and on the next token (Clark et al., 2019). The last line is uniform attention.

Attention on [SEP] mostly means that a head does nothing, and no number here says what a head is
needed for: see `finetune inspect attention --help`."""
PROBE = """\
Multinomial logistic regression on one vector a text, a layer at a time; the penalty is chosen on a
held-out tenth of the training examples, which each seed draws again. ± is the standard deviation
over the runs of a folder of seeds, or over the seeds of the probes for one run. "scalar mix" learns
a weight for each layer with the classifier (Peters et al., 2018, section 3.2).

A probe shows what a linear map can predict from a layer, not what the network uses (Belinkov,
2022). Compare with the trivial baseline, and with --untrained: an encoder of the same shape with
random weights. The hidden states come from one forward pass, kept in the cache that fine-tuning
uses."""
SIMILARITY = """\
Of one run: its own layers, and whether they collapse with depth. "layer below": how little a layer
changes; "cosine of tokens": how alike two tokens of a text are; "residual": what is left of a
text's states without their mean, 0 where all tokens have one state (Dong et al., 2021). Of several:

Linear CKA (Kornblith et al., 2019) of the same layer of two encoders over the same texts, 0 to 1,
for all pairs of runs; ± is the standard deviation over pairs. similarity.json has every layer
against every layer.

Use several examples per feature: with fewer, CKA is near 1 for any two layers. A few directions of
large variance can decide it (Davari et al., 2023)."""


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        print(_overview())
        return 0
    if arguments[0] not in KINDS:
        raise ConfigError(f"inspect: unknown kind {arguments[0]!r}; {nearest(arguments[0], KINDS)}")
    return KINDS[arguments[0]][1](arguments[1:])


def _overview() -> str:
    width = max(map(len, KINDS))
    rows = [f"  {word.ljust(width)}  {about}" for word, (about, _) in KINDS.items()]
    usage = "usage: finetune inspect KIND RUN [options]     finetune inspect KIND --help"
    return "\n".join([usage, "", *rows])


def _add_texts(parser: argparse.ArgumentParser, *, file: bool, limit: int) -> None:
    parser.add_argument("--task", help="task, as glue/sst2 (default: that of the first run)")
    parser.add_argument("--data", help="folder with the official files (default: FINETUNE_DATA)")
    if file:
        parser.add_argument("--split", help="split (default: the validation split)")
        fields = (
            "file with texts instead of a task: one text per line, or fields text | text1, text2"
        )
        parser.add_argument("--input", help=fields)
    sizes = f"number of texts drawn from the split; 0 = all (default: {limit})"
    parser.add_argument("--limit", type=whole(0), default=limit, help=sizes)
    parser.add_argument("--max-length", type=whole(0), help="longest text in tokens")
    parser.add_argument("--cache-dir", help="default: FINETUNE_CACHE or ~/.cache/finetune")
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)


def _choice(space: argparse.Namespace) -> TextChoice:
    from finetune.inspection import TextChoice

    return TextChoice(
        task=space.task,
        data=space.data,
        split=getattr(space, "split", None),
        file=getattr(space, "input", None),
        limit=space.limit or None,
        max_length=space.max_length,
    )


def _cache(space: argparse.Namespace) -> dict[str, Any]:
    from finetune.training.config import CacheConfig

    return {"caching": CacheConfig(cache=space.cache), "cache_dir": space.cache_dir}


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(map(whole(0, MOST_SEED), text.split(",")))


def _attention(arguments: list[str]) -> int:
    parser = make_parser("attention", ATTENTION, png=True)
    parser.add_argument("run", type=Path, help=RUN)
    parser.add_argument("text", help="text to read")
    parser.add_argument("pair", nargs="?", help="the second text of a pair")
    parser.add_argument(
        "--layer", type=whole(0), help="first one shown, from 1 (default: mean of all)"
    )
    parser.add_argument(
        "--head", type=whole(0), help="first one shown, from 1 (default: mean of all)"
    )
    parser.add_argument("--max-length", type=whole(0), help="longest text in tokens (default: 128)")
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection import attention_map, attention_page, load_model

    model = load_model(space.run)
    config = model.encoder.config
    layer = _number("layer", space.layer, config.num_hidden_layers)
    head = _number("head", space.head, config.num_attention_heads)
    shown = attention_map(
        model.encoder, model.tokenizer, space.text, space.pair, max_length=space.max_length
    )
    text = [one for one in (space.text, space.pair) if one is not None]
    content = {"run": str(space.run), "texts": text, **shown.as_json()}
    # On one line: a number a line would make it several times as large.
    write(space.out, "attention.json", json.dumps(content, ensure_ascii=False) + "\n")
    title = f"Attention of {space.run}"
    write(space.out, "attention.html", attention_page(shown, title, layer, head))
    if space.png:
        from finetune.inspection.plots import attention_png

        write(space.out, "attention.png", attention_png(shown, layer, head))
    if space.json:
        summary = {name: value for name, value in content.items() if name != "weights"}
        files = [f"{space.out}/attention.{kind}" for kind in ("json", "html", "png")]
        summary["files"] = files if space.png else files[:2]
        put(json.dumps(summary, ensure_ascii=False))
    return 0


def _number(name: str, given: int | None, count: int) -> int:
    """A layer or head counted from 0; -1 where none is named."""
    if given is not None and not 1 <= given <= count:
        raise ConfigError(f"--{name}: expected 1 to {count}, got {given}")
    return -1 if given is None else given - 1


def _heads(arguments: list[str]) -> int:
    parser = make_parser("heads", HEADS)
    parser.add_argument("run", type=Path, help=RUN)
    _add_texts(parser, file=True, limit=500)
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection import load_model, read_sequences, summarize_heads

    model = load_model(space.run)
    sequences = read_sequences(model, _choice(space))
    heads = summarize_heads(model, sequences)
    content = {"run": str(space.run), "texts": sequences.about, **heads.as_json()}
    show(space, heads.as_text(), content)
    write(space.out, "heads.json", content)
    return 0


def _probe(arguments: list[str]) -> int:
    from finetune.inspection.probes import LIMIT

    parser = make_parser("probe", PROBE, png=True)
    parser.add_argument("run", type=Path, nargs="+", help=RUNS)
    _add_texts(parser, file=False, limit=LIMIT)
    parser.add_argument(
        "--pooling", default="mean", help="cls, last, mean (default), max or concat"
    )
    seeds = "seeds (default: 1,2,3)"
    action = parser.add_argument("--seeds", type=_seeds, default=(1, 2, 3), help=seeds)
    vars(action)["numbers"] = True
    parser.add_argument("--untrained", action="store_true", help="also probe random weights")
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection.probes import probe_table

    groups = _probe_groups(space)
    first = next(iter(groups.values()))[0]
    metric = first["metric"]
    content = {"metric": metric, "groups": groups}
    show(space, probe_table(groups, metric), content)
    write(space.out, "probe.json", content)
    if space.png:
        from finetune.inspection.plots import curves_png
        from finetune.inspection.probes import curve, curve_names, trivial_score

        names = curve_names(probed[0] for probed in groups.values())
        curves = {name: curve(probed, metric) for name, probed in groups.items()}
        label = f"{first['task']}: {metric}"
        picture = curves_png(curves, names, label, trivial_score(first, metric))
        write(space.out, "probe.png", picture)
    return 0


def _probe_groups(space: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What the probes of each named folder gave, a run each."""
    from finetune.inspection import ProbeConfig, probe
    from finetune.inspection.probes import untrained

    config = ProbeConfig(space.pooling, space.seeds, space.limit or None)
    models = _models(space.run)
    choice = _same_texts(space, models)
    groups: dict[str, list[dict[str, Any]]] = {}

    def add(name: str, model: Model) -> None:
        scores = probe(model, choice, config, **_cache(space))
        groups.setdefault(name, []).append({"run": str(model.place), **scores})

    for name, model in models:
        add(name, model)
    if space.untrained:
        add("untrained", untrained(models[0][1]))
    return groups


def _models(folders: list[Path]) -> list[tuple[str, Model]]:
    """The model of each run, with the name of the folder that stands for it."""
    from finetune.inspection import load_model
    from finetune.jobs.sources import runs_of

    short = [folder.name for folder in folders]
    names = short if len(set(short)) == len(set(folders)) else [str(folder) for folder in folders]
    return [
        (name, load_model(run))
        for name, folder in zip(names, folders, strict=True)
        for run in runs_of(folder)
    ]


def _same_texts(space: argparse.Namespace, models: list[tuple[str, Model]]) -> TextChoice:
    """What all models read: where no task is named, that of the first run that has one."""
    from dataclasses import replace

    from finetune.jobs.sources import fine_tuning

    choice = _choice(space)
    if choice.task is not None or choice.file is not None:
        return choice
    runs = [model.place for _, model in models]
    return replace(choice, run=next((r for r in runs if fine_tuning(r)), None))


def _similarity(arguments: list[str]) -> int:
    parser = make_parser("similarity", SIMILARITY, png=True)
    parser.add_argument("run", type=Path, nargs="+", help=RUNS)
    _add_texts(parser, file=True, limit=1000)
    how = "tokens: each is an example (default); or a vector a text: mean, cls, last, max, concat"
    parser.add_argument("--pooling", default="tokens", help=how)
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection import read_sequences
    from finetune.inspection.layers import check_pooling
    from finetune.inspection.similarity import (
        TOKENS,
        compare_models,
        group_pairs,
        layers_within,
        similarity_table,
        within_table,
    )

    check_pooling(space.pooling, TOKENS)
    models = _models(space.run)
    choice = _same_texts(space, models)
    sequences = [read_sequences(model, choice) for _, model in models]
    only = [model for _, model in models]
    pairs = compare_models(only, sequences, space.pooling, **_cache(space))
    grouped = group_pairs(pairs, [name for name, _ in models])
    runs = [str(model.place) for model in only]
    content = {"texts": sequences[0].about, "pooling": space.pooling, "runs": runs}
    content |= {"names": [name for name, _ in models], "groups": grouped, "pairs": pairs}
    shown = similarity_table(grouped)
    if len(only) == 1:
        content["layers"] = layers_within(only[0], sequences[0], **_cache(space))
        shown = within_table(content["layers"], pairs[0]["cka"])
    show(space, shown, content)
    write(space.out, "similarity.json", content)
    if space.png:
        from finetune.inspection.plots import similarity_png

        names = ["/".join(model.place.parts[-2:]) for model in only]
        write(space.out, "similarity.png", similarity_png(pairs, names))
    return 0


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "attention": _attention,
    "alignment": alignment_command,
    "heads": _heads,
    "probe": _probe,
    "similarity": _similarity,
    "logit-lens": lens_command,
    "pairs": pairs_command,
    "words": words_command,
    "frequency": frequency_command,
}
KINDS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    word: (ABOUT[word], run) for word, run in _COMMANDS.items()
}
"""Word after `finetune inspect` -> what it does, in a line, and the function."""
