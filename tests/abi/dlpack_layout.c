/* A DLTensor * may be passed where a dg_tensor * is asked for, and the DLPack host reads what others make: sizes, offsets and codes against a
 * real dlpack.h. */
#include <deep_gemm/deep_gemm.h>

#include "protocols.h"

#include <dlpack.h>
#include <stdio.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "size of " #ours)
#define SAME_OFFSET(ours, theirs, member) \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, member), "offset of " #ours "." #member)

SAME_SIZE(dg_tensor, DLTensor);
SAME_OFFSET(dg_tensor, DLTensor, data);
SAME_OFFSET(dg_tensor, DLTensor, device);
SAME_OFFSET(dg_tensor, DLTensor, ndim);
SAME_OFFSET(dg_tensor, DLTensor, dtype);
SAME_OFFSET(dg_tensor, DLTensor, shape);
SAME_OFFSET(dg_tensor, DLTensor, strides);
SAME_OFFSET(dg_tensor, DLTensor, byte_offset);
SAME_SIZE(dg_dtype, DLDataType);
SAME_OFFSET(dg_dtype, DLDataType, code);
SAME_OFFSET(dg_dtype, DLDataType, bits);
SAME_OFFSET(dg_dtype, DLDataType, lanes);
SAME_SIZE(dg_device, DLDevice);
_Static_assert(offsetof(dg_device, type) == offsetof(DLDevice, device_type), "offset of dg_device.type");
_Static_assert(offsetof(dg_device, id) == offsetof(DLDevice, device_id), "offset of dg_device.id");

_Static_assert((int)DG_CPU == (int)kDLCPU, "DG_CPU");
_Static_assert((int)DG_CUDA == (int)kDLCUDA, "DG_CUDA");
_Static_assert((int)DG_CODE_INT == (int)kDLInt, "DG_CODE_INT");
_Static_assert((int)DG_CODE_UINT == (int)kDLUInt, "DG_CODE_UINT");
_Static_assert((int)DG_CODE_FLOAT == (int)kDLFloat, "DG_CODE_FLOAT");
_Static_assert((int)DG_CODE_BFLOAT == (int)kDLBfloat, "DG_CODE_BFLOAT");
_Static_assert((int)DG_CODE_BOOL == (int)kDLBool, "DG_CODE_BOOL");
_Static_assert((int)DG_CODE_F8E4M3FN == (int)kDLFloat8_e4m3fn, "DG_CODE_F8E4M3FN");
_Static_assert((int)DG_CODE_F8E5M2 == (int)kDLFloat8_e5m2, "DG_CODE_F8E5M2");
_Static_assert((int)DG_CODE_F8E8M0FNU == (int)kDLFloat8_e8m0fnu, "DG_CODE_F8E8M0FNU");
_Static_assert((int)DG_CODE_F4E2M1FN == (int)kDLFloat4_e2m1fn, "DG_CODE_F4E2M1FN");

/* What the DLPack host declares for itself. */
SAME_SIZE(struct dlpack_managed, DLManagedTensor);
_Static_assert(offsetof(struct dlpack_managed, tensor) == offsetof(DLManagedTensor, dl_tensor), "dlpack_managed.tensor");
SAME_OFFSET(struct dlpack_managed, DLManagedTensor, deleter);
SAME_SIZE(struct dlpack_managed_versioned, DLManagedTensorVersioned);
SAME_OFFSET(struct dlpack_managed_versioned, DLManagedTensorVersioned, version);
SAME_OFFSET(struct dlpack_managed_versioned, DLManagedTensorVersioned, deleter);
SAME_OFFSET(struct dlpack_managed_versioned, DLManagedTensorVersioned, flags);
_Static_assert(offsetof(struct dlpack_managed_versioned, tensor) == offsetof(DLManagedTensorVersioned, dl_tensor), "versioned tensor");
SAME_OFFSET(struct dlpack_version, DLPackVersion, minor);
_Static_assert(DLPACK_MAJOR == DLPACK_MAJOR_VERSION, "DLPACK_MAJOR");
_Static_assert(DLPACK_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY, "DLPACK_READ_ONLY");
_Static_assert(DLPACK_IS_COPIED == DLPACK_FLAG_BITMASK_IS_COPIED, "DLPACK_IS_COPIED");
_Static_assert(DLPACK_IS_PADDED == DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, "DLPACK_IS_PADDED");
#if DLPACK_MINOR_VERSION >= 3 /* the first one with the exchange API */
SAME_SIZE(struct dlpack_exchange_api, DLPackExchangeAPI);
_Static_assert(offsetof(struct dlpack_exchange_api, previous) == offsetof(DLPackExchangeAPI, header.prev_api), "previous");
_Static_assert(offsetof(struct dlpack_exchange_api, allocate) == offsetof(DLPackExchangeAPI, managed_tensor_allocator), "allocate");
_Static_assert(offsetof(struct dlpack_exchange_api, managed_from_object) ==
                   offsetof(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync), "managed_from_object");
_Static_assert(offsetof(struct dlpack_exchange_api, object_from_managed) ==
                   offsetof(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync), "object_from_managed");
_Static_assert(offsetof(struct dlpack_exchange_api, tensor_from_object) ==
                   offsetof(DLPackExchangeAPI, dltensor_from_py_object_no_sync), "tensor_from_object");
_Static_assert(offsetof(struct dlpack_exchange_api, current_stream) == offsetof(DLPackExchangeAPI, current_work_stream), "current_stream");
#endif

/* And once for real: a DLTensor through the library. */
int main(void)
{
    float sf[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    float out[2][4] = {{0}};
    int64_t shape[] = {3, 2};
    DLTensor tensor = {sf, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
    dg_tensor_spec spec;
    dg_status status = dg_get_mn_major_tma_aligned_tensor_out(NULL, (const dg_tensor *)&tensor, &spec);
    if (status == DG_OK && spec.size_bytes <= sizeof(out)) {
        dg_tensor result = dg_tensor_from_spec(&spec, out);
        status = dg_get_mn_major_tma_aligned_tensor(NULL, (const dg_tensor *)&tensor, &result);
    }
    if (status != DG_OK || out[0][2] != 5.0f || out[1][0] != 2.0f) {
        printf("a DLTensor did not go through: %s\n", status == DG_OK ? "wrong values" : dg_last_error());
        return 1;
    }
    return 0;
}
