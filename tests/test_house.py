"""The house keeps its own rules: a light import, layers, documents that agree with the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attnloom"
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/DESIGN.md", "docs/SEMANTICS.md", "docs/GLOSSARY.md")

# Records what a statement adds to a process that has torch: modules, calls that reach a driver, and processor seconds
# (children's included), which unlike seconds on the clock do not depend on what else the machine is doing.
IMPORT_PROBE = """
import json, os, sys
import torch
calls = []
def watch(owner, name):
    real = getattr(owner, name, None)
    if real is not None:
        def watched(*args, **kwargs):
            calls.append(name)
            return real(*args, **kwargs)
        setattr(owner, name, watched)
for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties"):
    watch(torch.cuda, name)
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    watch(torch._C, name)
before = set(sys.modules)
start = sum(os.times()[:4])
{statement}
seconds = sum(os.times()[:4]) - start
print(json.dumps(dict(seconds=seconds, calls=calls, modules=sorted(set(sys.modules) - before))))
"""
HEAVY = {"triton", "numba", "transformers", "matplotlib", "llvmlite", "accelerate"}


def probe(statement: str) -> dict:
    """What running `statement` does to a fresh process that has imported torch."""
    code = IMPORT_PROBE.replace("{statement}", statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def tracked_files() -> list[Path]:
    """Files of the repository; of an unpacked archive, everything that is no build product."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    skipped = {".venv", ".deps", "__pycache__", "build", "dist"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not skipped.intersection(p.relative_to(ROOT).parts)]


def test_import_is_light():
    results = [probe("import attnloom") for _ in range(3)]
    loaded = {name.partition(".")[0] for name in results[0]["modules"]}
    assert "attnloom" in loaded
    assert loaded & HEAVY == set()
    assert results[0]["calls"] == []
    # The best of three: the first may compile bytecode.
    assert min(result["seconds"] for result in results) < 0.2


def test_import_probe_sees_what_it_looks_for():
    result = probe("import numba; torch.cuda.is_available(); sum(range(20_000_000))")
    assert "numba" in result["modules"]
    assert "is_available" in result["calls"]
    assert result["seconds"] > 0.2


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with this project's contracts, on the package below `folder`/src."""
    program = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    code = f"import sys; sys.path.insert(0, {str(folder / 'src')!r}); {program}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_imports_keep_the_layers():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "statement", "broken"),
    [
        ("errors", "", None),
        ("errors", "import attnloom.env", "Imports go down the layers only"),
        ("schedule", "from attnloom import api", "Imports go down the layers only"),
        ("kernels", "import attnloom.compile", "Imports go down the layers only"),
        ("stranger", "", "Imports go down the layers only"),
        ("variant.a", "from attnloom.variant import b", "No import cycle between siblings"),
    ],
)
def test_contracts_catch_an_upward_import(tmp_path, module, statement, broken):
    package = tmp_path / "src" / "attnloom"
    for name in ("errors", "env", "schedule", "api", "compile", "kernels"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / "variant").mkdir()
    (package / "variant" / "__init__.py").touch()
    (package / "variant" / "b.py").write_text("import attnloom.variant.a\n")
    (package / "variant" / "a.py").touch()
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    target = package / Path(*module.split("."))
    file = target / "__init__.py" if target.is_dir() else target.with_suffix(".py")
    file.write_text(statement + "\n")
    done = lint_imports(tmp_path)
    assert (done.returncode == 0) == (broken is None), done.stdout + done.stderr
    if broken is not None:
        assert re.search(re.escape(broken) + r".* BROKEN", done.stdout)


def test_every_source_file_is_under_the_gates():
    from tools.size_gate import ROOTS

    python = [path.relative_to(ROOT) for path in tracked_files() if path.suffix == ".py"]
    assert python
    assert [str(path) for path in python if path.parts[0] not in ROOTS] == []


def python_blocks(document: str) -> list[str]:
    """The ```python blocks of a Markdown file."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), flags=re.M | re.S)


def test_readme_examples_run():
    import torch

    blocks = python_blocks("README.md")
    assert len(blocks) >= 2
    assert len(blocks[0].splitlines()) <= 14
    scope: dict[str, object] = {}
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert scope["out"].shape == (17, 32, 128)
    assert scope["lse"].shape == (17, 32)
    assert torch.isfinite(scope["out"]).all()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


def documented_modules() -> set[str]:
    """Top-level names of the source tree in docs/DESIGN.md."""
    tree = (ROOT / "docs" / "DESIGN.md").read_text().partition("src/attnloom/\n")[2].partition("```")[0]
    names: set[str] = set()
    for line in tree.splitlines():
        match = re.match(r"  ((?:[\w.]+/?(?:, )?)+)  +\S", line)
        if match:
            names.update(name.strip("/ ") for name in match.group(1).split(","))
    return names


def test_design_document_shows_the_tree_as_it_is():
    present = {p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert documented_modules() == present
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def requirement_names(entries: list[str]) -> set[str]:
    """Names of distributions, without the project's own extras."""
    names = {re.match(r"[\w-]+", entry)[0].lower().replace("_", "-") for entry in entries}
    return names - {"attnloom"}


def test_requirements_are_ranges_and_their_tested_versions_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    assert [entry for entry in entries if "==" in entry.partition(";")[0]] == []
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in constraints if line and not line.startswith("#")]
    assert [pin for pin in pins if "==" not in pin] == []
    makefile = (ROOT / "Makefile").read_text()
    pinned = requirement_names(pins) | requirement_names(re.findall(r"^\w+_PIN := (\S+)", makefile, flags=re.M))
    assert requirement_names(entries) - pinned == set()
