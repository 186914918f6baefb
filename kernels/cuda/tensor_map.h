/* Tensor maps: what the bulk tensor copies (TMA) of compute capability 9.0 are told of a matrix in global memory. */
#ifndef DG_CUDA_TENSOR_MAP_H
#define DG_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* A matrix [rows, columns] whose columns are neighbours in memory. A copy moves a box of it, and writes zeros for what lies outside. */
struct dg_matrix_map {
    CUtensorMapDataType type;
    int64_t element_bytes;
    const void *data; /* a multiple of 16 */
    int64_t rows, columns;
    int64_t row_stride; /* in elements; a multiple of 16 bytes */
    int box_rows, box_columns; /* at most 256 each */
    CUtensorMapSwizzle swizzle; /* SWIZZLE_128B takes box_columns of 128 bytes */
};

/* Encodes the matrix, about 0.1 us: there is no point in keeping maps. cudaErrorInsufficientDriver where the driver has no such function,
 * cudaErrorInvalidValue where the matrix is none that a map can describe. */
cudaError_t dg_cuda_encode_map(CUtensorMap *map, const struct dg_matrix_map *matrix);

#endif
