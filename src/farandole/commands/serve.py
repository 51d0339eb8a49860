"""farandole serve: models behind a port, in the Open Inference Protocol."""

from __future__ import annotations

import argparse

from farandole.commands.exit_codes import DONE
from farandole.commands.parser import CommandParser, number, whole_number
from farandole.commands.predict import read_labels


def add_options(parser: CommandParser) -> None:
    """Add what `farandole.serving.serve` takes."""
    parser.description = (
        "Answer requests for saved networks over HTTP, in the Open Inference Protocol (v2).\n"
        "A folder may be a saved network, versions of one (1/, 2/ …), or a folder of models.\n"
        "GET / is a page to try them, POST /predict takes rows with names. SIGTERM ends it."
    )
    parser.epilog = "example: farandole serve digits-net/ --port 8080 --workers 2"
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL_DIR", help="folders or files, or NAME=PATH")
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1: this machine alone)")
    add("--port", type=whole_number, default=8080, metavar="N", help="8080; 0: any that is free")
    add("--grpc-port", type=whole_number, metavar="N", help="serve gRPC there as well")
    add("--workers", type=whole_number, default=1, metavar="N", help="processes (1)")
    add("--labels", metavar="FILE", help="names of classes: a line each, or a list in a .json")
    add("--signature", metavar="FILE", help="for bare files: what they take and give (JSON)")
    add("--from-mlflow", action="append", default=[], metavar="URI", help="MLflow's, or its folder")
    add("--engine", default="auto", metavar="NAME", help="auto, eager, exported, compiled or onnx")
    add("--token-file", metavar="FILE", help="holds what requests need to know")
    add("--allowed-host", action="append", default=[], metavar="NAME", help="may ask by it; *: any")
    add("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    add("--tls-key", metavar="FILE", help="its key, if that is in another file")
    add("--max-batch", type=whole_number, default=64, metavar="N", help="rows at once (64)")
    add("--max-delay", type=number, default=0.0, metavar="MS", help="how long to wait for more (0)")
    add("--max-queue", type=whole_number, default=1024, metavar="N", help="rows that wait (1024)")
    add("--max-body", type=whole_number, default=64 << 20, metavar="N", help="bytes (64 MB)")
    add("--timeout", type=number, default=30.0, metavar="S", help="seconds for an answer (30)")
    add("--slow", type=number, default=10.0, metavar="S", help="seconds for a request to come (10)")
    add("--drain", type=number, default=30.0, metavar="S", help="seconds to finish at the end (30)")
    add("--access-log", metavar="FILE", help="a line of JSON for each request; - for the screen")
    add("--allow-load", action="store_true", help="let requests load and unload models")
    add("--allow-pickle", action="store_true", help="load a pickle or TorchScript: runs code")


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from farandole.serving import Serving, log_to_stderr, read_token, serve

    log_to_stderr()
    serving = Serving(
        models=tuple(options.models),
        labels=tuple(read_labels(options.labels)) if options.labels else (),
        signature=options.signature,
        host=options.host,
        port=options.port,
        grpc_port=options.grpc_port,
        workers=options.workers,
        token=read_token(options.token_file) if options.token_file else None,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_batch=options.max_batch,
        max_delay=options.max_delay / 1e3,
        max_queue=options.max_queue,
        max_body=options.max_body,
        timeout=options.timeout,
        slow=options.slow,
        drain=options.drain,
        access_log=options.access_log,
        allow_load=options.allow_load,
        allow_pickle=options.allow_pickle,
        engine=options.engine,
        from_mlflow=tuple(options.from_mlflow),
        allowed_hosts=tuple(options.allowed_host),
    )
    serve(serving, say=lambda line: print(line, flush=True))
    return DONE
