/* Encoding of tensor maps; tensor_map.h is the interface. The driver's function comes through the runtime, as in device.cu. */
#include "tensor_map.h"

namespace {

using encode_function = decltype(&cuTensorMapEncodeTiled);

/* Looked up once; NULL where the driver has none. Threads that look it up at the same time find the same. */
encode_function find_encode()
{
    static encode_function found;
    encode_function encode = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!encode) {
        void *function = NULL;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) != cudaSuccess) {
            cudaGetLastError(); /* it is returned to the caller: the runtime need not remember it too */
            return NULL;
        }
        encode = result == cudaDriverEntryPointSuccess ? reinterpret_cast<encode_function>(function) : NULL;
        __atomic_store_n(&found, encode, __ATOMIC_RELAXED);
    }
    return encode;
}

} // namespace

cudaError_t dg_cuda_encode_map(CUtensorMap *map, const struct dg_matrix_map *matrix)
{
    const encode_function encode = find_encode();
    if (!encode) {
        return cudaErrorInsufficientDriver;
    }
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix->columns), static_cast<cuuint64_t>(matrix->rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(matrix->row_stride * matrix->element_bytes)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(matrix->box_columns), static_cast<cuuint32_t>(matrix->box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = encode(map, matrix->type, 2, const_cast<void *>(matrix->data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   matrix->swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
