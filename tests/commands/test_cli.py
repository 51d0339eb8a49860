"""Commands, options and exit codes that all commands share."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.commands import cli, main
from farandole.commands.exit_codes import EXIT_CODES
from farandole.errors import ArtifactError, InputError, WorkerFailed

FOLDER = Path(cli.__file__).parent


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert farandole.__version__ in capsys.readouterr().out


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_doctor_of_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-spark"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("torch" in line for line in lines)


def test_every_command_has_a_file_with_options_and_a_function() -> None:
    for name in cli.COMMANDS:
        assert (FOLDER / f"{name}.py").exists()
        run, parser = cli.find_command(name)
        assert callable(run)
        assert parser.description


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: farandole {name}" in said
    assert ("--output" in said) == (name not in ("doctor", "serve"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("explian", "There is no command 'explian'. Did you mean 'explain'?"),
        ("xyz", "There is no command 'xyz'. There are train, predict, serve,"),
        ("doctor --mastre x", "There is no option --mastre. Did you mean --master?"),
        ("doctor --mastre=x", "There is no option --mastre. Did you mean --master?"),
        ("doctor --mast x", "There is no option --mast. Did you mean --master?"),
        ("doctor --master x --remote y", "--remote and --master don't go together."),
        ("doctor --no-spark=1", "--no-spark takes no value. Received: '1'"),
        ("doctor now", "Nothing can be done with: now"),
        ("doctor --master", "--master needs a value."),
        ("--versoin", "There is no option --versoin. Did you mean --version?"),
        (
            "demo --num-workers 0",
            "--num-workers must be a positive integer. Received: --num-workers 0",
        ),
        ("demo --output /dev/null/x", "'/dev/null' is no folder"),
    ],
)
def test_a_wrong_call_is_a_sentence_with_advice(
    line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.startswith("farandole: ")
    assert len(said.splitlines()) == 1


def failed_worker() -> WorkerFailed:
    try:
        raise WorkerFailed(1, "InputError: a null", "Traceback …") from InputError("a null")
    except WorkerFailed as error:
        return error


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (InputError("k must be 1"), 2, "k must be 1"),
        (ArtifactError("is damaged"), 1, "is damaged"),
        (failed_worker(), 2, "rank 1: a null"),
        (WorkerFailed(1, "KeyError: 3", "Trace …"), 1, "rank 1 failed: KeyError: 3\n\nTrace …"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 2,
         "'a.txt': No such file or directory"),
        (PermissionError(13, "Permission denied", "a.txt"), 2, "'a.txt': Permission denied"),
        (IsADirectoryError(21, "Is a directory", "a"), 2, "'a': Is a directory"),
        (NotADirectoryError(20, "Not a directory", "a/b"), 2, "'a/b': Not a directory"),
        (OSError(28, "No space left on device", "a.txt"), 1, "'a.txt': No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)  # fmt: skip
def test_exit_codes_have_one_meaning(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(options: Any) -> int:
        raise raised

    _, parser = cli.find_command("doctor")
    monkeypatch.setattr(cli, "find_command", lambda name: (run, parser))
    assert main(["doctor"]) == code
    assert code in EXIT_CODES
    assert capsys.readouterr().err == f"farandole: {said}\n"


def test_help_tells_the_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for name, about in cli.COMMANDS.items():
        assert f"{name:<9} {about}" in said
    for code, meaning in EXIT_CODES.items():
        assert f"{code:<9} {meaning}" in said


def test_a_warning_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: Any) -> int:
        warnings.simplefilter("always")
        warnings.warn("There are 3 rows for 4 workers.", UserWarning, stacklevel=2)
        return 0

    _, parser = cli.find_command("doctor")
    monkeypatch.setattr(cli, "find_command", lambda name: (run, parser))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err == "farandole: There are 3 rows for 4 workers.\n"


@pytest.mark.integration
def test_as_a_module_it_ends_with_its_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "explian"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "farandole: There is no command 'explian'. Did you mean 'explain'?\n"
