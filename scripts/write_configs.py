"""Write scripts/configs: a YAML file of settings for each recipe and its named settings.

    python scripts/write_configs.py

labkit train thor --data_path FOLDER --config scripts/configs/thor_gpu.yaml
"""

from pathlib import Path

from labkit.recipes import RECIPES, recipe, settings

FOLDER = Path(__file__).parent / "configs"


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    made = {}
    for line in RECIPES:
        of = recipe(line)
        for name, values in of.named.items():
            head = f"# labkit train {line} --data_path FOLDER --config scripts/configs/"
            file = f"{of.name}_{name}.yaml"
            made[file] = f"{head}{file}\n\n{settings.yaml_text(values)}"
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
