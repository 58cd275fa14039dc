"""`finetune inspect` of language models: what they predict, and the words that they know."""

from __future__ import annotations

from pathlib import Path

from finetune.cli.inspect_output import RUN, check_ready, make_parser, show, write
from finetune.cli.parser import whole
from finetune.console.output import counted

LENS = """\
Each token is masked alone, or predicted from those before it if the model is causal. [MASK] in the
text of a masked model is a gap: all tokens are read with it, and it counts as neither right nor
wrong. nats: minus the mean log probability of the token; right: how often it is the first
candidate; "as the last": how often the first candidate is that of the last layer; KL(last || layer)
in nats. Below, the first candidate of each token in some layers; logit-lens.json has all layers.

The head was trained for the last layer: what it does not read off a layer may be there in another
form (Belrose et al., 2023)."""
PAIRS = """\
Fields: sentence_good, sentence_bad, and optionally linguistics_term and UID, by which the pairs are
grouped. A causal model scores a sentence by its log-likelihood, a masked one by its
pseudo-log-likelihood: each token masked alone (Salazar et al., 2020). A tie is wrong, and
guessing gets half of the pairs right. pairs.json has the scores of each pair.

BLiMP (Warstadt et al., 2020): github.com/alexwarstadt/blimp, folder data."""
ALIGNMENT = """\
A row is a token that was written, a column a token that was read: the fraction of its weight, the
mean over the heads of the last block (Bahdanau et al., 2015, figure 3). alignment.json has every
block. `finetune report RUN --inside alignment.json` draws it. Weights show what was mixed in, not
why: above the first block of the encoder a position is a mixture of tokens."""
FREQUENCY = """\
Masked tokens of held-out documents, by the frequency of the token in the training documents. The
corpus, the split and the masks are those of the run's validation. "unigram" is the loss of a model
that knows only these counts."""


def lens_command(arguments: list[str]) -> int:
    """Read the tokens of texts off each layer by the language-model head."""
    parser = make_parser("logit-lens", LENS)
    parser.add_argument("run", type=Path, help="folder of a pretraining run, masked or causal")
    parser.add_argument("text", nargs="+", help="texts to read")
    top = "candidates of each token and layer in the file (default: 5)"
    parser.add_argument("--top-k", type=whole(1), default=5, help=top)
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection.logit_lens import lens_table, logit_lens
    from finetune.jobs.sources import load_language_model
    from finetune.runs.folder import RunFolder

    module, tokenizer = load_language_model(RunFolder(space.run).one_run().path)
    found = logit_lens(module, tokenizer, space.text, space.top_k)
    content = {"run": str(space.run), **found}
    show(space, lens_table(found), content)
    write(space.out, "logit-lens.json", content)
    return 0


def pairs_command(arguments: list[str]) -> int:
    """Judge a language model by minimal pairs."""
    parser = make_parser("pairs", PAIRS)
    parser.add_argument("run", type=Path, help="folder of a pretraining run, masked or causal")
    files = "JSON lines in BLiMP's form, or a folder of such files"
    parser.add_argument("--file", nargs="+", required=True, help=files)
    limit = "pairs of each UID at most, drawn by a seed; 0 = all (default: 0)"
    parser.add_argument("--limit", type=whole(0), default=0, help=limit)
    size = "sequences that are read at once (default: 64)"
    parser.add_argument("--batch-size", type=whole(1), default=64, help=size)
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection.pairs import judge_pairs, pairs_table
    from finetune.runs.folder import say

    judged = judge_pairs(
        space.run, space.file, limit=space.limit or None, batch_size=space.batch_size
    )
    if judged["unknown_tokens"]:
        tokens = counted(judged["unknown_tokens"], "token")
        say(f"warning: {tokens} unknown to the tokenizer: sentences that differ in them alone tie")
    content = {"run": str(space.run), "files": space.file, **judged}
    summary = {name: value for name, value in content.items() if name != "pairs"}
    show(space, pairs_table(judged), summary)
    write(space.out, "pairs.json", content)
    return 0


def alignment_command(arguments: list[str]) -> int:
    """Show what a decoder looks at while it writes."""
    parser = make_parser("alignment", ALIGNMENT)
    parser.add_argument("run", type=Path, help="folder of a run of finetune write")
    parser.add_argument("text", nargs="+", help="the source; both texts where it has two")
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection.alignment import alignment, alignment_table

    found = alignment(space.run, *space.text)
    content = {"run": str(space.run), **found.as_json()}
    show(space, alignment_table(found), content)
    write(space.out, "alignment.json", content)
    return 0


def words_command(arguments: list[str]) -> int:
    """Find the nearest neighbours of words."""
    parser = make_parser("words")
    parser.add_argument("run", type=Path, help=RUN)
    parser.add_argument("word", nargs="+", help="a word; the mean of its pieces if it has several")
    parser.add_argument("--count", type=whole(0), default=10, help="neighbours (default: 10)")
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection import load_model, nearest_words
    from finetune.inspection.words import words_table

    neighbours = nearest_words(load_model(space.run), space.word, space.count)
    content = {"run": str(space.run), "words": neighbours}
    show(space, words_table(neighbours), content)
    write(space.out, "words.json", content)
    return 0


def frequency_command(arguments: list[str]) -> int:
    """Divide a pretraining run's loss by how often a token was seen."""
    parser = make_parser("frequency", FREQUENCY)
    parser.add_argument("run", type=Path, help="folder of a pretraining run")
    parser.add_argument("--corpus", nargs="+", help="files and folders (default: the run's)")
    parser.add_argument("--batches", type=whole(0), help="batches (default: as in validation)")
    parser.add_argument("--cache-dir", help="default: FINETUNE_CACHE or ~/.cache/finetune")
    space = parser.parse_args(arguments)
    check_ready(space)
    from finetune.inspection import loss_by_frequency
    from finetune.inspection.frequency import frequency_table

    losses = loss_by_frequency(
        space.run, space.corpus, batches=space.batches, cache_dir=space.cache_dir
    )
    content = {"run": str(space.run), **losses}
    show(space, frequency_table(losses), content)
    write(space.out, "frequency.json", content)
    return 0
