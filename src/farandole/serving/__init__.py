"""A model server: answers for one request, now, in the protocol that others' clients speak."""

from farandole.serving.access import read_token
from farandole.serving.app import App, Limits, app
from farandole.serving.serve import Serving, log_to_stderr, serve

__all__ = ["App", "Limits", "Serving", "app", "log_to_stderr", "read_token", "serve"]
