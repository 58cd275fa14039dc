"""GLUE's files in small, with every quirk of the real ones, and the real files by their names."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path

GLUE = {
    "CoLA/train.tsv": "gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tCat the sat.\n",
    "CoLA/dev.tsv": 'ks08\t0\t??*\t"Cat", he said, sat.\nks08\t1\t\tHe "sat.',
    "CoLA/test.tsv": "index\tsentence\n0\tThe dog ran.\n",
    "SST-2/train.tsv": "sentence\tlabel\na fine film \t1\nno wit , only gags \t0\n",
    "SST-2/dev.tsv": "sentence\tlabel\nbleak and desperate \t0\n",
    "SST-2/test.tsv": "index\tsentence\n0\tuneasy mishmash of styles .\n",
    "MRPC/train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    '1\t702876\t702977\tHe called " the witness .\tThe witness " , he called .\n'
    "0\t2108705\t2108831\tShe sold it .\tHe bought it .\n",
    "MRPC/dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    "1\t1355540\t1355592\tIt fits .\tIt does fit .\n",
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1089874\t1089925\tA .\tB .\n",
    "STS-B/train.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1"
    "\tsentence2\tscore\n"
    "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tA jet.\t5.000\n"
    "7\tmain-news\theadlines\t2015\t0002\tnone\tnone\tA man.\tA woman.\t1.3333333333333333\n",
    "STS-B/dev.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1"
    "\tsentence2\tscore\n0\tmain-captions\tMSRvid\t2012test\t0000\tnone\tnone\tA hat.\tA cap.\t4\n",
    "STS-B/test.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1"
    "\tsentence2\n0\tmain-captions\tMSRvid\t2012test\t0024\tnone\tnone\tHer hair.\tA comb.\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "2385\t4741\t4742\tHow much?\tHow many?\t0\n1000003\t\t\tWhy?\tWhy so?\t1\n",
    "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1008990\t\t\tWho?\t\t0\n",
    "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tWhere?\tWhere to?\n",
    "MNLI/train.tsv": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
    "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\t"
    "gold_label\n1541\t20033\t20033n\tslate\t( Well )\t( He )\t(ROOT)\t(ROOT)\tWell, he showed "
    "them.\tHe beat them up.\tneutral\tneutral\n1000001\t\t\t\t\t\t\t\tIt rains.\tIt is dry.\t"
    "contradiction\tcontradiction\n",
    "MNLI/dev_matched.tsv": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
    "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\t"
    "label2\tlabel3\tlabel4\tlabel5\tgold_label\n0\t\t\t\t\t\t\t\tIn a bar .\tA bar .\t"
    "entailment\t\t\t\t\tentailment\n",
    "MNLI/dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\tNo .\tYes .\tneutral\n",
    "MNLI/test_matched.tsv": "index\tsentence1\tsentence2\n0\tOne .\tTwo .\n",
    "MNLI/test_mismatched.tsv": "index\tsentence1\tsentence2\n0\tThree .\tFour .\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n434\tWhen?\tIn May.\tentailment\n"
    "1666\tWho?\tIn June.\tnot_entailment\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWhat?\tIt.\tentailment\n",
    "QNLI/test.tsv": "index\tquestion\tsentence\n0\tHow?\tSo.\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tHe died.\tHe lives.\tnot_entailment\n"
    "1\tShe won.\tShe took part.\tentailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tIt fell.\tIt moved.\tentailment\n",
    "RTE/test.tsv": "index\tsentence1\tsentence2\n0\tIt rose.\tentailment\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tIt broke it.\tIt broke.\t1\n"
    "1\tHe saw him.\tHe is blind.\t0\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tShe knocked.\tNo one did.\t0\n",
    "WNLI/test.tsv": "index\tsentence1\tsentence2\n0\tShe sang.\tShe can.\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tThe cat sat.\tIt did not.",
}
"""File -> its content, in the form of the benchmark's own download."""


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files of GLUE byte by byte; returns the folder for `--data`."""
    for name, content in files.items():
        path = root / "glue_data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return root


def official_text(file: str) -> str:
    """The text of an official file, or of the same file with `.gz`, as the tasks read both."""
    path = Path(os.environ["FINETUNE_DATA"]) / file
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()).decode("utf-8")
