"""The one room that touches what Spark keeps to itself."""

from __future__ import annotations

from farandole._spark.frames import (
    arrow_schema,
    has_positions,
    is_dataframe,
    numbered,
    qualified_path,
    stage_metadata,
)
from farandole._spark.jobs import (
    TaskPlace,
    add_tag,
    ask_executor,
    cancel,
    executors_running,
    first_failure,
    has_running_tasks,
    replace_executors,
    running_tasks,
    task_places,
    thread,
)
from farandole._spark.log_levels import quiet_logs
from farandole._spark.python_workers import (
    distribute,
    distributed_path,
    driver_host,
    granted_gpus,
    hide_traceback,
    read_by_row,
    set_up_python,
    task_device,
    task_place,
)
from farandole._spark.sessions import (
    active_session,
    check_running,
    is_connect,
    is_local,
    is_stopped,
    local_session,
    require_session,
)
from farandole._spark.task_slots import (
    has_dynamic_allocation,
    register_profile,
    slots,
    task_cpus,
)

__all__ = [
    "TaskPlace",
    "active_session",
    "add_tag",
    "arrow_schema",
    "ask_executor",
    "cancel",
    "check_running",
    "distribute",
    "distributed_path",
    "driver_host",
    "executors_running",
    "first_failure",
    "granted_gpus",
    "has_dynamic_allocation",
    "has_positions",
    "has_running_tasks",
    "hide_traceback",
    "is_connect",
    "is_dataframe",
    "is_local",
    "is_stopped",
    "local_session",
    "numbered",
    "qualified_path",
    "quiet_logs",
    "read_by_row",
    "register_profile",
    "replace_executors",
    "require_session",
    "running_tasks",
    "set_up_python",
    "slots",
    "stage_metadata",
    "task_cpus",
    "task_device",
    "task_place",
    "task_places",
    "thread",
]
