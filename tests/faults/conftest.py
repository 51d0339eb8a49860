"""Scripts that tests run in a process of their own: looking for doctests must not import them."""

collect_ignore = ["network_script.py", "spark_script.py", "stranger_script.py"]
