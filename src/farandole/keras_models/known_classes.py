"""What a Keras config may name and still be data: a closed list, by the module that Keras writes.

It is a list of names, not of modules: among Keras's own classes are some that run what is in the
file (`Lambda`, `TorchModuleWrapper`, `JaxLayer`), or that read other files (`TFSMLayer`, and the
lookup layers, whose vocabulary may be a path).
"""

from __future__ import annotations

_MERGING = "Add Average Concatenate Dot Maximum Minimum Multiply Subtract"
_SHAPING = """
    Cropping1D Cropping2D Cropping3D Flatten Identity InputLayer Masking Permute RepeatVector
    Reshape UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
_DENSE = "Dense EinsumDense Embedding ReversibleEmbedding"
_CONVOLUTIONS = """
    Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose DepthwiseConv1D
    DepthwiseConv2D SeparableConv1D SeparableConv2D
"""
_POOLING = """
    AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D AveragePooling1D
    AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D MaxPooling1D
    MaxPooling2D MaxPooling3D
"""
_RECURRENT = """
    Bidirectional ConvLSTM1D ConvLSTM2D ConvLSTM3D GRU GRUCell LSTM LSTMCell RNN SimpleRNN
    SimpleRNNCell StackedRNNCells TimeDistributed
"""
_ATTENTION = "AdditiveAttention Attention GroupQueryAttention MultiHeadAttention"
_NORMALIZATION = """
    BatchNormalization GroupNormalization LayerNormalization RMSNormalization
    SpectralNormalization UnitNormalization
"""
_REGULARIZATION = """
    ActivityRegularization AlphaDropout Dropout GaussianDropout GaussianNoise SpatialDropout1D
    SpatialDropout2D SpatialDropout3D
"""
_ACTIVATIONS = "Activation ELU LeakyReLU PReLU ReLU Softmax"
_PREPROCESSING = """
    AutoContrast CategoryEncoding CenterCrop Normalization Pipeline
    RandomBrightness RandomContrast RandomCrop RandomErasing RandomFlip RandomGaussianBlur
    RandomGrayscale RandomHue RandomRotation RandomSaturation RandomSharpness RandomShear
    RandomTranslation RandomZoom Rescaling Resizing
"""

LAYERS = frozenset(
    f"{_MERGING} {_SHAPING} {_DENSE} {_CONVOLUTIONS} {_POOLING} {_RECURRENT} {_ATTENTION} "
    f"{_NORMALIZATION} {_REGULARIZATION} {_ACTIVATIONS} {_PREPROCESSING}".split()
)

_INITIALIZERS = """
    Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer LecunNormal
    LecunUniform Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform TruncatedNormal
    VarianceScaling Zeros
"""
_POLICIES = "DTypePolicy DTypePolicyMap FloatDTypePolicy QuantizedDTypePolicy"
_MODELS = "Functional Model Sequential"
_LOSSES = """
    BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy
    CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy CategoricalHinge Circle
    CosineSimilarity Dice Hinge Huber KLDivergence LogCosh MeanAbsoluteError
    MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
    SparseCategoricalCrossentropy SquaredHinge Tversky
"""
_METRICS = """
    AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy
    CategoricalCrossentropy CategoricalHinge ConcordanceCorrelation CosineSimilarity F1Score
    FBetaScore FalseNegatives FalsePositives Hinge IoU KLDivergence LogCoshError Mean
    MeanAbsoluteError MeanAbsolutePercentageError MeanIoU MeanMetricWrapper MeanSquaredError
    MeanSquaredLogarithmicError OneHotIoU OneHotMeanIoU PearsonCorrelation Poisson Precision
    PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError
    SensitivityAtSpecificity SparseCategoricalAccuracy SparseCategoricalCrossentropy
    SparseTopKCategoricalAccuracy SpecificityAtSensitivity SquaredHinge Sum
    TopKCategoricalAccuracy TrueNegatives TruePositives
"""
_OPTIMIZERS = """
    Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion LossScaleOptimizer Muon Nadam
    RMSprop SGD ScheduleFreeAdamW
"""
_SCHEDULES = """
    CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay PiecewiseConstantDecay
    PolynomialDecay
"""

CLASSES = {
    "keras": frozenset(f"{_MODELS} {_POLICIES}".split()),
    "keras.models": frozenset(_MODELS.split()),
    "keras.src.models.functional": frozenset(["Functional"]),
    "keras.src.applications.convnext": frozenset(["LayerScale", "StochasticDepth"]),
    "keras.layers": LAYERS,
    "keras.initializers": frozenset(_INITIALIZERS.split()),
    "keras.regularizers": frozenset(["L1", "L1L2", "L2", "OrthogonalRegularizer"]),
    "keras.constraints": frozenset(["MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"]),
    "keras.dtype_policies": frozenset(_POLICIES.split()),
    "keras.random": frozenset(["SeedGenerator"]),
    "keras.losses": frozenset(_LOSSES.split()),
    "keras.metrics": frozenset(_METRICS.split()),
    "keras.optimizers": frozenset(_OPTIMIZERS.split()),
    "keras.optimizers.schedules": frozenset(_SCHEDULES.split()),
    "keras.src.ops.core": frozenset(
        [
            "Cast",
            "ConvertToTensor",
            "SaturateCast",
            "Scatter",
            "ScatterUpdate",
            "Slice",
            "SliceUpdate",
            "StopGradient",
            "Unstack",
        ]
    ),
}
"""The classes that a config may make, by the module under which Keras writes them."""

OPERATIONS = frozenset(
    f"keras.src.ops.{name}" for name in ("einops", "image", "linalg", "math", "nn", "numpy")
)
"""Modules whose operations are arithmetic, all of them but these:"""
NO_OPERATIONS = frozenset(["JVP"])  # it calls a function of the file's

FUNCTIONS = ("activations", "losses", "metrics")
"""Parts of Keras whose functions a config may name."""
NO_FUNCTIONS = frozenset(["deserialize", "get", "serialize"])

CODE = {
    "Lambda": "holds a Python function",
    "TorchModuleWrapper": "holds a pickle",
    "JaxLayer": "holds a Python function",
    "FlaxLayer": "holds a Python function",
    "TFSMLayer": "loads a TensorFlow program from another file",
    "StringLookup": "may read another file",
    "IntegerLookup": "may read another file",
    "TextVectorization": "may read another file",
    "Discretization": "keeps what it has learned outside of its config and weights",
}
"""What is wrong with some of Keras's own classes."""
