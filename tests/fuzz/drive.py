"""python -m tests.fuzz.drive TARGET FOLDER [options of libFuzzer]: makes inputs up, until one fails.

What it found worth keeping stays in FOLDER and is where the next run begins; an input that failed is written
there too. libFuzzer ends its process by itself, so whoever wants to go on afterwards starts another.
"""

import sys
from pathlib import Path

import atheris


def begin(name: str, folder: Path) -> list[str]:
    """The seeds and the words of the target, as files; the options that name them."""
    from tests.fuzz.seeds import WORDS, inputs

    tried = folder / "tried"
    tried.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(inputs(name)):
        (tried / f"seed-{number:03d}").write_bytes(each)
    words = folder / "words"
    lines = ("".join(f"\\x{byte:02x}" for byte in word) for word in WORDS[name])
    words.write_text("".join(f'"{line}"\n' for line in lines))
    return [str(tried), f"-dict={words}", f"-artifact_prefix={folder}/", "-max_len=2048", "-timeout=20"]


def main(words: list[str]) -> None:
    name, folder, *options = words
    with atheris.instrument_imports(include=["holdfast.gateway", "h11"], enable_loader_override=False):
        from tests.fuzz import targets
    options = [*begin(name, Path(folder)), *options]
    atheris.Setup([sys.argv[0], *options], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
