/* What generated/torch_library/register.cpp is written in: bindings/torch/glue.h once more, over c10::IValue instead of torch's C shim.
 * It is compiled against the headers of one torch >= 2.4 and serves that one.
 */
#ifndef DG_TORCH_LIBRARY_GLUE_H
#define DG_TORCH_LIBRARY_GLUE_H

#include "module.h"

#include "deep_gemm/deep_gemm.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace glue {

/* ---- arguments ----------------------------------------------------------------------------------------------- */

/* The arguments of a call, taken off the stack; what is pushed afterwards is its results. */
class Slots {
public:
    Slots(torch::jit::Stack &stack, size_t count) : slots_(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end())
    {
        stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    }
    const c10::IValue *data() const noexcept { return slots_.data(); }

private:
    std::vector<c10::IValue> slots_;
};

struct Int {
    explicit Int(const c10::IValue &slot) : value(slot.toInt()) {}
    int64_t value;
};

struct Float {
    explicit Float(const c10::IValue &slot) : value(slot.toDouble()) {}
    double value;
};

struct Bool {
    explicit Bool(const c10::IValue &slot) : value(slot.toBool()) {}
    bool value;
};

struct Dtype {
    explicit Dtype(const c10::IValue &slot) : type(slot.toScalarType()) {}
    at::ScalarType type;
};

struct Str {
    explicit Str(const c10::IValue &slot) : value(slot.toStringRef()) {}
    std::string value;
};

struct Tensor {
    explicit Tensor(const c10::IValue &slot) : tensor(slot.isNone() ? at::Tensor() : slot.toTensor()) {}
    at::Tensor tensor;
    std::vector<int64_t> shape, strides;
    dg_tensor view = {};
    bool is_read = false;
};

/* int[], float[], bool[] */
template <class Element, class View>
struct List {
    explicit List(const c10::IValue &slot);
    std::unique_ptr<Element[]> items;
    View view = {};
};
using Ints = List<int64_t, dg_ints>;
using Floats = List<double, dg_floats>;
using Bools = List<bool, dg_bools>;

/* T? of any of the above. */
template <class T>
struct Optional {
    explicit Optional(const c10::IValue &slot)
    {
        if (!slot.isNone())
            value.emplace(slot);
    }
    std::optional<T> value;
};

/* ---- a call -------------------------------------------------------------------------------------------------- */

/* One call of an operator: reads arguments for the C library, knows where it runs, and turns a status into an exception. */
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
    dg_str read(const char *, const Str &arg) const noexcept { return {arg.value.data(), arg.value.size()}; }
    dg_tensor *read(const char *name, Tensor &arg) const;
    template <class Element, class View>
    View read(const char *, List<Element, View> &arg) const noexcept
    {
        return arg.view;
    }

    dg_opt_int read(const char *name, const Optional<Int> &arg) const noexcept;
    dg_opt_float read(const char *name, const Optional<Float> &arg) const noexcept;
    dg_opt_bool read(const char *name, const Optional<Bool> &arg) const noexcept;
    dg_opt_dtype read(const char *name, const Optional<Dtype> &arg) const;
    dg_tensor *read(const char *name, Optional<Tensor> &arg) const { return arg.value ? read(name, *arg.value) : nullptr; }
    template <class Element, class View>
    const View *read(const char *, Optional<List<Element, View>> &arg) const noexcept
    {
        return arg.value ? &arg.value->view : nullptr;
    }

    /* int[N]: its members. */
    template <size_t length, class Element, class View>
    const Element *read_array(const char *name, List<Element, View> &arg) const
    {
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
    c10::OptionalDeviceGuard guard_;
};

/* ---- results ------------------------------------------------------------------------------------------------- */

/* A tensor that an operator returns: dg_<op>_out fills spec, allocate() asks torch for it, dg_<op> fills it. */
class Result {
public:
    dg_tensor_spec *spec() noexcept { return &spec_; }
    dg_tensor *allocate();
    at::Tensor release() noexcept { return std::move(tensor_); }

private:
    dg_tensor_spec spec_ = {};
    dg_tensor view_ = {};
    at::Tensor tensor_;
};

template <class Number>
c10::IValue slot_of(Number value)
{
    return c10::IValue(value);
}

/* A list that an operator returns. */
template <class Element>
class ListResult {
public:
    Element *data() noexcept { return items_; }
    static constexpr size_t capacity() noexcept { return sizeof(items_) / sizeof(Element); }
    size_t *len() noexcept { return &len_; }
    c10::IValue release() const
    {
        c10::List<Element> list;
        for (size_t i = 0; i < len_; i++)
            list.push_back(items_[i]);
        return c10::IValue(std::move(list));
    }

private:
    Element items_[256] = {}; /* the library refuses a list that is too short for its result */
    size_t len_ = 0;
};

/* ---- registration -------------------------------------------------------------------------------------------- */

template <void (*function)(const c10::OperatorHandle &, c10::DispatchKeySet, torch::jit::Stack *)>
torch::CppFunction boxed()
{
    return torch::CppFunction::makeFromBoxedFunction<function>();
}

/* A tensor argument and its name; undefined when it was not given. */
struct NamedTensor {
    NamedTensor(const char *n, const Tensor &arg) noexcept : name(n), tensor(&arg.tensor) {}
    NamedTensor(const char *n, const Optional<Tensor> &arg) noexcept : name(n), tensor(arg.value ? &arg.value->tensor : nullptr) {}
    const char *name;
    const at::Tensor *tensor;
};

/* The Meta kernel of an operator that returns nothing. One meta tensor among others brings a call here: that is an error. */
void check_all_meta(const char *op, std::initializer_list<NamedTensor> tensors);

/* A boxed function of an operator that exists in torch only and has no kernel. */
[[noreturn]] void refuse(const char *op, const char *why);

/* Why the libdeep_gemm that was loaded does not fit these operators, or NULL. */
const char *library_error(const char *const *schemas, size_t count);

} /* namespace glue */

#endif
