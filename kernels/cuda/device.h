/* CUDA devices, as plain C: for kernels/ops and kernels/core, which are compiled without a CUDA header.
 *
 * Nothing here is needed to load the library: the driver is looked for on the first call, and where there is none every
 * function says so by its result. Any thread may call any of them at any time. Nothing creates a CUDA context except
 * dg_cuda_enter_device().
 */
#ifndef DG_CUDA_DEVICE_H
#define DG_CUDA_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel's launch code wants to know of a device. Sizes in bytes. */
struct dg_cuda_device {
    int compute_capability; /* 10 * major + minor: 80, 89, 90 */
    int num_sms;
    int shared_per_block_bytes; /* the most that a block may ask for */
    int shared_per_sm_bytes;
};

/* The properties of a device, asked once; NULL where there is no such device or no driver. Static. */
const struct dg_cuda_device *dg_cuda_find_device(int32_t device_id);

/* Whether the device exists and runs this library's kernels (compute capability 8.0 or newer). */
bool dg_cuda_available(int32_t device_id);

/* Compute capability as 10 * major + minor. 0: no such device. */
int dg_cuda_compute_capability(int32_t device_id);

/* Number of multiprocessors. 0: no such device. */
int dg_cuda_num_sms(int32_t device_id);

/* The name and text of a dg_kernel_result: "cudaErrorInvalidValue: invalid argument". The pointer is valid until the
 * calling thread asks again. */
const char *dg_cuda_error_text(int code);

/* Makes the device current for this thread, for CUDA calls on its streams. Returns 0 and fills *previous with what
 * dg_cuda_leave_device() needs to put back exactly the context that was current, or none; or returns a cudaError_t and
 * has changed nothing. A context that is current and belongs to the device stays, also one that the program made itself. */
int dg_cuda_enter_device(int32_t device_id, int32_t *previous);
void dg_cuda_leave_device(int32_t previous);

#ifdef __cplusplus
}
#endif

#endif
