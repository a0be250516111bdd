"""Write scripts/configs: a YAML file of settings for each recipe and its named settings.

    python scripts/write_configs.py

labkit train thor --data_path FOLDER --config scripts/configs/thor_gpu.yaml
"""

import json
from dataclasses import asdict
from pathlib import Path

from labkit.recipes import RECIPES, recipe

FOLDER = Path(__file__).parent / "configs"


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    made = {}
    for line in RECIPES:
        for name, values in recipe(line).named.items():
            file = f"{line}_{name}.yaml"
            head = f"# labkit train {line} --data_path FOLDER --config scripts/configs/{file}\n"
            head += f"# labkit train {line} --help says what each setting means.\n\n"
            lines = [f"{key}: {json.dumps(value)}\n" for key, value in asdict(values).items()]
            made[file] = head + "".join(lines)
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
