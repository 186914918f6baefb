/* The part of the classic torch host that is the same for every operator. */
#include "glue.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

/* In CUDA builds of torch >= 2.4, null in others: the current stream without torch's CUDA headers. */
extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void **ret_stream);

namespace glue {

namespace {

/* A dtype without a name in DLPack: the C library refuses it in every contract. */
constexpr dg_dtype opaque = {3, 8, 1};

/* By torch's number, c10::ScalarType, which keeps its values; an older torch ends earlier. */
constexpr std::array<dg_dtype, 46> dtypes = {{
    {DG_U8}, {DG_I8}, {DG_I16}, {DG_I32}, {DG_I64},           /* uint8 int8 int16 int32 int64 */
    {DG_F16}, {DG_F32}, {DG_F64},                             /* float16 float32 float64 */
    {5, 32, 1}, {5, 64, 1}, {5, 128, 1},                      /* complex32 complex64 complex128 */
    {DG_BOOL}, opaque, opaque, opaque, {DG_BF16},             /* bool, qint8 quint8 qint32, bfloat16 */
    opaque, opaque, opaque, opaque, opaque, opaque, opaque,   /* quint4x2 quint2x4, bits1x8 to bits16 */
    {DG_F8E5M2}, {DG_F8E4M3}, {13, 8, 1}, {11, 8, 1},         /* float8: e5m2 e4m3fn e5m2fnuz e4m3fnuz */
    {DG_CODE_UINT, 16, 1}, {DG_CODE_UINT, 32, 1}, {DG_CODE_UINT, 64, 1}, /* uint16 uint32 uint64 */
    opaque, opaque, opaque, opaque, opaque, opaque, opaque,   /* uint1 to uint7 */
    opaque, opaque, opaque, opaque, opaque, opaque, opaque,   /* int1 to int7 */
    {DG_UE8M0}, {DG_F4E2M1X2}                                 /* float8_e8m0fnu float4_e2m1fn_x2 */
}};

dg_dtype dtype_of(at::ScalarType type) noexcept
{
    const size_t number = static_cast<size_t>(type);
    return number < dtypes.size() ? dtypes[number] : opaque;
}

at::ScalarType type_of(dg_dtype dtype)
{
    for (size_t i = 0; i < dtypes.size() && i < static_cast<size_t>(at::ScalarType::Undefined); i++)
        if (dtypes[i].code == dtype.code && dtypes[i].bits == dtype.bits && dtypes[i].lanes == dtype.lanes)
            return static_cast<at::ScalarType>(i);
    throw std::runtime_error("this torch has no dtype for a result");
}

__attribute__((format(printf, 1, 2))) std::string text(const char *format, ...)
{
    va_list args;
    va_list again;
    va_start(args, format);
    va_copy(again, args);
    std::string result(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, args)), '\0');
    std::vsnprintf(result.data(), result.size() + 1, format, again);
    va_end(again);
    va_end(args);
    return result;
}

class OutOfMemory : public std::bad_alloc {
public:
    explicit OutOfMemory(const char *message) : text_(message) {}
    const char *what() const noexcept override { return text_.what(); }

private:
    std::runtime_error text_; /* unlike a std::string, copies without throwing */
};

/* Python sees the class that the prefix names: _C.py translates it. */
[[noreturn]] void throw_type_error(const char *message) { throw std::runtime_error(text("TypeError: %s", message)); }
[[noreturn]] void throw_not_implemented(const char *message) { throw std::runtime_error(text("NotImplementedError: %s", message)); }

/* ---- where a call runs --------------------------------------------------------------------------------------- */

void parallel_for(void *, int64_t count, int64_t grain, dg_task run, void *arg)
{
    at::parallel_for(0, count, grain, [=](int64_t begin, int64_t end) { run(arg, begin, end); });
}

/* The context of the calls of one thread, made anew when torch.set_num_threads() changes what it was told. */
class ThreadContext {
public:
    ~ThreadContext() { dg_context_destroy(ctx_); }

    dg_context *on(const at::Device &device)
    {
        make(device.is_cpu() || num_threads_ == 0 ? at::get_num_threads() : num_threads_);
        if (device.is_cpu()) {
            dg_context_set_stream(ctx_, {DG_CPU, 0}, nullptr);
        } else {
            if (aoti_torch_get_current_cuda_stream == nullptr)
                throw std::runtime_error("this torch was built without CUDA");
            void *stream = nullptr;
            if (aoti_torch_get_current_cuda_stream(device.index(), &stream) != 0)
                throw std::runtime_error("torch did not tell its current stream");
            dg_context_set_stream(ctx_, {DG_CUDA, device.index()}, stream);
        }
        return ctx_;
    }

private:
    void make(int num_threads)
    {
        if (num_threads == num_threads_)
            return;
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.num_threads = num_threads;
        options.use_process_settings = true;
        options.parallel_for = parallel_for;
        dg_context *fresh = nullptr;
        if (dg_context_create(&options, &fresh) != DG_OK)
            throw std::runtime_error(dg_last_error());
        dg_context_destroy(ctx_);
        ctx_ = fresh;
        num_threads_ = num_threads;
    }

    dg_context *ctx_ = nullptr;
    int num_threads_ = 0; /* that ctx_ was made for */
};

} /* namespace */

Call::Call(const char *op, const char *name, Tensor &first) : op_(op)
{
    thread_local ThreadContext context;
    read(name, first);
    const at::Device device = first.tensor.device();
    if (!device.is_cpu())
        guard_.reset_device(device);
    ctx_ = context.on(device);
}

/* ---- reading arguments --------------------------------------------------------------------------------------- */

template <class Element, class View>
List<Element, View>::List(const c10::IValue &slot)
{
    const c10::List<Element> list = slot.to<c10::List<Element>>();
    items = std::make_unique<Element[]>(list.size());
    for (size_t i = 0; i < list.size(); i++)
        items[i] = list.get(i);
    view = {items.get(), list.size()};
}

template struct List<int64_t, dg_ints>;
template struct List<double, dg_floats>;
template struct List<bool, dg_bools>;

dg_dtype Call::read(const char *, const Dtype &arg) const
{
    return dtype_of(arg.type);
}

dg_tensor *Call::read(const char *name, Tensor &arg) const
{
    if (arg.is_read)
        return &arg.view;
    const at::Tensor &tensor = arg.tensor;
    if (!tensor.defined()) /* torch lets None through for a Tensor */
        throw_type_error(text("%s: %s is None, expected a tensor", op_, name).c_str());
    if (!tensor.is_cpu() && !tensor.is_cuda())
        throw std::invalid_argument(text("%s: %s is neither on the CPU nor on a CUDA device", op_, name));
    arg.shape = tensor.sizes().vec();
    arg.strides = tensor.strides().vec();
    dg_tensor &view = arg.view;
    view.data = const_cast<void *>(tensor.const_data_ptr());
    view.ndim = static_cast<int32_t>(std::min<int64_t>(tensor.dim(), INT32_MAX));
    view.dtype = dtype_of(tensor.scalar_type());
    view.shape = arg.shape.data();
    view.strides = arg.strides.data();
    if (tensor.is_cuda())
        view.device = {DG_CUDA, tensor.device().index()};
    else
        view.device = {DG_CPU, 0};
    arg.is_read = true;
    return &view;
}

dg_opt_int Call::read(const char *, const Optional<Int> &arg) const noexcept
{
    return arg.value ? dg_opt_int{true, arg.value->value} : dg_opt_int{false, 0};
}

dg_opt_float Call::read(const char *, const Optional<Float> &arg) const noexcept
{
    return arg.value ? dg_opt_float{true, arg.value->value} : dg_opt_float{false, 0};
}

dg_opt_bool Call::read(const char *, const Optional<Bool> &arg) const noexcept
{
    return arg.value ? dg_opt_bool{true, arg.value->value} : dg_opt_bool{false, false};
}

dg_opt_dtype Call::read(const char *, const Optional<Dtype> &arg) const
{
    return arg.value ? dg_opt_dtype{true, dtype_of(arg.value->type)} : dg_opt_dtype{false, {}};
}

void Call::check_length(const char *name, size_t expected, size_t got) const
{
    if (got != expected)
        throw std::invalid_argument(text("%s: %s needs %zu ints, got %zu", op_, name, expected, got));
}

/* ---- results and errors -------------------------------------------------------------------------------------- */

void Call::check(dg_status status) const
{
    switch (status) {
    case DG_OK:
        return;
    case DG_ERR_INVALID_ARGUMENT:
        throw std::invalid_argument(dg_last_error()); /* ValueError */
    case DG_ERR_INVALID_DTYPE:
        throw_type_error(dg_last_error());
    case DG_ERR_NOT_SUPPORTED:
        throw_not_implemented(dg_last_error());
    case DG_ERR_OUT_OF_MEMORY:
        throw OutOfMemory(dg_last_error()); /* MemoryError */
    case DG_ERR_CUDA:
    case DG_ERR_INTERNAL:
        break;
    }
    throw std::runtime_error(dg_last_error());
}

dg_tensor *Result::allocate()
{
    const size_t ndim = static_cast<size_t>(spec_.ndim);
    const at::Device device = spec_.device.type == DG_CUDA ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(spec_.device.id))
                                                           : at::Device(at::kCPU);
    tensor_ = at::empty_strided(at::IntArrayRef(spec_.shape, ndim), at::IntArrayRef(spec_.strides, ndim),
                                at::TensorOptions().dtype(type_of(spec_.dtype)).device(device));
    view_ = dg_tensor_from_spec(&spec_, tensor_.mutable_data_ptr());
    return &view_;
}

void check_all_meta(const char *op, std::initializer_list<NamedTensor> tensors)
{
    for (const NamedTensor &named : tensors) {
        if (named.tensor != nullptr && named.tensor->defined() && (named.tensor->is_cpu() || named.tensor->is_cuda()))
            throw std::invalid_argument(text("%s: %s is a tensor with data, expected one on the meta device as another argument is", op,
                                             named.name));
    }
}

void refuse(const char *op, const char *why)
{
    throw_not_implemented(text("%s: %s", op, why).c_str());
}

const char *library_error(const char *const *schemas, size_t count)
{
    if (dg_schema_hash_of(schemas, count) == dg_schema_hash())
        return nullptr;
    static const std::string error = text("the libdeep_gemm that was loaded, release %s, was built from other operators than its torch host, "
                                          "release %s",
                                          dg_version(), DG_VERSION);
    return error.c_str();
}

} /* namespace glue */
