"""The operators that an exported program may call: arithmetic on tensors, and nothing else.

The list is closed. It has no operator that maps or names a file, that takes a storage or changes
one in place, that builds a tensor from unchecked indices, or that only a backend's own code calls.
"""

from __future__ import annotations

import re

import torch

_ATEN_NAMES = """
    __and__ __or__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async _assert_scalar
    _assert_tensor_metadata _cdist_forward _conj _embedding_bag _fft_c2c _fft_c2r _fft_r2c
    _local_scalar_dense _trilinear
    _log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training
    _native_multi_head_attention _pdist_forward _scaled_dot_product_flash_attention_for_cpu
    _shape_as_tensor _softmax _to_copy _transformer_encoder_layer_fwd _unique2 _unsafe_index
    _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface
    abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm
    addmv addr adjoint affine_grid_generator alias all allclose alpha_dropout amax amin aminmax
    angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
    argwhere as_strided as_strided_scatter asin asinh atan atan2 atanh atleast_1d atleast_2d
    atleast_3d avg_pool1d avg_pool2d avg_pool3d baddbmm bartlett_window batch_norm bernoulli
    bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window
    block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat cdist ceil celu
    chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp clamp_max
    clamp_min clip clone col2im column_stack combinations complex concat concatenate conj
    conj_physical constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d convolution copy copysign corrcoef cos cosh
    cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss cummax
    cummin cumprod cumsum cumulative_trapezoid deg2rad det detach detach_copy diag diag_embed
    diagflat diagonal diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack
    einsum elu embedding embedding_bag empty empty_like empty_permuted empty_strided eq equal erf
    erfc erfinv exp exp2 expand expand_as expm1 eye feature_alpha_dropout feature_dropout fft_fft
    fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ifftshift
    fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill fix
    flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac frexp
    frobenius_norm full full_like gather gcd ge gelu ger glu greater greater_equal grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window
    hardshrink hardsigmoid hardswish hardtanh heaviside hinge_embedding_loss histc hsplit hstack
    huber_loss hypot i0 igamma igammac im2col imag index index_add index_copy index_fill index_put
    index_reduce index_select inner instance_norm inverse isclose isfinite isin isinf isnan
    isneginf isposinf isreal istft item kaiser_window kl_div kron kthvalue l1_loss layer_norm lcm
    ldexp le leaky_relu lerp less less_equal lgamma lift_fresh lift_fresh_copy linalg_cholesky
    linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal linalg_eig linalg_eigh
    linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex
    linalg_lstsq linalg_lu linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power
    linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet
    linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_vander
    linalg_vecdot linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid
    log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and
    logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell lt mH mT
    margin_ranking_loss masked_fill masked_scatter masked_select matmul matrix_H matrix_exp
    matrix_power max max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d maximum mean median meshgrid min
    minimum mish mm mode moveaxis movedim mse_loss msort mul multinomial multiply mv mvlgamma
    nan_to_num nanmean nanmedian nansum narrow native_batch_norm native_channel_shuffle
    native_dropout native_group_norm native_layer_norm ne neg negative new_empty new_empty_strided
    new_full new_ones new_zeros nextafter nll_loss nll_loss2d nll_loss_forward nll_loss_nd nonzero
    nonzero_static norm norm_except_dim normal normal_functional not_equal nuclear_norm numpy_T
    one_hot ones ones_like outer pad pad_sequence pairwise_distance pdist permute pinverse
    pixel_shuffle pixel_unshuffle poisson polar polygamma positive pow prelu prod put rad2deg rand
    rand_like randint randint_like randn randn_like randperm range ravel real reciprocal
    reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder renorm repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as
    resolve_conj resolve_neg rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90
    round row_stack rrelu rrelu_with_noise rsqrt rsub scalar_tensor scaled_dot_product_attention
    scatter scatter_add scatter_reduce searchsorted select select_scatter selu sgn sigmoid sign
    signbit silu sin sinc sinh slice slice_scatter slogdet smooth_l1_loss soft_margin_loss softmax
    softplus softshrink sort special_digamma special_erf special_erfc special_expit special_expm1
    special_gammaln special_log1p special_log_softmax special_logit special_softmax special_xlogy
    split split_with_sizes sqrt square squeeze stack std std_mean stft sub subtract sum sum_to_size
    svd swapaxes swapdims sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
    sym_storage_offset sym_stride t take take_along_dim tan tanh tensor_split tensordot threshold
    tile to topk trace transpose trapezoid trapz tril tril_indices triplet_margin_loss triu
    triu_indices true_divide trunc type_as unbind unflatten unfold uniform unique_consecutive
    unique_dim unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var
    var_mean vdot view view_as view_as_complex view_as_real vsplit vstack where xlogy zero zeros
    zeros_like
"""
_ATEN = frozenset(_ATEN_NAMES.split())
_TENSOR = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
_OTHER_NAMES = """
    torch.ops.prims.convert_element_type.default
    torch.ops.higher_order.cond torch.ops.higher_order.while_loop torch.ops.higher_order.scan
    torch.ops.higher_order.map_impl torch.ops.higher_order.wrap_with_set_grad_enabled
    torch.ops.higher_order.wrap_with_autocast
    torch.sym_not torch.sym_int torch.sym_float torch.sym_ite torch.sym_max torch.sym_min
    torch.sym_sqrt math.trunc
    _operator.getitem _operator.eq _operator.ne _operator.lt _operator.le _operator.gt _operator.ge
    _operator.neg _operator.pos _operator.add _operator.sub _operator.mul _operator.truediv
    _operator.floordiv _operator.mod _operator.pow _operator.and_ _operator.or_
"""
_OTHER = frozenset(_OTHER_NAMES.split())
# They write to a tensor that is given, or take what no program can hold.
_OVERLOADS_LEFT_OUT = re.compile(r"(?i).*((?<!lay)out|storage|dimname|generator|names).*")


def is_operator(target: str) -> bool:
    """Whether a program may call this.

    >>> is_operator("torch.ops.aten.relu_.default"), is_operator("torch.ops.aten.from_file.default")
    (True, False)
    """
    found = _TENSOR.fullmatch(target)
    if found is None:
        return target in _OTHER
    name, overload = found.groups()
    if name not in _ATEN and (name.startswith("__") or name.removesuffix("_") not in _ATEN):
        return False
    return not _OVERLOADS_LEFT_OUT.fullmatch(overload) and overload in _overloads(name)


def _overloads(name: str) -> list[str]:
    """Those that this release of torch has; getattr would find methods as well."""
    packet = getattr(torch.ops.aten, name, None)
    return list(packet.overloads()) if isinstance(packet, torch._ops.OpOverloadPacket) else []
