/* Device properties, error texts and the device guard; device.h is the interface.
 *
 * The CUDA runtime is linked statically and finds the driver by itself, when it is first called. The driver functions of the guard
 * come through the runtime, so that nothing here needs libcuda.so to link or to load.
 */
#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>

namespace {

enum { max_devices = 64 }; /* the most that a driver shows; ids beyond it are refused */

/* What has been asked so far. Each is_known is set last, with release order, under the lock; readers need no lock. */
struct device_entry {
    bool is_known;
    struct dg_cuda_device device;
};
struct device_entry entries[max_devices];
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Calls a runtime function that may fail for an ordinary reason, such as a missing driver, and leaves no error behind in the runtime's
 * per-thread state, where another user of the same runtime would find it and take it for their own. */
cudaError_t quietly(cudaError_t error)
{
    if (error != cudaSuccess) {
        cudaGetLastError();
    }
    return error;
}

bool read_attribute(int *value, cudaDeviceAttr attribute, int device_id)
{
    return quietly(cudaDeviceGetAttribute(value, attribute, device_id)) == cudaSuccess;
}

bool read_device(int device_id, struct dg_cuda_device *device)
{
    int major, minor;
    if (!read_attribute(&major, cudaDevAttrComputeCapabilityMajor, device_id) ||
        !read_attribute(&minor, cudaDevAttrComputeCapabilityMinor, device_id) ||
        !read_attribute(&device->num_sms, cudaDevAttrMultiProcessorCount, device_id) ||
        !read_attribute(&device->shared_per_block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_id) ||
        !read_attribute(&device->shared_per_sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device_id)) {
        return false;
    }
    device->compute_capability = 10 * major + minor;
    return true;
}

/* A driver function by name, or NULL. */
void *driver_function(const char *name)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
    cudaError_t error = quietly(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result));
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : NULL;
}

/* The driver functions of the guard. */
struct driver {
    CUresult (*current)(CUcontext *);
    CUresult (*device_of_current)(CUdevice *);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
};

struct driver found_driver;
bool is_driver_known;

bool look_up_driver(struct driver *driver)
{
    struct driver d;
    d.current = reinterpret_cast<CUresult (*)(CUcontext *)>(driver_function("cuCtxGetCurrent"));
    d.device_of_current = reinterpret_cast<CUresult (*)(CUdevice *)>(driver_function("cuCtxGetDevice"));
    d.device_get = reinterpret_cast<CUresult (*)(CUdevice *, int)>(driver_function("cuDeviceGet"));
    d.retain = reinterpret_cast<CUresult (*)(CUcontext *, CUdevice)>(driver_function("cuDevicePrimaryCtxRetain"));
    d.release = reinterpret_cast<CUresult (*)(CUdevice)>(driver_function("cuDevicePrimaryCtxRelease"));
    d.push = reinterpret_cast<CUresult (*)(CUcontext)>(driver_function("cuCtxPushCurrent"));
    d.pop = reinterpret_cast<CUresult (*)(CUcontext *)>(driver_function("cuCtxPopCurrent"));
    if (!d.current || !d.device_of_current || !d.device_get || !d.retain || !d.release || !d.push || !d.pop) {
        return false;
    }
    *driver = d;
    return true;
}

const struct driver *find_driver()
{
    if (!__atomic_load_n(&is_driver_known, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        bool is_found = is_driver_known || look_up_driver(&found_driver);
        __atomic_store_n(&is_driver_known, is_found, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
        if (!is_found) {
            return NULL;
        }
    }
    return &found_driver;
}

/* The token of a guard that has nothing to undo; other tokens are the id of the device whose context was pushed. */
const int32_t nothing_pushed = -1;

} // namespace

const struct dg_cuda_device *dg_cuda_find_device(int32_t device_id)
{
    if (device_id < 0 || device_id >= max_devices) {
        return NULL;
    }
    struct device_entry *entry = &entries[device_id];
    if (!__atomic_load_n(&entry->is_known, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        bool is_found = entry->is_known || read_device(device_id, &entry->device);
        __atomic_store_n(&entry->is_known, is_found, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
        if (!is_found) {
            return NULL;
        }
    }
    return &entry->device;
}

bool dg_cuda_available(int32_t device_id)
{
    return dg_cuda_compute_capability(device_id) >= 80;
}

int dg_cuda_compute_capability(int32_t device_id)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(device_id);
    return device ? device->compute_capability : 0;
}

int dg_cuda_num_sms(int32_t device_id)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(device_id);
    return device ? device->num_sms : 0;
}

const char *dg_cuda_error_text(int code)
{
    static __thread char text[256];
    cudaError_t error = static_cast<cudaError_t>(code);
    snprintf(text, sizeof text, "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
    return text;
}

int dg_cuda_enter_device(int32_t device_id, int32_t *previous)
{
    *previous = nothing_pushed;
    const struct driver *driver = find_driver();
    if (!driver) {
        return cudaErrorInsufficientDriver;
    }

    CUcontext context = NULL;
    CUdevice device, current_device;
    if (driver->device_get(&device, device_id) != CUDA_SUCCESS) {
        return cudaErrorInvalidDevice;
    }
    if (driver->current(&context) == CUDA_SUCCESS && context && driver->device_of_current(&current_device) == CUDA_SUCCESS &&
        current_device == device) {
        return cudaSuccess;
    }

    /* The retained reference is given back on leaving; whoever owns the tensors holds another, so the context stays. */
    if (driver->retain(&context, device) != CUDA_SUCCESS) {
        return cudaErrorDevicesUnavailable;
    }
    if (driver->push(context) != CUDA_SUCCESS) {
        driver->release(device);
        return cudaErrorDevicesUnavailable;
    }
    *previous = device_id;
    return cudaSuccess;
}

void dg_cuda_leave_device(int32_t previous)
{
    if (previous == nothing_pushed) {
        return;
    }
    const struct driver *driver = find_driver();
    CUcontext context;
    CUdevice device;
    driver->pop(&context);
    if (driver->device_get(&device, previous) == CUDA_SUCCESS) {
        driver->release(device);
    }
}
