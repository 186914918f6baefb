/* The part of the torch host that is the same for every operator; glue.h says what it is for. */
#include "glue.h"

#include "module.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace glue {

namespace {

/* The torch release whose C shim this file is written for, 2.10, as torch encodes it. */
constexpr uint64_t shim_version = (uint64_t{2} << 56) | (uint64_t{10} << 48);

/* torch's own numbers, which its C shim promises not to change. */
constexpr int32_t torch_cpu = 0;
constexpr int32_t torch_cuda = 1;

/* A dtype without a name in DLPack: the C library refuses it in every contract. */
constexpr dg_dtype opaque = {3, 8, 1};

/* By torch's number, c10::ScalarType. */
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

dg_dtype dtype_of(int32_t number) noexcept
{
    return number >= 0 && static_cast<size_t>(number) < dtypes.size() ? dtypes[static_cast<size_t>(number)] : opaque;
}

int32_t number_of(dg_dtype dtype)
{
    for (size_t i = 0; i < dtypes.size(); i++)
        if (dtypes[i].code == dtype.code && dtypes[i].bits == dtype.bits && dtypes[i].lanes == dtype.lanes)
            return static_cast<int32_t>(i);
    throw std::runtime_error("torch has no dtype for a result");
}

/* A text as printf makes it. Not by std::string's operators and std::to_string, whose templates this library would export. */
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

/* Turns a failure of torch's shim into an exception with torch's own words, where this torch can tell them. */
void check_torch(AOTITorchError error)
{
    if (error == 0)
        return;
    const char *what = torch_exception_get_what_without_backtrace != nullptr ? torch_exception_get_what_without_backtrace() : nullptr;
    throw std::runtime_error(what != nullptr ? what : "torch reported an error; its text is on the standard error stream");
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

struct Task {
    dg_task run;
    void *arg;
};

void run_task(int64_t begin, int64_t end, void *task)
{
    const Task *t = static_cast<const Task *>(task);
    t->run(t->arg, begin, end);
}

/* dg_parallel_for on torch's threads. It fails only before any task has begun, when torch cannot start its threads: then all
 * of the work is done here. */
void parallel_for(void *, int64_t count, int64_t grain, dg_task run, void *arg)
{
    Task task = {run, arg};
    if (torch_parallel_for(0, count, grain, run_task, &task) != 0)
        run(arg, 0, count);
}

/* The context of the calls of one thread, made anew when torch.set_num_threads() changes what it was told. */
class ThreadContext {
public:
    ~ThreadContext() { dg_context_destroy(ctx_); }

    dg_context *on_cpu()
    {
        uint32_t num_threads = 1;
        check_torch(torch_get_num_threads(&num_threads));
        make(num_threads);
        dg_context_set_stream(ctx_, {DG_CPU, 0}, nullptr);
        return ctx_;
    }

    dg_context *on_cuda(int32_t index)
    {
        if (aoti_torch_get_current_cuda_stream == nullptr)
            throw std::runtime_error("this torch was built without CUDA");
        void *stream = nullptr;
        check_torch(aoti_torch_get_current_cuda_stream(index, &stream));
        make(num_threads_ != 0 ? num_threads_ : 1);
        dg_context_set_stream(ctx_, {DG_CUDA, index}, stream);
        return ctx_;
    }

private:
    void make(uint32_t num_threads)
    {
        if (num_threads == num_threads_)
            return;
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.num_threads = static_cast<int32_t>(num_threads);
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
    uint32_t num_threads_ = 0; /* that ctx_ was made for */
};

} /* namespace */

Call::Call(const char *op, const char *name, Tensor &first) : op_(op)
{
    thread_local ThreadContext context;
    const dg_device device = read(name, first)->device;
    if (device.type == DG_CPU) {
        ctx_ = context.on_cpu();
    } else {
        DeviceGuardHandle guard = nullptr;
        check_torch(aoti_torch_create_device_guard(device.id, &guard));
        guard_ = DeviceGuard(guard);
        ctx_ = context.on_cuda(device.id);
    }
}

/* ---- reading arguments --------------------------------------------------------------------------------------- */

std::optional<StableIValue> unwrap(StableIValue slot) noexcept
{
    StableIValue *cell = reinterpret_cast<StableIValue *>(slot);
    if (cell == nullptr)
        return std::nullopt;
    const StableIValue inner = *cell;
    if (torch_delete_stable_ivalue != nullptr)
        torch_delete_stable_ivalue(cell);
    else
        delete cell;
    return inner;
}

Float::Float(StableIValue slot) noexcept
{
    std::memcpy(&value, &slot, sizeof value);
}

dg_dtype Call::read(const char *, const Dtype &arg) const
{
    return dtype_of(arg.number);
}

dg_str Call::read(const char *, const Str &arg) const
{
    dg_str view = {};
    check_torch(torch_string_c_str(arg.handle.get(), &view.data));
    check_torch(torch_string_length(arg.handle.get(), &view.len));
    return view;
}

dg_tensor *Call::read(const char *name, Tensor &arg) const
{
    if (arg.is_read)
        return &arg.view;
    const AtenTensorHandle handle = arg.handle.get();
    dg_tensor &view = arg.view;
    bool is_defined = false;
    check_torch(aoti_torch_is_defined(handle, &is_defined));
    if (!is_defined) /* torch lets None through for a Tensor */
        throw_type_error(text("%s: %s is None, expected a tensor", op_, name).c_str());

    int64_t ndim = 0;
    int32_t dtype = 0;
    int32_t device_type = 0;
    int32_t device_index = 0;
    check_torch(aoti_torch_get_device_type(handle, &device_type));
    check_torch(aoti_torch_get_device_index(handle, &device_index));
    if (device_type != torch_cpu && device_type != torch_cuda)
        throw std::invalid_argument(text("%s: %s is neither on the CPU nor on a CUDA device", op_, name));
    check_torch(aoti_torch_get_data_ptr(handle, &view.data));
    check_torch(aoti_torch_get_dim(handle, &ndim));
    check_torch(aoti_torch_get_dtype(handle, &dtype));
    check_torch(aoti_torch_get_sizes(handle, &view.shape));
    check_torch(aoti_torch_get_strides(handle, &view.strides));
    view.ndim = static_cast<int32_t>(std::min<int64_t>(ndim, INT32_MAX));
    view.dtype = dtype_of(dtype);
    if (device_type == torch_cuda)
        view.device = {DG_CUDA, device_index};
    else
        view.device = {DG_CPU, 0};
    arg.is_read = true;
    return &view;
}

template <class Element, class View>
View Call::read(const char *, List<Element, View> &arg) const
{
    if (arg.items != nullptr)
        return arg.view;
    size_t len = 0;
    check_torch(torch_list_size(arg.handle.get(), &len));
    arg.items = std::make_unique<Element[]>(len);
    for (size_t i = 0; i < len; i++) {
        StableIValue slot = 0;
        check_torch(torch_list_get_item(arg.handle.get(), i, &slot));
        if constexpr (std::is_same_v<Element, int64_t>)
            arg.items[i] = Int(slot).value;
        else if constexpr (std::is_same_v<Element, double>)
            arg.items[i] = Float(slot).value;
        else
            arg.items[i] = Bool(slot).value;
    }
    arg.view = {arg.items.get(), len};
    return arg.view;
}

template <class Element, class View>
const View *Call::read(const char *name, Optional<List<Element, View>> &arg) const
{
    if (!arg.value)
        return nullptr;
    read(name, *arg.value);
    return &arg.value->view;
}

template dg_ints Call::read(const char *, Ints &) const;
template dg_floats Call::read(const char *, Floats &) const;
template dg_bools Call::read(const char *, Bools &) const;
template const dg_ints *Call::read(const char *, Optional<Ints> &) const;
template const dg_floats *Call::read(const char *, Optional<Floats> &) const;
template const dg_bools *Call::read(const char *, Optional<Bools> &) const;

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
    return arg.value ? dg_opt_dtype{true, dtype_of(arg.value->number)} : dg_opt_dtype{false, {}};
}

dg_tensor *Call::read(const char *name, Optional<Tensor> &arg) const
{
    return arg.value ? read(name, *arg.value) : nullptr;
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

void check_all_meta(const char *op, std::initializer_list<NamedTensor> tensors)
{
    for (const NamedTensor &tensor : tensors) {
        if (tensor.handle == nullptr)
            continue;
        int32_t device_type = 0;
        check_torch(aoti_torch_get_device_type(tensor.handle, &device_type));
        if (device_type == torch_cpu || device_type == torch_cuda)
            throw std::invalid_argument(text("%s: %s is a tensor with data, expected one on the meta device as another argument is", op,
                                             tensor.name));
    }
}

void refuse(const char *op, const char *why)
{
    throw_not_implemented(text("%s: %s", op, why).c_str());
}

dg_tensor *Result::allocate()
{
    const bool is_cuda = spec_.device.type == DG_CUDA;
    AtenTensorHandle handle = nullptr;
    check_torch(aoti_torch_empty_strided(spec_.ndim, spec_.shape, spec_.strides, number_of(spec_.dtype),
                                         is_cuda ? torch_cuda : torch_cpu, is_cuda ? spec_.device.id : -1, &handle));
    handle_ = TensorHandle(handle);
    void *data = nullptr;
    check_torch(aoti_torch_get_data_ptr(handle, &data));
    view_ = dg_tensor_from_spec(&spec_, data);
    return &view_;
}

StableIValue slot_of(double value) noexcept
{
    StableIValue slot = 0;
    std::memcpy(&slot, &value, sizeof value);
    return slot;
}

StableIValue slot_of_list(const std::vector<StableIValue> &slots)
{
    StableListHandle handle = nullptr;
    check_torch(torch_new_list_reserve_size(slots.size(), &handle));
    ListHandle owner(handle);
    for (const StableIValue slot : slots)
        check_torch(torch_list_push_back(handle, slot));
    return reinterpret_cast<StableIValue>(owner.release());
}

/* ---- registration -------------------------------------------------------------------------------------------- */

namespace {

/* Local to a function, so that it exists however early the constructor that registers runs. */
std::string &registration_error()
{
    static std::string error;
    return error;
}

void check_library(const Operator *operators, size_t count)
{
    std::vector<const char *> schemas(count);
    for (size_t i = 0; i < count; i++)
        schemas[i] = operators[i].schema;
    if (dg_schema_hash_of(schemas.data(), schemas.size()) != dg_schema_hash())
        throw std::runtime_error(text("the libdeep_gemm that was loaded, release %s, was built from other operators than its torch host, "
                                      "release %s",
                                      dg_version(), DG_VERSION));
}

Library open(const char *name_space, const char *key)
{
    TorchLibraryHandle handle = nullptr;
    check_torch(key == nullptr ? aoti_torch_library_init_def(name_space, "glue.cpp", 1, &handle)
                               : aoti_torch_library_init_impl(name_space, key, "glue.cpp", 1, &handle));
    return Library(handle);
}

void implement(const Library &library, const char *name, Boxed function)
{
    check_torch(torch_library_impl(library.get(), name, function, shim_version));
}

} /* namespace */

void register_operators(const char *name_space, const Operator *operators, size_t count) noexcept
try {
    check_library(operators, count);
    Library schemas = open(name_space, nullptr);
    Library cpu = open(name_space, "CPU");
    Library cuda = open(name_space, "CUDA");
    Library meta = open(name_space, "Meta");
    Library settings = open(name_space, "CompositeExplicitAutograd");
    Library views = open(name_space, "CompositeImplicitAutograd");
    for (size_t i = 0; i < count; i++) {
        const Operator &op = operators[i];
        check_torch(aoti_torch_library_def(schemas.get(), op.schema));
        switch (op.keys) {
        case Keys::devices:
            implement(cpu, op.name, op.run);
            implement(cuda, op.name, op.run);
            break;
        case Keys::settings:
            implement(settings, op.name, op.run);
            break;
        case Keys::views:
            if (op.run != nullptr)
                implement(views, op.name, op.run);
            break;
        }
        if (op.meta != nullptr)
            implement(meta, op.name, op.meta);
    }
    for (Library *library : {&schemas, &cpu, &cuda, &meta, &settings, &views})
        library->release(); /* for the life of the process: deleting one would take its registrations back */
} catch (const std::exception &error) {
    registration_error() = error.what();
}

} /* namespace glue */

const char *dg_torch_registration_error(void)
{
    const std::string &error = glue::registration_error();
    return error.empty() ? nullptr : error.c_str();
}
