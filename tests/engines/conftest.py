"""Scripts that tests run in a process of their own: looking for doctests must not import them."""

collect_ignore = ["driver_script.py", "remote_script.py", "spark_faults_script.py"]
collect_ignore += ["dynamic_allocation_script.py", "gpu_script.py", "ray_start_script.py"]
