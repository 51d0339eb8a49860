from __future__ import annotations

import pytest

from farandole.engines.ray_errors import describe_loss, describe_start

DIED = (
    "The actor died unexpectedly before finishing this task.\n\tpid: 7\nThe actor is dead because "
    "its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include"
)


@pytest.mark.parametrize(
    ("text", "seen", "words"),
    [
        (DIED, "", "its process died. Ray says: Worker unexpectedly exits with a connection error"),
        (DIED, "its process was killed (SIGKILL)", "its process was killed (SIGKILL)"),
        ("its node has died. Node Id: 7f, the node was", "its process died", "its node died (Node"),
        ("Task was killed due to the node running low on memory.", "it died", "Ray killed its"),
        (
            "The actor is dead because it was killed by `ray.kill`.",
            "it died",
            "ended by ray.kill()",
        ),
    ],
)
def test_a_loss_in_one_sentence(text: str, seen: str, words: str) -> None:
    said = describe_loss(RuntimeError(f"\x1b[36m{text}\x1b[39m"), seen)
    assert said.startswith(words) or words in said
    assert "\n" not in said
    assert "\x1b" not in said


def test_why_a_worker_did_not_start() -> None:
    assert "torch isn't installed" in describe_start(RuntimeError("No module named 'torch'"))
    assert describe_start(RuntimeError("first\nlast line")) == "last line"
