"""A model server: answers for one request, now, in the protocol that others' clients speak."""

from farandole.serving.access import read_token
from farandole.serving.app import App, Limits, app
from farandole.serving.grpc_server import GrpcServer, add_grpc
from farandole.serving.serve import Serving, log_to_stderr, serve

__all__ = [
    "App",
    "GrpcServer",
    "Limits",
    "Serving",
    "add_grpc",
    "app",
    "log_to_stderr",
    "read_token",
    "serve",
]
