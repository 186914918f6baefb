/* torch's C shim, as far as this host calls it: our own prototypes, so that building needs no torch.
 *
 * These are the functions of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, which torch keeps stable;
 * all strong ones exist since torch 2.10. tests/torch/shim_matches_torch.cpp compiles this file after torch's own headers, where a wrong
 * prototype is an error. Every function returns 0 on success.
 *
 * A slot (StableIValue) is 64 bits: an int, a double's bits, a bool in the low byte, a dtype number, an owned handle of a
 * tensor, string or list, or, of an optional type, 0 or the owned address of a slot on the heap.
 */
#ifndef DG_TORCH_SHIM_H
#define DG_TORCH_SHIM_H

#include <cstddef>
#include <cstdint>

#define DG_TORCH_WEAK __attribute__((weak))

using StableIValue = uint64_t;
using AOTITorchError = int32_t;

extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque *;
struct StringOpaque;
using StringHandle = StringOpaque *;
struct StableListOpaque;
using StableListHandle = StableListOpaque *;
class TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque *;
struct DeviceGuardOpaque;
using DeviceGuardHandle = DeviceGuardOpaque *;

/* Tensors. Shapes, strides and data are borrowed from the tensor. */
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_is_defined(AtenTensorHandle tensor, bool *ret_is_defined);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void **ret_data_ptr);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t *ret_dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t **ret_sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t **ret_strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t *ret_dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t *ret_device_type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t *ret_device_index);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t *sizes_ptr, const int64_t *strides_ptr, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle *ret_new_tensor);

/* Strings and lists. */
AOTITorchError torch_delete_string(StringHandle handle);
AOTITorchError torch_string_length(StringHandle handle, size_t *length);
AOTITorchError torch_string_c_str(StringHandle handle, const char **data);
AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle *ret);
AOTITorchError torch_list_size(StableListHandle list_handle, size_t *size);
AOTITorchError torch_list_get_item(StableListHandle list_handle, size_t index, StableIValue *element);
AOTITorchError torch_list_push_back(StableListHandle list_handle, StableIValue element);
AOTITorchError torch_delete_list(StableListHandle list_handle);

/* Registration. Deleting a library takes its registrations back. */
AOTITorchError aoti_torch_library_init_def(const char *ns, const char *file, uint32_t line, TorchLibraryHandle *ret_new_torch_lib);
AOTITorchError aoti_torch_library_init_impl(const char *ns, const char *k, const char *file, uint32_t line,
                                            TorchLibraryHandle *ret_new_torch_lib);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle self, const char *schema);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char *name, void (*fn)(StableIValue *, uint64_t, uint64_t),
                                  uint64_t extension_build_version);
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle tlh);

/* Devices and threads. */
AOTITorchError aoti_torch_create_device_guard(int32_t device_index, DeviceGuardHandle *ret_guard);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard);
AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size, void (*func)(int64_t begin, int64_t end, void *ctx),
                                  void *ctx);
AOTITorchError torch_get_num_threads(uint32_t *out_num_threads);

/* Not in every torch >= 2.10: null where they are missing. */
DG_TORCH_WEAK AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void **ret_stream); /* CUDA builds */
DG_TORCH_WEAK AOTITorchError torch_delete_stable_ivalue(StableIValue *value);                             /* 2.13 */
DG_TORCH_WEAK const char *torch_exception_get_what_without_backtrace();                                   /* 2.13 */

} /* extern "C" */

#endif
