/* What generated/torch/register.cpp is written in: owners of torch's slots, one call, one result, the operator table.
 *
 * A boxed function first builds the owner of every slot, and only then reads any of them. Owners are built without failing, so
 * whatever is thrown later (a list of the wrong length, a status of the C library), all that torch handed over is freed.
 * The functions of the C library are called with views that borrow from the owners. Read shim.h for what a slot holds.
 */
#ifndef DG_TORCH_GLUE_H
#define DG_TORCH_GLUE_H

#include "shim.h"

#include "deep_gemm/deep_gemm.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace glue {

/* ---- owners -------------------------------------------------------------------------------------------------- */

template <class Opaque, AOTITorchError (*destroy)(Opaque *)>
class Handle {
public:
    explicit Handle(Opaque *handle = nullptr) noexcept : handle_(handle) {}
    explicit Handle(StableIValue slot) noexcept : handle_(reinterpret_cast<Opaque *>(slot)) {}
    Handle(Handle &&other) noexcept : handle_(other.release()) {}
    Handle &operator=(Handle &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Handle()
    {
        if (handle_ != nullptr)
            destroy(handle_);
    }

    Opaque *get() const noexcept { return handle_; }
    Opaque *release() noexcept { return std::exchange(handle_, nullptr); }

private:
    Opaque *handle_;
};

using TensorHandle = Handle<AtenTensorOpaque, aoti_torch_delete_tensor_object>;
using ListHandle = Handle<StableListOpaque, torch_delete_list>;
using DeviceGuard = Handle<DeviceGuardOpaque, aoti_torch_delete_device_guard>;
using Library = Handle<TorchLibraryOpaque, aoti_torch_delete_library_object>;

/* The slot inside an optional one, whose cell on the heap is freed; nothing when it is None. */
std::optional<StableIValue> unwrap(StableIValue slot) noexcept;

struct Int {
    explicit Int(StableIValue slot) noexcept : value(static_cast<int64_t>(slot)) {}
    int64_t value;
};

struct Float {
    explicit Float(StableIValue slot) noexcept;
    double value;
};

struct Bool {
    explicit Bool(StableIValue slot) noexcept : value((slot & 0xff) != 0) {}
    bool value;
};

struct Dtype {
    explicit Dtype(StableIValue slot) noexcept : number(static_cast<int32_t>(static_cast<uint32_t>(slot))) {}
    int32_t number; /* torch's */
};

struct Str {
    explicit Str(StableIValue slot) noexcept : handle(slot) {}
    Handle<StringOpaque, torch_delete_string> handle;
};

struct Tensor {
    explicit Tensor(StableIValue slot) noexcept : handle(slot) {}
    TensorHandle handle;
    dg_tensor view = {};
    bool is_read = false;
};

/* int[], float[], bool[] */
template <class Element, class View>
struct List {
    explicit List(StableIValue slot) noexcept : handle(slot) {}
    ListHandle handle;
    std::unique_ptr<Element[]> items;
    View view = {};
};
using Ints = List<int64_t, dg_ints>;
using Floats = List<double, dg_floats>;
using Bools = List<bool, dg_bools>;

/* T? of any of the above. */
template <class T>
struct Optional {
    explicit Optional(StableIValue slot) noexcept
    {
        if (const std::optional<StableIValue> inner = unwrap(slot))
            value.emplace(*inner);
    }
    std::optional<T> value;
};

/* ---- a call -------------------------------------------------------------------------------------------------- */

/* One call of an operator: reads arguments for the C library, knows where it runs, and turns a status into an exception.
 * Whatever a read returns borrows from the owner. */
class Call {
public:
    /* Of an operator without tensors: the process settings. */
    explicit Call(const char *op) noexcept : op_(op) {}

    /* On the device of `first`: its current stream on CUDA, torch's threads on the CPU. */
    Call(const char *op, const char *name, Tensor &first);

    dg_context *ctx() const noexcept { return ctx_; }
    void check(dg_status status) const;

    int64_t read(const char *, const Int &arg) const noexcept { return arg.value; }
    double read(const char *, const Float &arg) const noexcept { return arg.value; }
    bool read(const char *, const Bool &arg) const noexcept { return arg.value; }
    dg_dtype read(const char *name, const Dtype &arg) const;
    dg_str read(const char *name, const Str &arg) const;
    dg_tensor *read(const char *name, Tensor &arg) const;
    template <class Element, class View>
    View read(const char *name, List<Element, View> &arg) const;

    dg_opt_int read(const char *name, const Optional<Int> &arg) const noexcept;
    dg_opt_float read(const char *name, const Optional<Float> &arg) const noexcept;
    dg_opt_bool read(const char *name, const Optional<Bool> &arg) const noexcept;
    dg_opt_dtype read(const char *name, const Optional<Dtype> &arg) const;
    dg_tensor *read(const char *name, Optional<Tensor> &arg) const; /* NULL: None */
    template <class Element, class View>
    const View *read(const char *name, Optional<List<Element, View>> &arg) const; /* NULL: None */

    /* int[N]: its members. */
    template <size_t length, class Element, class View>
    const Element *read_array(const char *name, List<Element, View> &arg) const
    {
        read(name, arg);
        check_length(name, length, arg.view.len);
        return arg.view.data;
    }

    /* int[N]?, as dg_opt_int<N>. */
    template <size_t length, class OptionalArray, class Element, class View>
    OptionalArray read_array(const char *name, Optional<List<Element, View>> &arg) const
    {
        OptionalArray array = {};
        array.has = arg.value.has_value();
        if (array.has)
            std::copy_n(read_array<length>(name, *arg.value), length, array.value);
        return array;
    }

private:
    void check_length(const char *name, size_t expected, size_t got) const;

    const char *op_;
    dg_context *ctx_ = nullptr;
    DeviceGuard guard_;
};

/* ---- results ------------------------------------------------------------------------------------------------- */

/* A tensor that an operator returns: dg_<op>_out fills spec, allocate() asks torch for it, dg_<op> fills it. */
class Result {
public:
    dg_tensor_spec *spec() noexcept { return &spec_; }
    dg_tensor *allocate();
    StableIValue release() noexcept { return reinterpret_cast<StableIValue>(handle_.release()); }

private:
    dg_tensor_spec spec_ = {};
    dg_tensor view_ = {};
    TensorHandle handle_;
};

inline StableIValue slot_of(int64_t value) noexcept { return static_cast<StableIValue>(value); }
inline StableIValue slot_of(bool value) noexcept { return value ? 1 : 0; }
StableIValue slot_of(double value) noexcept;
StableIValue slot_of_list(const std::vector<StableIValue> &slots); /* a new list */

/* A list that an operator returns. */
template <class Element>
class ListResult {
public:
    Element *data() noexcept { return items_; }
    static constexpr size_t capacity() noexcept { return sizeof(items_) / sizeof(Element); }
    size_t *len() noexcept { return &len_; }
    StableIValue release() const
    {
        std::vector<StableIValue> slots(len_);
        std::transform(items_, items_ + len_, slots.begin(), [](Element item) { return slot_of(item); });
        return slot_of_list(slots);
    }

private:
    Element items_[256] = {}; /* the library refuses a list that is too short for its result */
    size_t len_ = 0;
};

/* ---- the operator table -------------------------------------------------------------------------------------- */

using Boxed = void (*)(StableIValue *slots, uint64_t num_inputs, uint64_t num_outputs);

enum class Keys {
    devices,  /* CPU and CUDA */
    settings, /* no tensor among the arguments: CompositeExplicitAutograd */
    views     /* results alias an argument: CompositeImplicitAutograd, by Python where run is null */
};

struct Operator {
    const char *name;
    const char *schema;
    Keys keys;
    Boxed run;
    Boxed meta; /* null: none, Python has a fake */
};

/* A tensor argument and its name; no handle when it was not given. */
struct NamedTensor {
    NamedTensor(const char *n, const Tensor &arg) noexcept : name(n), handle(arg.handle.get()) {}
    NamedTensor(const char *n, const Optional<Tensor> &arg) noexcept : name(n), handle(arg.value ? arg.value->handle.get() : nullptr) {}
    const char *name;
    AtenTensorHandle handle;
};

/* The Meta kernel of an operator that returns nothing. One meta tensor among others brings a call here: that is an error. */
void check_all_meta(const char *op, std::initializer_list<NamedTensor> tensors);

/* A boxed function of an operator that exists in torch only and has no kernel. */
[[noreturn]] void refuse(const char *op, const char *why);

/* Registers the table. A failure takes everything back and is remembered for dg_torch_registration_error(). */
void register_operators(const char *name_space, const Operator *operators, size_t count) noexcept;

} /* namespace glue */

#endif
