"""Constructors: what editors, help() and inspect see of them is what the params are."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from farandole.networks import ACTIVATIONS
from farandole.parallel import registry
from farandole.spark import Featurizer, KerasEstimator, TextTokenizer, TorchEstimator, options
from farandole.spark.classification import MultilayerPerceptronClassifier
from farandole.spark.regression import MultilayerPerceptronRegressor
from farandole.training import losses, optimizers

STAGES = [
    (TorchEstimator, options.TorchEstimatorOptions),
    (KerasEstimator, options.KerasEstimatorOptions),
    (MultilayerPerceptronClassifier, options.PerceptronClassifierOptions),
    (MultilayerPerceptronRegressor, options.PerceptronOptions),
    (Featurizer, options.FeaturizerOptions),
    (TextTokenizer, options.TextTokenizerOptions),
]


@pytest.mark.parametrize(("stage", "typed"), STAGES, ids=lambda one: one.__name__)
def test_signatures_are_complete(stage: Any, typed: Any) -> None:
    made = stage()
    shown = inspect.signature(stage).parameters
    assert sorted(shown) == sorted(param.name for param in made.params)
    assert list(shown) == list(get_type_hints(typed))
    for name, parameter in shown.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if made.hasDefault(name) and not options._is_drawn(stage, name):
            assert parameter.default == made.getOrDefault(name)
    for method in (stage.__init__, stage.setParams):  # what a type checker goes by
        assert typed.__name__ in str(inspect.signature(method).parameters["params"].annotation)


def test_a_constructor_takes_what_it_shows() -> None:
    shown = inspect.signature(TorchEstimator).parameters
    given = {name: parameter.default for name, parameter in shown.items()}
    assert TorchEstimator(**given).recipe_options() == TorchEstimator().recipe_options()


def test_what_differs_from_process_to_process_is_not_shown() -> None:
    assert inspect.signature(MultilayerPerceptronClassifier).parameters["seed"].default is None
    assert inspect.signature(TorchEstimator).parameters["seed"].default == 0
    assert inspect.signature(Featurizer).parameters["outputCol"].default is None


def test_params_list_their_choices() -> None:
    explained = TorchEstimator().explainParams()
    for name in [*losses.NAMES, *optimizers.NAMES, *registry.STRATEGIES, "accuracy", "cosine"]:
        assert name in explained
    perceptron = MultilayerPerceptronClassifier().explainParams()
    for name in [*ACTIVATIONS, "l-bfgs", "gd", "adam", "float64"]:
        assert name in perceptron
