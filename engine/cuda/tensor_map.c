/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_map.c - see tensor_map.h. The driver encodes; its function is found at run time, because
 * the module is not linked with the driver. */
#include "engine/cuda/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>

#include "config/err.h"

_Static_assert(sizeof(CUtensorMap) == 16 * sizeof(uint64_t), "room for a map");

/* cuTensorMapEncodeTiled(). */
typedef CUresult encoder_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

void *tensor_map_encoder(void)
{
    enum cudaDriverEntryPointQueryResult found;
    void *at = NULL;
    cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000,
                                                        cudaEnableDefault, &found);
    cudaGetLastError();
    return !code && found == cudaDriverEntryPointSuccess ? at : NULL;
}

int tensor_map(void *encoder, void *data, int32_t rows, int32_t cols, int32_t box, uint64_t map[16],
               struct err *e)
{
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t apart[1] = {(cuuint64_t)cols * 2};
    const cuuint32_t of[2] = {64, (cuuint32_t)box}, each[2] = {1, 1};
    CUtensorMap encoded; /* wants an alignment that the caller's need not have */
    encoder_fn *encode;
    if (!encoder)
        return err_set(e, "cuda: the driver encodes no tensor maps");
    memcpy(&encode, &encoder, sizeof encode);
    CUresult code = encode(&encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, size, apart, of,
                           each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code)
        return err_set(e, "cuda: a tensor map of %d x %d in boxes of %d rows: error %d", rows, cols,
                       box, (int)code);
    memcpy(map, &encoded, sizeof encoded);
    return 0;
}
