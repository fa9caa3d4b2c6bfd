//! PyTorch's own kernels, as far as a small multi-layer perceptron with SGD needs them, by one process or by several
//! ranks (data parallel, fully sharded). All others do nothing.
//!
//! A kernel of PyTorch is a template's instance in an anonymous namespace, so its mangled name differs with
//! every type and release. [`softgpu_alias`] finds the function here by what stays the same in it. Parameters
//! are laid out as in ATen's headers, release 2.11; what is not the same in another release must not be
//! called there, so a name stands here only with all types that its parameters depend on.

mod elementwise;
mod foreach;
mod join;
mod loss;
mod reduce;

use std::ffi::{CStr, c_char};

/// All of these occur in the kernel's name, in this order.
type Pattern = &'static [&'static str];

/// A copy whose elements do not lie one after the other, without a conversion.
const COPY: (&str, &str) = ("22gpu_kernel_impl_nocastI", "23direct_copy_kernel_cudaE");

const ALIASES: [(Pattern, &CStr); 25] = [
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIbE"], c"torch_fill_1"),
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIN3c104HalfE"], c"torch_fill_2"),
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIN3c108BFloat16E"], c"torch_fill_2"),
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIfE"], c"torch_fill_4"),
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIiE"], c"torch_fill_4"),
    (&["29vectorized_elementwise_kernelILi", "11FillFunctorIlE"], c"torch_fill_8"),
    (
        &["29vectorized_elementwise_kernelILi", "19launch_clamp_scalarE", "clEvEUlfE_St5arrayIPcLm2E"],
        c"torch_clamp",
    ),
    (
        &[
            "29vectorized_elementwise_kernelILi",
            "13BinaryFunctorIfff",
            "21threshold_kernel_implIfE",
            "IPcLm3E",
        ],
        c"torch_threshold",
    ),
    (&["29vectorized_elementwise_kernelILi", "15CUDAFunctor_addIfE", "IPcLm3E"], c"torch_add"),
    (&["18elementwise_kernelILi", COPY.0, COPY.1, "clEvEUlfE_EEvS4_RKT_EUliE_"], c"torch_copy_4"),
    (&["18elementwise_kernelILi", COPY.0, COPY.1, "clEvEUliE_EEvS4_RKT_EUliE_"], c"torch_copy_4"),
    (&["18elementwise_kernelILi", COPY.0, COPY.1, "clEvEUllE_EEvS4_RKT_EUliE_"], c"torch_copy_8"),
    (&["20softmax_warp_forwardIfffLi", "ELb1ELb0E"], c"torch_log_softmax"),
    (&["21softmax_warp_backwardIfffLi", "ELb1ELb0E"], c"torch_log_softmax_backward"),
    (&["38nll_loss_forward_reduce_cuda_kernel_2dIfflE"], c"torch_nll_loss"),
    (&["39nll_loss_backward_reduce_cuda_kernel_2dIflE"], c"torch_nll_loss_backward"),
    (&["13reduce_kernelILi", "ReduceOpIf", "11sum_functorIfffE", "EEjfLi4ELi4E"], c"torch_sum"),
    (
        &["25multi_tensor_apply_kernel", "24BinaryOpListAlphaFunctorIfLi2ELi2ELi0E", "St4plusIfE"],
        c"torch_foreach_add",
    ),
    (
        &["25multi_tensor_apply_kernel", "21BinaryOpScalarFunctorIfLi1ELi1ELi0E", "St10multipliesIfE"],
        c"torch_foreach_mul",
    ),
    (
        &[
            "25multi_tensor_apply_kernel",
            "18TensorListMetadataILi2E",
            "14UnaryOpFunctorIfLi2ELi1ELi1E",
            "4CopyIffE",
        ],
        c"torch_foreach_copy",
    ),
    (
        &["29vectorized_elementwise_kernelILi", "13AUnaryFunctorIfff", "10MulFunctorIfE", "IPcLm2E"],
        c"torch_scale",
    ),
    // Of a division by a number, too.
    (
        &["29vectorized_elementwise_kernelILi", "13BUnaryFunctorIfff", "10MulFunctorIfE", "IPcLm2E"],
        c"torch_scale",
    ),
    (&["35CatArrayBatchedCopy_alignedK_contigI", "10OpaqueTypeILj4EEEjLi1ELi128ELi1E"], c"torch_cat_4"),
    (&["51split_with_sizes_copy_out_contiguous_no_cast_kernel"], c"torch_split_copy"),
    (&["21chunk_cat_cuda_kernelIccE"], c"torch_chunk_cat"),
];

/// The kernel here that has another's name, for the software driver; null: none.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn softgpu_alias(name: *const c_char) -> *const c_char {
    // SAFETY: as said above.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    alias(&name).map_or(std::ptr::null(), CStr::as_ptr)
}

fn alias(name: &str) -> Option<&'static CStr> {
    let occur = |pattern: Pattern| {
        let rest = pattern.iter().try_fold(name, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
        rest.is_some()
    };
    ALIASES.iter().find(|(pattern, _)| occur(pattern)).map(|(_, kernel)| *kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_what_its_name_keeps() {
        let of = |name: &str| alias(name).and_then(|kernel| kernel.to_str().ok());
        let fill = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI?EESt5arrayIPcLm1EEEEviT0_T1_";
        for (kind, kernel) in [("f", Some("torch_fill_4")), ("l", Some("torch_fill_8")), ("d", None)] {
            assert_eq!(of(&fill.replace('?', kind)), kernel, "{kind}");
        }
        let scale = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13?UnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_";
        for (functor, kernel) in [("A", Some("torch_scale")), ("B", Some("torch_scale")), ("C", None)] {
            assert_eq!(of(&scale.replace('?', functor)), kernel, "{functor}");
        }
        let softmax = "_ZN43_GLOBAL__N__b6de9c8c_10_SoftMax_cu_9f978f6320softmax_warp_forwardI?Li4ELb1ELb0EEEvPT0_PKT_iiiPKbib";
        assert_eq!(of(&softmax.replace('?', "fff")), Some("torch_log_softmax"));
        assert_eq!(of(&softmax.replace('?', "ddd")), None);
        assert_eq!(of(&softmax.replace('?', "fff").replace("Lb1ELb0", "Lb0ELb0")), None, "not its logarithm");
        let copy = "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUl?E_EEvS4_RKT_EUliE_EEviT1_";
        for (kind, kernel) in [("f", Some("torch_copy_4")), ("l", Some("torch_copy_8")), ("a", None)] {
            assert_eq!(of(&copy.replace('?', kind)), kernel, "{kind}");
        }
        let cat = "_ZN2at6native40_GLOBAL__N__0f1a8107_8_Shape_cu_49f7391c35CatArrayBatchedCopy_alignedK_contigINS1_10OpaqueTypeILj4EEEjLi?ELi128ELi1ELi16EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_";
        for (dimensions, kernel) in [("1", Some("torch_cat_4")), ("2", None)] {
            assert_eq!(of(&cat.replace('?', dimensions)), kernel, "{dimensions}");
        }
        assert_eq!(of("axpy"), None);
    }
}
