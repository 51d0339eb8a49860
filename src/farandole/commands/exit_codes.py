"""What the end of a command means to a shell."""

from __future__ import annotations

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = {
    DONE: "done",
    FAILED: "it failed",
    WRONG: "the call was wrong: an option, a file, a column or a value",
    INTERRUPTED: "interrupted",
}
