"""Long real-text prompts as JSONL: stretches of the language reference that ships with Python, no two overlapping.

python benchmarks/long_prompts.py calibrate.jsonl --characters 2000,6000,12000 --skip 0
python benchmarks/long_prompts.py held_out.jsonl --characters 2000,6000,12000 --skip 40000
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from pydoc_data.topics import topics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--characters", required=True, help="length of each prompt, separated by commas")
    parser.add_argument("--skip", type=int, default=0, help="characters of the text to leave out first")
    arguments = parser.parse_args()
    text = "\n\n".join(topics[name] for name in sorted(topics) if len(topics[name]) > 1000)
    start, rows = arguments.skip, []
    for size in (int(part) for part in arguments.characters.split(",")):
        if start + size > len(text):
            parser.error(f"the text has {len(text)} characters; ask for fewer or shorter prompts")
        rows.append(json.dumps({"prompt": text[start : start + size]}))
        start += size
    arguments.output.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows)} prompts, {start - arguments.skip} characters, in {arguments.output}")


if __name__ == "__main__":
    main()
