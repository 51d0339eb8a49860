# A script that a test runs in a process of its own.
collect_ignore = ["spark_script.py"]
